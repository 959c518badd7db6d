"""Times that were taken while the clock was in doubt never end anything, however the doubt ends."""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import replace

import pytest

from agent.snapshots.collection import Policy
from agent.snapshots.errors import LedgerUnavailableError
from agent.snapshots.ledger import Ledger
from agent.snapshots.ledger_rows import LedgerChange
from common.snapshot_words import RetainOutcome, RetainReason
from tests.agent.snapshots.caching import DAY, HOUR, CacheHost, pod

WEB = pod("ns", "web")
VM = WEB.vm_name
YEAR = 365 * DAY


async def confirm_by_sync(host: CacheHost) -> None:
    await host.sync()


async def confirm_by_the_running_agent(host: CacheHost) -> None:
    await host.cache.confirm_clock()


async def confirm_offline(host: CacheHost) -> None:
    """As `accept clock` does on a stopped agent."""
    await host.cache.close()
    ledger = Ledger(str(host.state_dir))
    state = ledger.open().state
    believed = replace(state, clock_in_doubt=False, last_write_at=host.clock.wall(), boot_id="", booted_at=None)
    ledger.commit(LedgerChange(state=believed))
    ledger.close()
    await host.restart()


async def fail_to_confirm(host: CacheHost) -> None:
    """A sync whose commit fails."""
    ledger = host.cache.core.journal.ledger
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*_args: object, **_options: object) -> None:
            raise LedgerUnavailableError("the disk is away")

        patch.setattr(ledger, "commit", refuse)
        with pytest.raises(LedgerUnavailableError):
            await host.sync()


ENDS = [confirm_by_sync, confirm_by_the_running_agent, confirm_offline, fail_to_confirm]


async def doubt(host: CacheHost) -> None:
    """Set the clock back by a year and let the cache notice."""
    await host.sync()
    host.clock.step(-YEAR)
    await host.cache.settle()


@pytest.mark.parametrize("end", ENDS)
async def test_a_promise_made_in_doubt_lasts_as_long_as_was_promised(
    host: CacheHost, end: Callable[[CacheHost], Awaitable[None]]
) -> None:
    """F30: its end, a year in the past by a clock that is right again, does not count."""
    host.write(VM)
    await doubt(host)
    assert await host.retain(WEB, ttl_seconds=DAY, reason=RetainReason.DISRUPTION) is RetainOutcome.RETAINED
    host.clock.step(YEAR)
    await end(host)
    await host.cache.settle()
    assert await host.state(VM) == "RETAINED"
    await host.sync()
    host.clock.pass_time(DAY - 1)
    await host.cache.settle()
    assert await host.state(VM) == "RETAINED"


@pytest.mark.parametrize("is_away", [False, True], ids=["there", "away meanwhile"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_grace_period_begun_in_doubt_starts_anew(
    host: CacheHost, end: Callable[[CacheHost], Awaitable[None]], is_away: bool
) -> None:
    """F30."""
    await doubt(host)
    host.write(VM)
    await host.cache.look()
    away = host.base / "away"
    if is_away:
        (host.root / VM).rename(away)
        await host.cache.look()
    host.clock.step(YEAR)
    await end(host)
    if is_away:
        away.rename(host.root / VM)
    await host.sync()
    host.clock.pass_time(23 * HOUR)
    await host.sync()
    await host.collect(Policy(keep_at_most=0))
    assert host.on_disk(VM)
    host.clock.pass_time(2 * HOUR)
    await host.sync()
    await host.collect(Policy(keep_at_most=0))
    assert not host.on_disk(VM)


async def test_whoever_brings_a_snapshot_back_has_the_grace_period_again(host: CacheHost) -> None:
    host.write(VM)
    await host.sync()
    (host.root / VM).rename(host.base / "away")
    await host.cache.look()
    host.clock.pass_time(30 * DAY)
    (host.base / "away").rename(host.root / VM)
    await host.sync()
    await host.collect(Policy(keep_at_most=0))
    assert host.on_disk(VM)


@pytest.mark.parametrize(
    ("step", "reboots", "in_doubt"),
    [
        (2 * HOUR, False, True),
        (-2 * HOUR, False, True),
        (23 * HOUR, False, True),
        (240.0, False, False),
        (-240.0, False, False),
        # After a boot nothing tells a step from time that has passed, but for what passed since the last write.
        (2 * HOUR, True, False),
        (25 * HOUR, True, True),
    ],
)
async def test_a_step_while_the_agent_was_stopped_is_noticed(
    host: CacheHost, step: float, reboots: bool, in_doubt: bool
) -> None:
    """F30: the boot-time clock went on meanwhile, and the ledger knows where it was."""
    host.write(VM)
    await host.sync()
    await host.retain(WEB, ttl_seconds=HOUR)
    await host.cache.close()
    host.clock.pass_time(60)
    host.clock.step(step)
    if reboots:
        host.clock.reboot()
    await host.restart()
    assert host.cache.core.moment().clock_in_doubt is in_doubt
    await host.cache.settle()
    assert await host.state(VM) == ("RETAINED" if in_doubt or step < HOUR else "UNCLAIMED")


async def test_a_step_that_was_confirmed_is_not_doubted_again(host: CacheHost) -> None:
    await host.sync()
    host.clock.step(2 * HOUR)
    await host.cache.settle()
    assert host.cache.core.moment().clock_in_doubt
    await host.cache.confirm_clock()
    await host.restart()
    assert not host.cache.core.moment().clock_in_doubt
    host.clock.step(2 * HOUR)
    await host.sync()
    await host.restart()
    assert not host.cache.core.moment().clock_in_doubt


async def test_a_ledger_that_does_not_know_its_boot_is_read_as_before(host: CacheHost) -> None:
    """As an earlier version wrote it."""
    await host.sync()
    await host.cache.close()
    ledger = Ledger(str(host.state_dir))
    state = ledger.open().state
    assert (state.boot_id, state.booted_at) == ("boot-1", host.clock.wall() - host.clock.boot())
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as connection, connection:
        connection.execute(
            "UPDATE state SET document = CAST(json_remove(CAST(document AS TEXT), '$.boot_id', '$.booted_at') AS BLOB)"
        )
    host.clock.step(2 * HOUR)
    await host.restart()
    assert not host.cache.core.moment().clock_in_doubt
