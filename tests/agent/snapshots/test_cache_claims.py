"""Whose a snapshot is when several pods can have made it, and when a pod's name comes again with another VM."""

from dataclasses import replace

import pytest

from common.snapshot_words import Owner, PurgeOutcome, RetainOutcome
from tests.agent.snapshots.caching import CacheHost, pod

WEB = pod("ns", "web")
VM = WEB.vm_name
FIRST, SECOND = pod("a-b", "c", "uid-first"), pod("a", "b-c", "uid-second")
BOTH = (FIRST, SECOND)
SHARED_NAME = FIRST.vm_name
AGAIN = replace(FIRST, pod_uid="uid-again")


@pytest.mark.parametrize("purger", [AGAIN, SECOND])
@pytest.mark.parametrize(
    "later",
    [[()], [BOTH, ()], [(FIRST,), ()], [(SECOND,), ()], [(AGAIN,), (AGAIN, SECOND), ()]],
    ids=["both leave", "both stay", "the first stays", "the second stays", "the first comes again"],
)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_snapshot_two_pods_may_have_made_is_purged_for_neither(
    host: CacheHost, purger: Owner, later: list[tuple[Owner, ...]], is_restarted: bool
) -> None:
    """F29: both claimed its name before anything was recorded of it; who stays longer did not make it for that."""
    assert SECOND.vm_name == SHARED_NAME
    host.write(SHARED_NAME)
    await host.sync(*BOTH)
    if is_restarted:
        await host.crash()
    for owners in later:
        await host.sync(*owners)
    assert await host.purge(purger) == {SHARED_NAME: PurgeOutcome.SKIPPED_FOREIGN}
    assert await host.retain(purger) is RetainOutcome.RETAINED
    assert await host.release(purger) == [SHARED_NAME]
    assert await host.purge_by_person(SHARED_NAME) == {SHARED_NAME: PurgeOutcome.PURGED}


@pytest.mark.parametrize(
    ("claimants", "may_purge", "may_not"),
    [
        ((SECOND,), (SECOND,), (FIRST,)),
        ((AGAIN,), (FIRST,), (SECOND,)),
        (BOTH, (), BOTH),
        ((), (FIRST,), (SECOND,)),
        ((pod("evil", "p", vm_name=SHARED_NAME),), (FIRST,), (SECOND,)),
    ],
    ids=["the other", "its successor", "both", "nobody", "a foreign name"],
)
async def test_what_takes_a_snapshots_place_is_its_claimants(
    host: CacheHost, claimants: tuple[Owner, ...], may_purge: tuple[Owner, ...], may_not: tuple[Owner, ...]
) -> None:
    """F29: a new snapshot under a name is not the old owner's when another pod with a right to the name made it."""
    host.write(SHARED_NAME)
    await host.sync(FIRST)
    await host.sync(*claimants)
    host.write(SHARED_NAME)
    await host.cache.look()
    await host.sync()
    for owner in may_not:
        assert await host.purge(owner) == {SHARED_NAME: PurgeOutcome.SKIPPED_FOREIGN}
    for owner in may_purge:
        assert await host.purge(owner) == {SHARED_NAME: PurgeOutcome.PURGED}


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_pod_that_is_named_again_is_superseded_no_more(host: CacheHost, is_restarted: bool) -> None:
    """F32: an owner set that was on its way for long names the pod before; the next set puts that right."""
    newer = replace(WEB, pod_uid="uid-newer")
    host.write(VM)
    await host.sync(WEB)
    assert await host.retain(newer) is RetainOutcome.RETAINED
    await host.sync(replace(WEB, vm_id="of a version before"))
    assert await host.retain(newer) is RetainOutcome.SUPERSEDED
    await host.sync(newer)
    if is_restarted:
        await host.crash()
    await host.sync()
    assert await host.retain(newer) is RetainOutcome.RETAINED
    assert await host.retain(WEB) is RetainOutcome.SUPERSEDED


@pytest.mark.parametrize(
    ("next_vm", "outcome"), [("vk-ns-other", RetainOutcome.RETAINED), (VM, RetainOutcome.SUPERSEDED)]
)
async def test_only_the_next_pod_with_the_same_vm_supersedes(
    host: CacheHost, next_vm: str, outcome: RetainOutcome
) -> None:
    """A pod that comes again under its name with another VM leaves the first one's snapshot to its promise."""
    host.write(VM)
    await host.sync(WEB)
    await host.sync(replace(WEB, pod_uid="uid-next", vm_name=next_vm))
    assert await host.retain(WEB) is outcome
    await host.restart()
    assert await host.retain(WEB) is outcome


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("claimant", "is_purged"), [(SECOND, False), (AGAIN, True), (None, True)])
async def test_a_guess_whose_a_snapshot_is_gives_way_to_another_pod_that_claims_it_first(
    host: CacheHost, claimant: Owner | None, is_purged: bool, is_restarted: bool
) -> None:
    """F29: a snapshot that replaced another while nobody claimed the name may be either pod's that has it."""
    host.write(SHARED_NAME)
    await host.sync(FIRST)
    await host.sync()
    host.write(SHARED_NAME)
    await host.cache.look()
    await host.cache.settle()
    if is_restarted:
        await host.crash()
    await host.sync(*(claimant,) if claimant else ())
    await host.sync()
    outcome = PurgeOutcome.PURGED if is_purged else PurgeOutcome.SKIPPED_FOREIGN
    assert await host.purge(SECOND) == {SHARED_NAME: PurgeOutcome.SKIPPED_FOREIGN}
    assert await host.purge(FIRST) == {SHARED_NAME: outcome}


@pytest.mark.parametrize("event", ["restart", "crash", "touched", "restart and touched"])
async def test_a_promise_newer_than_the_last_sync_is_not_ended_by_it(host: CacheHost, event: str) -> None:
    """Only a sync ends a promise; a look at the snapshot, also the first one after a start, is none.

    A pod comes again and goes before the controller has told of it: the last sync names the one before it.
    """
    host.write(VM)
    await host.sync(WEB)
    again = replace(WEB, pod_uid="uid-again")
    assert await host.retain(again) is RetainOutcome.RETAINED
    if "restart" in event:
        await host.restart()
    if event == "crash":
        await host.crash()
    if "touched" in event:
        (host.root / VM / "memory-ranges").write_bytes(b"m" * 9000)
        await host.cache.look(everything=True)
    assert await host.state(VM) == "IN_USE"
    await host.sync()
    assert await host.state(VM) == "RETAINED"
    assert await host.purge(again) == {VM: PurgeOutcome.SKIPPED_RETAINED}


async def test_a_snapshot_that_comes_back_hears_of_the_owners_that_were_synced_meanwhile(host: CacheHost) -> None:
    """The next pod of the name claims it, so what the one before was promised has ended."""
    host.write(VM)
    await host.retain(WEB)
    (host.root / VM).rename(host.base / "away")
    await host.sync(replace(WEB, pod_uid="uid-again"))
    (host.base / "away").rename(host.root / VM)
    await host.cache.look()
    await host.sync()
    assert await host.state(VM) == "UNCLAIMED"
