"""Pods that go and come at a steady rate for as long as one likes, and the memory of programs meanwhile.

The pods have a fixed number of names. At each step the pod of one name is deleted, and one half of all names further
the next pod of its name is made, so that half of them are gone at any time. A name's pods end in turn with the flag and
without: the first one's snapshot is kept, the next pod claims it, and then it is purged. So there is never more to
remember than at the start, and a program whose memory grows keeps what it should not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_SAMPLE_SECONDS = 5.0
_MIB = 1 << 20


class Pods(Protocol):
    """Where pods are made and deleted; pods are numbered, their names are those of the numbers."""

    def create(self, number: int) -> None:
        """Make the next pod of this name, bound to its host."""

    def delete(self, number: int, *, keep: bool) -> None:
        """Delete it without a grace period, the flag written right before."""

    def write(self, number: int) -> None:
        """Write its VM's snapshot."""

    def has(self, number: int) -> bool:
        """Whether that is on disk."""


@dataclass
class Turnover:
    """The load. `late` counts the purges that had not been made when the next pod of the name came."""

    pods: Pods
    names: int
    late: int = 0
    deleted: int = 0
    _lives: list[int] = field(default_factory=list)

    def run(self, a_second: float, seconds: float, memory: Memory) -> float:
        """Delete so many pods, and return in how many seconds; what is behind its time is caught up."""
        self._lives = [0] * self.names
        for number in range(self.names // 2):
            self._begin(number)
        started = time.monotonic()
        while self.deleted < a_second * seconds:
            time.sleep(max(0.0, started + self.deleted / a_second - time.monotonic()))
            self._end(self.deleted % self.names)
            self._begin((self.deleted + self.names // 2) % self.names)
            self.deleted += 1
            memory.look()
        return time.monotonic() - started

    def is_settled(self) -> bool:
        """Whether every snapshot is there that should be, and no other one."""
        return all(self.pods.has(number) is self._is_kept(number) for number in range(self.names))

    def _begin(self, number: int) -> None:
        is_there, is_restored = self.pods.has(number), self._lives[number] % 2 == 1
        # Never waited for: what is gone once does not come back.
        assert is_there or not is_restored, f"the pod of name {number} carried the flag, and its snapshot is gone"
        self.pods.create(number)
        if not is_restored:
            self.late += is_there
            self.pods.write(number)

    def _end(self, number: int) -> None:
        self.pods.delete(number, keep=self._lives[number] % 2 == 0)
        self._lives[number] += 1

    def _is_kept(self, number: int) -> bool:
        is_live = (number - self.deleted) % self.names < self.names // 2
        return is_live or self._lives[number] % 2 == 1


@dataclass
class Memory:
    """Resident memory of processes by name, looked at every few seconds."""

    pids: dict[str, int]
    samples: dict[str, list[int]] = field(default_factory=dict)
    _next_at: float = 0.0

    def look(self) -> None:
        """Take a sample of each if it is time."""
        if time.monotonic() >= self._next_at:
            self._next_at = time.monotonic() + _SAMPLE_SECONDS
            for name, pid in self.pids.items():
                self.samples.setdefault(name, []).append(_resident_bytes(pid))

    def growth(self) -> dict[str, float]:
        """Return for each process the median of the last third of the time over that of the middle third."""
        return {name: third / second for name, (_, second, third) in self._medians().items()}

    def __str__(self) -> str:
        told = []
        for name, medians in self._medians().items():
            thirds = " → ".join(f"{median / _MIB:.1f}" for median in medians)
            told.append(f"{name} {thirds} MiB (most {max(self.samples[name]) / _MIB:.1f})")
        return ", ".join(told)

    def _medians(self) -> dict[str, tuple[float, float, float]]:
        return {name: _median_of_thirds(samples) for name, samples in self.samples.items()}


def _median_of_thirds(samples: Sequence[int]) -> tuple[float, float, float]:
    third = len(samples) // 3
    parts = (samples[:third], samples[third : len(samples) - third], samples[len(samples) - third :])
    first, second, last = (float(statistics.median(part)) for part in parts)
    return first, second, last


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has ended")
