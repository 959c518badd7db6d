"""The brake lets a hundred go in ten minutes, and the rest wait for time or a person."""

from controller.deletion.brake import Brake


def test_holds_what_is_too_much_and_lets_time_free_it() -> None:
    brake = Brake(limit=3, window_seconds=600)
    assert [brake.take(f"p{n}", now=float(n)) for n in range(5)] == [True, True, True, False, False]
    assert brake.waiting == 2
    assert brake.seconds_until_free(10.0) == 590.0
    assert not brake.take("p3", 599.0)
    assert brake.take("p3", 600.0)
    assert not brake.take("p4", 600.0)
    assert brake.take("p4", 601.0)
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
