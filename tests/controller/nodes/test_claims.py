"""Which agent speaks for a node name."""

from dataclasses import replace

import pytest

from controller.nodes.claims import CONTACT_SECONDS, MACHINE_CHANGED, SECOND_AGENT, Claim, choose
from controller.nodes.report import HostInfo
from tests.controller.nodes.building import report

NOW = 1000.0


def claim(
    machine: str = "m1",
    *,
    since: float = 0.0,
    silent_for: float = 0.0,
    connected: bool = True,
    configured: bool = True,
) -> Claim:
    return Claim(
        since,
        contact_at=NOW - silent_for,
        report=report(host=replace(HostInfo(), machine_id=machine)),
        connected=connected,
        configured=configured,
    )


EXPECTED_ONLY = Claim(0.0)


@pytest.mark.parametrize(
    ("claims", "expected", "current", "speaker", "refused"),
    [
        ({}, "", None, None, {}),
        ({"a": EXPECTED_ONLY}, "", None, None, {}),
        ({"a": claim()}, "", None, "a", {}),
        ({"a": claim()}, "m1", None, "a", {}),
        ({"a": claim("m2")}, "m1", None, None, {"a": MACHINE_CHANGED}),
        ({"a": claim("m2")}, "m1", "a", None, {"a": MACHINE_CHANGED}),
        ({"a": claim("")}, "m1", None, "a", {}),
        ({"a": claim(), "b": claim(since=5)}, "m1", "a", "a", {"b": SECOND_AGENT}),
        ({"a": claim(), "b": claim(since=5)}, "m1", None, "a", {"b": SECOND_AGENT}),
        ({"a": claim(since=5), "b": claim()}, "m1", "a", "a", {"b": SECOND_AGENT}),
        ({"a": claim("m2"), "b": claim(since=5)}, "m1", None, "b", {"a": MACHINE_CHANGED}),
        # The first one spoke for a Node that nobody had yet; then an operator accepted the other machine.
        ({"a": claim("m1"), "b": claim("m2")}, "m2", "a", "b", {"a": MACHINE_CHANGED}),
        # A host changes its address: the old one is no longer connected, or no longer configured.
        ({"a": claim(connected=False, silent_for=5), "b": claim(since=5)}, "m1", "a", "b", {}),
        ({"a": claim(configured=False), "b": claim(since=5)}, "m1", "a", "b", {}),
        # A short loss of the only one changes nothing.
        ({"a": claim(connected=False, silent_for=5)}, "m1", "a", "a", {}),
        # Silence of the one that spoke is its silence, not nobody's.
        ({"a": claim(silent_for=CONTACT_SECONDS)}, "m1", "a", "a", {}),
        ({"a": claim(silent_for=CONTACT_SECONDS), "b": claim(since=5)}, "m1", "a", "b", {}),
        ({"a": claim(configured=False, silent_for=60)}, "m1", "a", "a", {}),
    ],
)
def test_who_speaks(
    claims: dict[str, Claim], expected: str, current: str | None, speaker: str | None, refused: dict[str, str]
) -> None:
    choice = choose(claims, expected, current, NOW)
    assert (choice.agent, dict(choice.refused)) == (speaker, refused)
