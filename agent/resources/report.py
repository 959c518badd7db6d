"""The report as plain values, before it is a message: what the Node gets, and why.

Why this exists: the running agent, `probe` and `explain` must say the same, so all of them put a report together here.

Pure: no I/O, no clock, no logging.
"""

from dataclasses import dataclass, replace

from agent.resources.capacity import ResourceAmount, memory_overcommitted_bytes
from agent.resources.facts import HostFacts
from common.quantity import format_bytes

LABEL_POOL = "cocoonstack.io/pool"
LABEL_SNAPSHOT_CPU_CLASS = "cocoonstack.io/snapshot-cpu-class"
LABEL_ROLE = "node-role.kubernetes.io/cocoon-vm"
LABEL_HOSTNAME = "kubernetes.io/hostname"
LABEL_OS = "kubernetes.io/os"
LABEL_ARCH = "kubernetes.io/arch"
MANAGED_LABEL_KEYS = (
    LABEL_POOL,
    LABEL_SNAPSHOT_CPU_CLASS,
    LABEL_ARCH,
    LABEL_HOSTNAME,
    LABEL_OS,
    LABEL_ROLE,
)

MEMORY_OVERCOMMITTED = "CocoonMemoryOvercommitted"
PROBE_FAILED = "CocoonProbeFailed"


@dataclass(frozen=True, slots=True)
class Condition:
    """A statement about the host; `status` None means it cannot be told. `changed_at` is when `status` last moved."""

    type: str
    status: bool | None
    reason: str
    message: str
    changed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class HostReport:
    """Everything a report says but identity and revision of the run; `observed_at` is its newest reading."""

    node_name: str
    amounts: tuple[ResourceAmount, ...]
    labels: tuple[tuple[str, str], ...]
    reserve_percent: int
    facts: HostFacts
    node_ip: str
    provider_id: str
    conditions: tuple[Condition, ...]
    observed_at: float

    def says_the_same(self, other: "HostReport") -> bool:
        """Whether the two differ in times of reading only."""
        return _timeless(self) == _timeless(other)


def node_labels(node_name: str, pool: str, snapshot_cpu_class: str | None, architecture: str) -> dict[str, str]:
    """Return the labels the Node must carry; a managed key that is not among them must not be on it."""
    labels = {
        LABEL_POOL: pool,
        LABEL_ROLE: "",
        LABEL_HOSTNAME: node_name,
        LABEL_OS: "linux",
        LABEL_ARCH: architecture,
    }
    if snapshot_cpu_class is not None:
        labels[LABEL_SNAPSHOT_CPU_CLASS] = snapshot_cpu_class
    return labels


def memory_condition(amounts: tuple[ResourceAmount, ...]) -> Condition:
    """Tell whether memory and huge pages together promise more than the host has."""
    excess = memory_overcommitted_bytes(amounts)
    if not excess:
        return Condition(
            MEMORY_OVERCOMMITTED, False, "HugepagesFit", "Huge pages fit into what is held back of memory."
        )
    return Condition(
        MEMORY_OVERCOMMITTED,
        True,
        "HugepagesExceedReserve",
        f"Huge pages exceed what is held back of memory by {format_bytes(excess)}; raise VK_RESERVE_PERCENT or set"
        " COCOON_NODE_MEMORY_EXCLUDES_HUGEPAGES=true.",
    )


def probe_condition(problems: tuple[str, ...]) -> Condition:
    """Tell whether the last reading of every resource succeeded."""
    if not problems:
        return Condition(PROBE_FAILED, False, "ProbesSucceed", "Every resource was read.")
    return Condition(PROBE_FAILED, True, "LastGoodValueKept", "; ".join(problems) + "; the last good value is kept.")


def with_transition_times(
    conditions: tuple[Condition, ...], before: tuple[Condition, ...], now: float
) -> tuple[Condition, ...]:
    """Return the conditions sorted by type, each with the time at which its status last moved."""
    known = {condition.type: condition for condition in before}
    dated = []
    for condition in sorted(conditions, key=lambda each: each.type):
        old = known.get(condition.type)
        changed_at = old.changed_at if old is not None and old.status == condition.status else now
        dated.append(replace(condition, changed_at=changed_at))
    return tuple(dated)


def _timeless(report: HostReport) -> HostReport:
    amounts = tuple(replace(amount, raw=replace(amount.raw, observed_at=0.0)) for amount in report.amounts)
    return replace(report, amounts=amounts, observed_at=0.0)
