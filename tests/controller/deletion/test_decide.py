"""The decision table: one table of cases for all rows, and the promises that hold whatever the question."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.snapshot_words import Owner, PurgeReason, ReleaseReason, RetainReason
from controller.deletion.decide import DISRUPTION_TTL_SECONDS, RENEW_BELOW_SECONDS, decide
from controller.deletion.model import (
    NO_SET,
    Action,
    Decision,
    LivePod,
    NamesakeFacts,
    Question,
    RetentionFacts,
    SeenDeletion,
    SetFacts,
    SetStanding,
)
from controller.deletion.words import is_touchable, is_true, last_version

HERE, THERE = "host-1", "host-2"
OWNER = Owner("uid-1", "shop", "web-0", "vk-shop-web-0", managed=True, set_name="web", set_uid="set-1")
BARE = replace(OWNER, set_name="", set_uid="")
UNMANAGED = replace(OWNER, managed=False)
FOREIGN = replace(OWNER, vm_name="vk-other-db-0")
IMAGE = replace(OWNER, vm_name="debian-12")
SIBLING = replace(OWNER, pod_name="web-1", vm_name="vk-shop-web-1")

NOBODY = NamesakeFacts(confirmed=True)
PLAIN = SeenDeletion(keep=False, disrupted=False)
FLAGGED = SeenDeletion(keep=True, disrupted=False)
EVICTED = SeenDeletion(keep=False, disrupted=True)
KEPT = RetentionFacts(RetainReason.SEAT_RELEASE)
KEPT_DISRUPTED = RetentionFacts(RetainReason.DISRUPTION, expires_in_seconds=DISRUPTION_TTL_SECONDS - 1)
KEPT_DISRUPTED_LONG_AGO = RetentionFacts(RetainReason.DISRUPTION, expires_in_seconds=RENEW_BELOW_SECONDS - 1)
REQUESTED = RetentionFacts(RetainReason.REQUESTED)

RUNNING_SET = SetFacts(SetStanding.EXISTS, confirmed=True)
SUSPENDED_HERE = replace(RUNNING_SET, suspended=True, hibernated_on_node=HERE)
SUSPENDED_THERE = replace(RUNNING_SET, suspended=True, hibernated_on_node=THERE)
SUSPENDED_NOWHERE = replace(RUNNING_SET, suspended=True)
DELETING_SET = replace(RUNNING_SET, deleting=True)
GONE_SET = SetFacts(SetStanding.GONE, confirmed=True)
MISSING_SET = SetFacts(SetStanding.MISSING)
UNREAD_SET = SetFacts(SetStanding.UNREAD)
NOT_SERVED = SetFacts(SetStanding.NOT_SERVED, confirmed=True)


def pod(node: str = THERE, **changes: object) -> LivePod:
    """The next pod of the owner's name, bound to another node unless told otherwise."""
    base = LivePod("uid-2", "shop", "web-0", node, "vk-shop-web-0")
    return replace(base, **changes)  # type: ignore[arg-type]


def next_pod(node: str = THERE, **changes: object) -> NamesakeFacts:
    """The same as the answer of an uncached read."""
    return NamesakeFacts(confirmed=True, pod=pod(node, **changes))


def ask(owner: Owner = OWNER, **changes: object) -> Question:
    """A question about a deletion that was not seen, with everything read and nobody claiming."""
    cocoon_set = NO_SET if not owner.set_uid else RUNNING_SET
    base = Question(HERE, owner, pods_synced=True, namesake=NOBODY, cocoon_set=cocoon_set)
    return replace(base, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    question: Question
    row: int
    action: Action
    release: ReleaseReason | None = None
    purge: PurgeReason | None = None
    retain: RetainReason | None = None


WAIT, CONFIRM, NOTHING = Action.WAIT, Action.CONFIRM, Action.NOTHING
RETAIN, RELEASE, PURGE = Action.RETAIN, Action.RELEASE, Action.PURGE
SEAT, DISRUPTION = RetainReason.SEAT_RELEASE, RetainReason.DISRUPTION
WOKEN, SUPERSEDED, SET_GONE = ReleaseReason.WOKEN_ELSEWHERE, ReleaseReason.SUPERSEDED, ReleaseReason.SET_DELETED
TEARDOWN, P_SET, P_WOKEN = PurgeReason.TEARDOWN, PurgeReason.SET_DELETED, PurgeReason.WOKEN_ELSEWHERE
WOKE: dict[str, Any] = {"restores": True, "vm_live": True}

CASES = (
    # 1: nothing is decided from half a picture.
    Case("pods not listed", ask(pods_synced=False, seen=PLAIN), 1, WAIT),
    Case("pods not listed, flag seen", ask(pods_synced=False, seen=FLAGGED), 1, WAIT),
    Case("set unread, deletion seen", ask(seen=PLAIN, cocoon_set=UNREAD_SET), 1, WAIT),
    Case("set unread, deletion unseen", ask(cocoon_set=UNREAD_SET), 1, WAIT),
    Case("set unread, kept", ask(retention=KEPT, cocoon_set=UNREAD_SET), 1, WAIT),
    # Keeping needs no set: it does not wait for a list that fails.
    Case("set unread, flag seen", ask(seen=FLAGGED, cocoon_set=UNREAD_SET), 8, RETAIN, retain=SEAT),
    Case("set unread, eviction seen", ask(seen=EVICTED, cocoon_set=UNREAD_SET), 10, RETAIN, retain=DISRUPTION),
    # Nothing is removed or released while the watch is broken; keeping does not wait.
    Case("watch broken, deletion seen", ask(seen=PLAIN, pods_current=False), 1, WAIT),
    Case("watch broken, set gone", ask(cocoon_set=GONE_SET, pods_current=False), 1, WAIT),
    Case("watch broken, kept and superseded", ask(retention=KEPT, claimants=(pod(),), namesake=next_pod(),
         pods_current=False), 1, WAIT),
    Case("watch broken, flag seen", ask(seen=FLAGGED, pods_current=False), 8, RETAIN, retain=SEAT),
    # 2: not ours.
    Case("never scheduled", ask(node="", seen=FLAGGED), 2, NOTHING),
    Case("unmanaged", ask(UNMANAGED, seen=PLAIN), 2, NOTHING),
    Case("unmanaged, evicted", ask(UNMANAGED, seen=EVICTED), 2, NOTHING),
    Case("unmanaged, set gone", ask(UNMANAGED, cocoon_set=GONE_SET), 2, NOTHING),
    Case("another tenant's VM name", ask(FOREIGN, seen=PLAIN), 2, NOTHING),
    Case("an image's name", ask(IMAGE, seen=PLAIN), 2, NOTHING),
    Case("an image's name, trusted by mistake", ask(IMAGE, seen=PLAIN, trusted_prefixes=("debian",)), 2, NOTHING),
    Case("trusted name", ask(FOREIGN, seen=PLAIN, trusted_prefixes=("vk-other-",)), 11, PURGE, purge=TEARDOWN),
    Case("unmanaged with flag", ask(UNMANAGED, seen=FLAGGED), 8, RETAIN, retain=SEAT),
    Case("foreign with flag", ask(FOREIGN, seen=FLAGGED), 8, RETAIN, retain=SEAT),
    Case("impossible name", ask(replace(OWNER, vm_name="x" * 300), seen=PLAIN), 2, NOTHING),
    Case("unicode name", ask(replace(OWNER, vm_name="vk-shop-wëb-0"), seen=PLAIN), 2, NOTHING),
    Case("empty name", ask(replace(OWNER, vm_name=""), seen=PLAIN), 2, NOTHING),
    # 3: somebody here claims it.
    Case("recreated here", ask(seen=PLAIN, claimants=(pod(HERE),), namesake=next_pod(HERE)), 3, NOTHING),
    Case("recreated here, from our copy", ask(seen=FLAGGED, claimants=(pod(HERE),), namesake=NamesakeFacts()),
         3, NOTHING),
    Case("another pod here claims it", ask(seen=PLAIN, claimants=(pod(HERE, namespace="x", name="y"),)), 3, NOTHING),
    Case("here, only in the uncached read", ask(seen=PLAIN, namesake=next_pod(HERE)), 3, NOTHING),
    Case("prefix is no claim", ask(seen=PLAIN, claimants=(pod(HERE, name="web-0-0", vm_name="vk-shop-web-0-0"),)),
         11, PURGE, purge=TEARDOWN),
    # 4: woken elsewhere.
    Case("woken elsewhere", ask(retention=KEPT, namesake=next_pod(**WOKE)), 4, PURGE, WOKEN, P_WOKEN),
    Case("woken elsewhere, not kept", ask(namesake=next_pod(**WOKE)), 4, PURGE, None, P_WOKEN),
    Case("woken elsewhere, seen", ask(seen=PLAIN, namesake=next_pod(**WOKE)), 4, PURGE, None, P_WOKEN),
    Case("woken elsewhere, from our copy", ask(retention=KEPT, claimants=(pod(**WOKE),), namesake=NamesakeFacts()),
         4, CONFIRM),
    Case("woken elsewhere, unmanaged", ask(UNMANAGED, retention=KEPT, namesake=next_pod(**WOKE)), 4, RELEASE, WOKEN),
    Case("woken elsewhere, set unread", ask(retention=KEPT, namesake=next_pod(**WOKE), cocoon_set=UNREAD_SET),
         1, WAIT),
    # 5: the name is used elsewhere.
    Case("waking elsewhere", ask(retention=KEPT, namesake=next_pod(restores=True)), 5, RELEASE, SUPERSEDED),
    Case("fresh boot elsewhere", ask(retention=KEPT, namesake=next_pod(vm_live=True)), 5, RELEASE, SUPERSEDED),
    Case("elsewhere, not kept", ask(namesake=next_pod()), 5, NOTHING),
    Case("elsewhere, flag seen", ask(seen=FLAGGED, namesake=next_pod()), 5, NOTHING),
    Case("elsewhere, after a disruption", ask(retention=KEPT_DISRUPTED, namesake=next_pod()), 5, RELEASE, SUPERSEDED),
    Case("elsewhere, from our copy", ask(retention=KEPT, claimants=(pod(),), namesake=NamesakeFacts()), 5, CONFIRM),
    Case("elsewhere, gone meanwhile", ask(retention=KEPT, claimants=(pod(),)), 8, NOTHING),
    Case("elsewhere by another pod's annotation",
         ask(retention=KEPT, claimants=(pod(namespace="evil", name="thief", **WOKE),)), 8, NOTHING),
    Case("elsewhere with another VM name", ask(retention=KEPT, namesake=next_pod(vm_name="vk-x-y")), 8, NOTHING),
    # 6: kept, but its set is gone.
    Case("kept, set gone", ask(retention=KEPT, cocoon_set=GONE_SET), 6, PURGE, SET_GONE, P_SET),
    Case("kept after disruption, set gone", ask(retention=KEPT_DISRUPTED, cocoon_set=GONE_SET), 6, PURGE, SET_GONE,
         P_SET),
    Case("kept, set not in our copy", ask(retention=KEPT, cocoon_set=MISSING_SET), 6, CONFIRM),
    Case("kept, set gone, pod unread", ask(retention=KEPT, cocoon_set=GONE_SET, namesake=NamesakeFacts()), 6, CONFIRM),
    Case("kept, set gone, pod pending", ask(retention=KEPT, cocoon_set=GONE_SET, namesake=next_pod("")), 6, WAIT),
    Case("kept, set being deleted", ask(retention=KEPT, cocoon_set=DELETING_SET), 8, NOTHING),
    Case("kept, sets not served", ask(retention=KEPT, cocoon_set=NOT_SERVED), 8, NOTHING),
    Case("kept for a bare pod", ask(BARE, retention=KEPT), 8, NOTHING),
    Case("kept for an unmanaged one, set gone", ask(UNMANAGED, retention=KEPT, cocoon_set=GONE_SET), 6, RELEASE,
         SET_GONE),
    # 7: the set hibernated elsewhere since.
    Case("kept, stash elsewhere", ask(retention=KEPT, cocoon_set=SUSPENDED_THERE), 7, PURGE, WOKEN, P_WOKEN),
    Case("kept, stash elsewhere, from our copy",
         ask(retention=KEPT, cocoon_set=replace(SUSPENDED_THERE, confirmed=False)), 7, CONFIRM),
    Case("kept, no stash", ask(retention=KEPT, cocoon_set=SUSPENDED_NOWHERE), 8, NOTHING),
    Case("kept, stash elsewhere but not suspended",
         ask(retention=KEPT, cocoon_set=replace(SUSPENDED_THERE, suspended=False)), 8, NOTHING),
    Case("kept for a sub-agent, stash elsewhere", ask(SIBLING, retention=KEPT, cocoon_set=SUSPENDED_THERE), 8, NOTHING),
    # 8: the flag.
    Case("flag seen", ask(seen=FLAGGED), 8, RETAIN, retain=SEAT),
    Case("flag seen, bare pod", ask(BARE, seen=FLAGGED), 8, RETAIN, retain=SEAT),
    Case("flag seen, set gone", ask(seen=FLAGGED, cocoon_set=GONE_SET), 8, RETAIN, retain=SEAT),
    Case("flag and eviction seen", ask(seen=SeenDeletion(True, True)), 8, RETAIN, retain=SEAT),
    Case("flag seen, kept for a disruption", ask(seen=FLAGGED, retention=KEPT_DISRUPTED), 8, RETAIN, retain=SEAT),
    Case("kept by the agent already", ask(seen=FLAGGED, retention=KEPT), 8, NOTHING),
    Case("kept, found again", ask(retention=KEPT), 8, NOTHING),
    Case("kept, but another snapshot of it is not", ask(retention=replace(KEPT, whole=False)), 8, RETAIN, retain=SEAT),
    Case("pods pending do not matter for keeping", ask(seen=FLAGGED, namesake=next_pod("")), 8, RETAIN, retain=SEAT),
    # 9: the flag was lost.
    Case("suspended here, seen", ask(seen=PLAIN, cocoon_set=SUSPENDED_HERE), 9, RETAIN, retain=SEAT),
    Case("suspended here, unseen", ask(cocoon_set=SUSPENDED_HERE), 9, RETAIN, retain=SEAT),
    Case("suspended here, disrupted", ask(retention=KEPT_DISRUPTED, cocoon_set=SUSPENDED_HERE), 9, RETAIN, retain=SEAT),
    Case("suspended elsewhere, seen", ask(seen=PLAIN, cocoon_set=SUSPENDED_THERE), 11, PURGE, purge=TEARDOWN),
    # 10: disrupted.
    Case("evicted", ask(seen=EVICTED), 10, RETAIN, retain=DISRUPTION),
    Case("evicted, bare pod", ask(BARE, seen=EVICTED), 10, RETAIN, retain=DISRUPTION),
    Case("evicted, kept already", ask(retention=KEPT_DISRUPTED), 10, NOTHING),
    Case("evicted, another snapshot is not kept", ask(retention=replace(KEPT_DISRUPTED, whole=False)), 10, RETAIN,
         retain=DISRUPTION),
    Case("to be renewed, pod unread", ask(retention=KEPT_DISRUPTED_LONG_AGO, namesake=NamesakeFacts()), 10, CONFIRM),
    Case("renewed: set exists", ask(retention=KEPT_DISRUPTED_LONG_AGO), 10, RETAIN, retain=DISRUPTION),
    Case("renewed: pod pending", ask(BARE, retention=KEPT_DISRUPTED_LONG_AGO, namesake=next_pod("")), 10, RETAIN,
         retain=DISRUPTION),
    Case("not renewed: nobody waits", ask(BARE, retention=KEPT_DISRUPTED_LONG_AGO), 10, NOTHING),
    Case("not renewed: bound with another VM name",
         ask(retention=KEPT_DISRUPTED_LONG_AGO, namesake=next_pod(vm_name="vk-x-y")), 10, NOTHING),
    Case("renewal waits for the set", ask(retention=KEPT_DISRUPTED_LONG_AGO, cocoon_set=UNREAD_SET), 1, WAIT),
    # 11: teardown.
    Case("torn down", ask(seen=PLAIN), 11, PURGE, purge=TEARDOWN),
    Case("torn down, bare pod", ask(BARE, seen=PLAIN), 11, PURGE, purge=TEARDOWN),
    Case("torn down, set gone", ask(seen=PLAIN, cocoon_set=GONE_SET), 11, PURGE, purge=TEARDOWN),
    Case("torn down, sets not served", ask(seen=PLAIN, cocoon_set=NOT_SERVED), 11, PURGE, purge=TEARDOWN),
    Case("torn down, pod unread", ask(seen=PLAIN, namesake=NamesakeFacts()), 11, CONFIRM),
    Case("torn down, set from our copy", ask(seen=PLAIN, cocoon_set=replace(RUNNING_SET, confirmed=False)), 11,
         CONFIRM),
    Case("torn down, next pod pending", ask(seen=PLAIN, namesake=next_pod("")), 11, WAIT),
    Case("torn down, same UID not bound", ask(seen=PLAIN, namesake=next_pod("", uid="uid-1")), 11, WAIT),
    Case("torn down, next pod here with another VM name",
         ask(seen=PLAIN, namesake=next_pod(HERE, vm_name="vk-x-y")), 11, WAIT),
    # 12 and 13: nobody saw it.
    Case("unseen, set gone", ask(cocoon_set=GONE_SET), 12, PURGE, purge=P_SET),
    Case("unseen, set being deleted", ask(cocoon_set=DELETING_SET), 12, PURGE, purge=P_SET),
    Case("unseen, set not in our copy", ask(cocoon_set=MISSING_SET), 12, CONFIRM),
    Case("unseen, missing is no proof", ask(cocoon_set=replace(MISSING_SET, confirmed=True)), 12, CONFIRM),
    Case("unseen, set exists", ask(), 13, NOTHING),
    Case("unseen, bare pod", ask(BARE), 13, NOTHING),
    Case("unseen, sets not served", ask(cocoon_set=NOT_SERVED), 13, NOTHING),
    # A person's request outlives what we know.
    Case("requested, set gone", ask(retention=REQUESTED, cocoon_set=GONE_SET), 13, NOTHING),
    Case("requested, woken elsewhere", ask(retention=REQUESTED, namesake=next_pod(**WOKE)), 13, NOTHING),
    Case("requested, torn down", ask(retention=REQUESTED, seen=PLAIN), 13, NOTHING),
    Case("requested, flag seen", ask(retention=REQUESTED, seen=FLAGGED), 8, RETAIN, retain=SEAT),
)  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_table(case: Case) -> None:
    """The table of the contract, row by row (F16, F18, F19, F29, F31, F32, F35)."""
    decision = decide(case.question)
    found = (decision.row, decision.action, decision.release, decision.purge, decision.retain)
    assert found == (case.row, case.action, case.release, case.purge, case.retain), decision.why


def test_every_row_has_cases() -> None:
    assert {case.row for case in CASES} == set(range(1, 14))


def test_disruption_is_kept_for_a_day() -> None:
    assert decide(ask(seen=EVICTED)).ttl_seconds == 24 * 3600
    assert decide(ask(seen=FLAGGED)).ttl_seconds is None


def test_purges_of_unseen_deletions_say_so() -> None:
    assert not decide(ask(seen=PLAIN)).unseen
    assert decide(ask(cocoon_set=GONE_SET)).unseen
    assert decide(ask(retention=KEPT, cocoon_set=GONE_SET)).unseen


@pytest.mark.parametrize(
    "value", ["True", "TRUE", "1", "", " true", "true ", "yes", None, True, 1, ["true"], "\uff54rue"]
)
def test_only_true_is_true(value: object) -> None:
    """F19: `"true"` is the only true."""
    assert not is_true(value)
    assert is_true("true")


@pytest.mark.parametrize(
    ("versions", "disrupted"),
    [
        pytest.param([("live", True), ("terminating", True)], True, id="evicted"),
        pytest.param([("live", True), ("terminating", False)], True, id="condition gone from the last version"),
        pytest.param([("live", False), ("terminating", True)], False, id="condition added after an owner's delete"),
        pytest.param([("live", True), ("live", False), ("terminating", True)], False, id="taken back before"),
        pytest.param([("terminating", True)], True, id="only seen terminating"),
        pytest.param([("terminating", False), ("terminating", True)], True, id="any version when none was live"),
        pytest.param([("terminating", True), ("terminating", False)], True, id="any version, the first"),
        pytest.param([("terminating", False), ("terminating", False)], False, id="never"),
        pytest.param([("live", False), ("terminating", False), ("terminating", True)], False, id="late"),
    ],
)
def test_disruption_of_the_last_version(versions: list[tuple[str, bool]], *, disrupted: bool) -> None:
    said: SeenDeletion | None = None
    live_seen = False
    for kind, condition in versions:
        terminating = kind == "terminating"
        said = last_version(said, live_seen=live_seen, keep=False, disrupted=condition, terminating=terminating)
        live_seen = live_seen or not terminating
    assert said is not None
    assert said.disrupted is disrupted


def test_flag_of_the_last_version_counts() -> None:
    """F19: set, then removed while terminating; and the other way round."""
    flagged = last_version(None, live_seen=False, keep=True, disrupted=False, terminating=False)
    assert not last_version(flagged, live_seen=True, keep=False, disrupted=False, terminating=True).keep
    plain = last_version(None, live_seen=False, keep=False, disrupted=False, terminating=False)
    assert last_version(plain, live_seen=True, keep=True, disrupted=False, terminating=True).keep


_nodes = st.sampled_from(["", HERE, THERE])
_vm_names = st.sampled_from([OWNER.vm_name, "vk-shop-web-0-0", "debian-12", ""])
_pods = st.builds(
    LivePod,
    uid=st.sampled_from(["uid-1", "uid-2"]),
    namespace=st.sampled_from(["shop", "evil"]),
    name=st.sampled_from(["web-0", "thief"]),
    node=_nodes,
    vm_name=_vm_names,
    restores=st.booleans(),
    vm_live=st.booleans(),
)
_namesakes = st.builds(pod, _nodes, vm_name=_vm_names, restores=st.booleans(), vm_live=st.booleans())
_sets = st.builds(SetFacts, st.sampled_from(SetStanding), st.booleans(), st.booleans(), st.booleans(), _nodes)
_questions = st.builds(
    Question,
    node=_nodes,
    owner=st.builds(
        replace,
        st.sampled_from([OWNER, BARE, SIBLING]),
        managed=st.booleans(),
        vm_name=_vm_names,
    ),
    pods_synced=st.booleans(),
    claimants=st.lists(_pods, max_size=3).map(tuple),
    namesake=st.builds(NamesakeFacts, st.booleans(), st.none() | _namesakes),
    cocoon_set=_sets,
    retention=st.none()
    | st.builds(
        RetentionFacts, st.sampled_from(RetainReason), st.none() | st.floats(-1e6, 1e6, allow_nan=False), st.booleans()
    ),
    seen=st.none() | st.builds(SeenDeletion, st.booleans(), st.booleans()),
)


def _removes(decision: Decision) -> bool:
    return decision.action in (Action.RELEASE, Action.PURGE)


@given(_questions)
def test_never_removes_on_what_is_not_certain(question: Question) -> None:
    """F17, F35: a list not synced, a read not made or failed, or an API not served never ends in a removal."""
    decision = decide(question)
    if not _removes(decision):
        return
    assert question.pods_synced
    assert question.namesake.confirmed
    assert question.cocoon_set.standing is not SetStanding.UNREAD
    if decision.action is Action.PURGE:
        assert question.cocoon_set.confirmed
        assert question.cocoon_set.standing is not SetStanding.MISSING
    if decision.purge is PurgeReason.SET_DELETED:
        assert question.cocoon_set.standing in (SetStanding.GONE, SetStanding.EXISTS)


@given(_questions)
def test_never_removes_what_somebody_may_need(question: Question) -> None:
    """F29, F31, F32: neither another's, nor what a pod here or a pod not yet bound will claim."""
    decision = decide(question)
    if not _removes(decision):
        return
    assert all(pod.vm_name != question.owner.vm_name or pod.node != question.node or
               (pod.namespace, pod.name) == ("shop", question.owner.pod_name)
               for pod in question.claimants)  # fmt: skip
    next_one = question.namesake.pod
    assert next_one is None or next_one.node not in ("", question.node)
    assert question.retention is None or question.retention.reason is not RetainReason.REQUESTED
    if decision.action is Action.PURGE:
        assert is_touchable(question.owner, ())


@given(_questions)
def test_what_was_asked_to_be_kept_is_kept(question: Question) -> None:
    """A flag or a disruption leads to a purge only when the VM or its set has moved on."""
    decision = decide(question)
    kept = question.seen is not None and (question.seen.keep or question.seen.disrupted)
    kept = kept or question.retention is not None
    if kept and decision.action is Action.PURGE:
        assert decision.row in (4, 6, 7)


@given(_questions)
def test_decision_is_whole(question: Question) -> None:
    """What an action needs is there, and a promise is always ended before its copy is purged."""
    decision = decide(question)
    assert decision.why
    assert (decision.purge is not None) == (decision.action is Action.PURGE)
    assert (decision.retain is not None) == (decision.action is Action.RETAIN)
    if decision.action is Action.PURGE:
        assert (decision.release is not None) == (question.retention is not None)
    if decision.action is Action.RELEASE:
        assert decision.release is not None
        assert question.retention is not None


@given(_questions)
def test_uncached_reads_settle_what_waits_for_them(question: Question) -> None:
    """CONFIRM is answered by reads: with both made, the next answer is another one."""
    if decide(question).action is not Action.CONFIRM:
        return
    standing = question.cocoon_set.standing
    if standing is SetStanding.MISSING:
        standing = SetStanding.GONE
    read = replace(
        question,
        namesake=replace(question.namesake, confirmed=True),
        cocoon_set=replace(question.cocoon_set, standing=standing, confirmed=True),
    )
    assert decide(read).action is not Action.CONFIRM
