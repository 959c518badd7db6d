"""Times that were taken while the clock was in doubt never end anything, however the doubt ends."""

from collections.abc import Awaitable, Callable
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
    ledger.commit(LedgerChange(state=replace(state, clock_in_doubt=False, last_write_at=host.clock.wall())))
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
