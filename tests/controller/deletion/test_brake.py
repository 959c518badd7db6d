"""The brake lets a hundred go in ten minutes, and the rest wait for time or a person, whatever crashes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.deletion.brake import Brake
from controller.deletion.brake_record import ANNOTATION, BrakeRecord
from controller.kube.errors import ApiUnavailable


def test_holds_what_is_too_much_and_lets_time_free_it() -> None:
    brake = Brake(limit=3, window_seconds=600)
    assert [brake.take(f"p{n}", now=float(n)) for n in range(5)] == [True, True, True, False, False]
    assert brake.waiting == 2
    assert brake.seconds_until_free(10.0) == 600.0
    assert not brake.take("p3", 609.0)
    assert brake.take("p3", 610.0)
    assert brake.take("p4", 610.0)
    assert brake.waiting == 0


def test_a_person_releases_what_waits_and_nothing_else() -> None:
    brake = Brake(limit=1, window_seconds=600)
    assert brake.take("a", 0.0)
    assert not brake.take("b", 0.0)
    assert brake.release() == 1
    assert not brake.take("c", 0.0)
    assert brake.take("b", 0.0)
    assert not brake.take("b", 0.0)


def test_what_is_not_wanted_any_more_is_forgotten() -> None:
    brake = Brake(limit=0)
    assert not brake.take("a", 0.0)
    brake.forget("a")
    assert brake.waiting == 0
    assert not brake.take("b", 0.0)
    brake.clear()
    assert brake.waiting == 0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=400))
def test_never_more_in_any_window(pauses: list[float]) -> None:
    brake, now, gone = Brake(limit=25, window_seconds=600), 0.0, list[float]()
    for number, pause in enumerate(pauses):
        now += pause
        if brake.take(f"p{number}", now):
            gone.append(now)
    assert all(sum(at - 600 < each <= at for each in gone) <= 25 for at in gone)


class Lease:
    """The annotations of a Lease; `problem` makes writes fail."""

    def __init__(self) -> None:
        self.annotations: dict[str, str] = {}
        self.writes = 0
        self.problem: Exception | None = None

    async def annotate(self, key: str, value: str) -> None:
        """Write one."""
        await asyncio.sleep(0)
        if self.problem is not None:
            raise self.problem
        self.writes += 1
        self.annotations[key] = value


class Times:
    """A monotonic clock that starts anew with each process, and the wall's."""

    def __init__(self, monotonic: float, wall: float) -> None:
        self.monotonic, self.wall = monotonic, wall


def process(lease: Lease, times: Times, limit: int = 100) -> tuple[Brake, BrakeRecord]:
    """Start a controller's brake, as when it begins to lead."""
    brake = Brake(limit=limit, window_seconds=600)
    record = BrakeRecord(brake, lease.annotate, lambda: lease.annotations, lambda: times.monotonic, lambda: times.wall)
    record.learn()
    return brake, record


async def _purge_until_braked(brake: Brake, record: BrakeRecord, times: Times, most: int) -> int:
    count = 0
    while count < most and brake.take(f"p{count}", times.monotonic):
        await record.cover()
        count += 1
    return count


@pytest.mark.parametrize("before_crash", [1, 7, 10, 33])
async def test_a_crash_loop_is_given_no_more(before_crash: int) -> None:
    """Each process purges a few and is killed: in ten minutes all of them together purge a hundred at most."""
    lease, total = Lease(), 0
    for start in range(40):
        times = Times(monotonic=start * 17.0, wall=1_000_000 + start * 5.0)
        brake, record = process(lease, times)
        total += await _purge_until_braked(brake, record, times, before_crash)
    assert total <= 100
    assert total >= 10
    times = Times(monotonic=3.0, wall=1_000_000 + 39 * 5.0 + 611)
    brake, record = process(lease, times)
    assert await _purge_until_braked(brake, record, times, 200) == 100


async def test_one_write_covers_several() -> None:
    lease, times = Lease(), Times(0.0, 1e9)
    brake, record = process(lease, times)
    assert await _purge_until_braked(brake, record, times, 100) == 100
    assert lease.writes == 10


async def test_nothing_goes_on_before_it_is_written() -> None:
    """Several at once: all wait for the same write, and none goes on when it fails."""
    lease, times = Lease(), Times(0.0, 1e9)
    brake, record = process(lease, times)
    lease.problem = ApiUnavailable("cut")
    assert all(brake.take(f"p{n}", 0.0) for n in range(3))
    answers = await asyncio.gather(*(record.cover() for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in answers] == [ApiUnavailable] * 3
    lease.problem = None
    assert await asyncio.gather(*(record.cover() for _ in range(3))) == [True, True, True]
    assert lease.writes == 1
    assert not await record.cover()


@pytest.mark.parametrize("text", ["x", "{}", '[["a", 1]]', "[[1, -5]]", "[[1e9, 3]" + " " * 20_000 + "]"])
async def test_an_unreadable_record_counts_as_everything(text: str) -> None:
    """Whoever writes nonsense into the Lease makes the brake hold, not let go."""
    lease = Lease()
    lease.annotations[ANNOTATION] = text
    brake, _ = process(lease, Times(5.0, 1e9))
    assert not brake.take("p", 5.0)
    assert brake.take("p", 5.0 + 610)


async def test_a_record_from_the_future_counts_from_now() -> None:
    """F30: the clock was set back between two processes."""
    lease = Lease()
    lease.annotations[ANNOTATION] = "[[2000000000, 100]]"
    brake, _ = process(lease, Times(5.0, 1e9))
    assert not brake.take("p", 5.0)
    assert brake.take("p", 5.0 + 610)


async def test_a_lost_record_does_not_take_away_what_is_known() -> None:
    """F33: the Lease was deleted, the process goes on."""
    lease, times = Lease(), Times(0.0, 1e9)
    brake, record = process(lease, times, limit=20)
    assert await _purge_until_braked(brake, record, times, 30) == 20
    lease.annotations.clear()
    record.learn()
    assert not brake.take("p", 1.0)
