"""When the wall clock is believed, and whose word counts."""

import pytest

from agent.snapshots.authority import PERSON, Authority, Caller, admit, order_sync
from agent.snapshots.clock import ClockWatch, HostClock, first_watch
from agent.snapshots.errors import (
    InvalidFieldError,
    StaleControllerEpochError,
    StaleOwnerSyncError,
    WrongClusterError,
)
from agent.snapshots.model import PERSON_EPOCH, SyncPoint
from tests.agent.snapshots.caching import DAY, HOUR, START

WATCH = ClockWatch(START, 100.0)


@pytest.mark.parametrize(
    ("wall_step", "passed", "in_doubt"),
    [
        (0, 10 * DAY, False),
        (299, HOUR, False),
        (-299, HOUR, False),
        (301, HOUR, True),
        (-301, HOUR, True),
        (365 * DAY, 1, True),
        (-HOUR, 1, True),
    ],
)
def test_a_step_of_more_than_five_minutes_is_doubted(wall_step: float, passed: float, in_doubt: bool) -> None:
    """F30."""
    assert WATCH.look(START + passed + wall_step, 100 + passed).in_doubt is in_doubt


def test_doubt_stays_when_the_clock_comes_back_and_ends_by_the_controllers_time() -> None:
    """F30: a year forward and back within a minute has stamped records in between."""
    watch = WATCH.look(START + 365 * DAY, 101).look(START + 60, 160)
    assert watch.in_doubt
    assert watch.moment(START + 60).clock_in_doubt
    assert watch.compare(START + 60, 160, START + 900).in_doubt
    confirmed = watch.compare(START + 60, 160, START + 61)
    assert not confirmed.in_doubt
    assert not confirmed.look(START + 120, 220).in_doubt


def test_a_controller_whose_time_differs_makes_doubt() -> None:
    assert WATCH.compare(START, 100, START + 301).in_doubt
    assert not WATCH.compare(START, 100, START - 299).in_doubt


@pytest.mark.parametrize(
    ("last_write", "was_in_doubt", "in_doubt"),
    [
        (None, False, False),
        (START - DAY, False, False),
        (START - DAY - 1, False, True),
        (START + 299, False, False),
        (START + 301, False, True),
        (START, True, True),
    ],
)
def test_the_time_at_start_is_compared_with_the_ledgers_last_write(
    last_write: float | None, was_in_doubt: bool, in_doubt: bool
) -> None:
    assert first_watch(START, 5.0, last_write, was_in_doubt=was_in_doubt).in_doubt is in_doubt


def test_the_hosts_clocks_run() -> None:
    clock = HostClock()
    assert clock.boot() <= clock.boot()
    assert clock.wall() > START


KNOWN = Authority("c1", 5, SyncPoint(5, 9))


@pytest.mark.parametrize(
    ("known", "caller", "keeping", "after"),
    [
        (Authority(), Caller(0, "c1"), False, Authority("c1", 0)),
        (Authority(), PERSON, False, Authority()),
        (KNOWN, PERSON, False, KNOWN),
        (KNOWN, Caller(5, "c1"), False, KNOWN),
        (KNOWN, Caller(6, "c1"), False, Authority("c1", 6, SyncPoint(5, 9))),
        (KNOWN, Caller(4, "c1"), True, KNOWN),
        (KNOWN, Caller(None, "c1"), False, KNOWN),
        # Keeping harms nobody, and proves nothing about who called.
        (Authority(), Caller(5, ""), True, Authority()),
    ],
)
def test_who_is_admitted(known: Authority, caller: Caller, keeping: bool, after: Authority) -> None:
    """F33."""
    assert admit(known, caller, keeping=keeping) == after


@pytest.mark.parametrize(
    ("caller", "keeping", "error"),
    [
        (Caller(4, "c1"), False, StaleControllerEpochError),
        (Caller(5, "c2"), False, WrongClusterError),
        (Caller(9, "c2"), True, WrongClusterError),
        (Caller(5, ""), False, WrongClusterError),
        (Caller(None, "c2"), False, WrongClusterError),
        (Caller(-1, "c1"), True, InvalidFieldError),
    ],
)
def test_who_is_refused(caller: Caller, keeping: bool, error: type[Exception]) -> None:
    """F33, F34."""
    with pytest.raises(error):
        admit(KNOWN, caller, keeping=keeping)


@pytest.mark.parametrize("known", [Authority(), Authority("", 5)])
def test_a_controller_that_does_not_tell_its_cluster_changes_nothing(known: Authority) -> None:
    """F33: nobody could refuse the wrong one afterwards."""
    with pytest.raises(InvalidFieldError) as refused:
        admit(known, Caller(6, ""))
    assert refused.value.field == "cluster_id"


def test_syncs_are_ordered_by_epoch_then_revision() -> None:
    assert order_sync(KNOWN, Caller(5, "c1"), 10) == SyncPoint(5, 10)
    assert order_sync(KNOWN, Caller(5, "c1"), 9) == SyncPoint(5, 9)
    assert order_sync(KNOWN, Caller(6, "c1"), 1) == SyncPoint(6, 1)
    assert order_sync(Authority(), PERSON, 1) == SyncPoint(PERSON_EPOCH, 1)
    with pytest.raises(StaleOwnerSyncError):
        order_sync(KNOWN, Caller(5, "c1"), 8)
    with pytest.raises(StaleControllerEpochError):
        order_sync(KNOWN, PERSON, 99)
    with pytest.raises(InvalidFieldError):
        order_sync(Authority(), PERSON, 0)
