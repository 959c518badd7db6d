"""What a report wants a Node to be, field by field, and the verdict on each field."""

from collections.abc import Mapping
from dataclasses import dataclass

from common.quantity import QuantityError, parse_quantity
from controller.nodes.conflicts import FieldMemory, Judgement, Verdict, judge
from controller.nodes.model import TYPE_LABEL, VIRTUAL_KUBELET, Instant, LiveNode
from controller.nodes.report import NodeReport

AGENT_VERSION_PREFIX = "cocoon-node/"
"""What stands before the agent's version where a Node has its kubelet's."""

_NEVER_ZERO = ("cpu", "memory", "ephemeral-storage")


def report_fault(report: NodeReport) -> str:
    """Why this report must not be written, empty when it may: silent is not zero, and zero is a failed probe."""
    for name in _NEVER_ZERO:
        text = report.capacity.get(name)
        if text is None:
            return f"capacity has no {name}"
        fault = _quantity_fault(text)
        if fault:
            return f"capacity of {name} is {text[:100]!r}: {fault}"
    for kind, values in (("capacity", report.capacity), ("allocatable", report.allocatable)):
        for name, text in values.items():
            try:
                parse_quantity(text)
            except QuantityError as exc:
                return f"{kind} of {name[:100]} is {text[:100]!r}: {exc}"
    return ""


def _quantity_fault(text: str) -> str:
    try:
        return "" if parse_quantity(text).nanos > 0 else "must be more than 0"
    except QuantityError as exc:
        return str(exc)


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields with what they should be (None: absent), what they are, and the verdict on each."""

    wanted: Mapping[str, str | None]
    values: Mapping[str, str]
    owned: frozenset[str]
    judgements: Mapping[str, Judgement]

    def of(self, *kinds: str) -> list[str]:
        """Names of the given kinds, sorted."""
        return sorted(name for name in self.wanted if name.partition(":")[0] in kinds)

    def is_due(self, name: str) -> bool:
        """Whether the field is to be written now."""
        return self.judgements[name].verdict in (Verdict.ASSERT, Verdict.TAKE_BACK)

    def applied(self, name: str) -> tuple[str | None, bool]:
        """The value an apply must carry for it (None: leave it out), and whether that is a copy of the live value.

        What is not ours to decide now is copied while our applies own it, because leaving it out would take it off.
        """
        if self.is_due(name) or self.judgements[name].verdict is Verdict.FINE:
            return self.wanted[name], False
        if name in self.owned:
            return self.values.get(name), True
        return None, False

    def calls_for_apply(self, name: str) -> bool:
        """Whether an apply would change the field: by setting it, or by giving up what only an apply can take off."""
        return self.is_due(name) and (self.wanted[name] is not None or name in self.owned)

    def calls_for_removal(self, name: str, live: LiveNode) -> bool:
        """Whether the field stays after an apply without it, so that only a patch with null takes it off."""
        if not self.is_due(name) or self.wanted[name] is not None:
            return False
        return name not in self.owned or live.is_owned_by_others(name)

    @property
    def ceded(self) -> frozenset[str]:
        """Fields left to another writer."""
        return frozenset(name for name, judgement in self.judgements.items() if judgement.verdict is Verdict.CEDE)

    @property
    def wait_seconds(self) -> float | None:
        """When the first field may be taken back that may not be now."""
        waits = [item.wait_seconds for item in self.judgements.values() if item.verdict is Verdict.WAIT]
        return min(waits, default=None)


def judge_fields(report: NodeReport, live: LiveNode, memory: FieldMemory, now: Instant, *, own: bool) -> Fields:
    """Compare a report with the live Node, field by field."""
    values = dict(live.fields())
    owned = live.owned()
    wanted: dict[str, str | None] = _wanted_labels(report, live) | _wanted_amounts(report)
    if own:
        wanted |= _wanted_host_facts(report)
    for name in (*values, *sorted(owned)):
        if name not in wanted and _is_superfluous(name, owned):
            wanted[name] = None
    judgements = {name: judge(name, value, values.get(name), memory, now) for name, value in wanted.items()}
    return Fields(wanted, values, owned, judgements)


def _is_superfluous(name: str, owned: frozenset[str]) -> bool:
    """Whether a field that no report asks for must go: what we applied once, and huge pages whoever wrote them."""
    kind, _, key = name.partition(":")
    if kind in ("capacity", "allocatable"):
        return key.startswith("hugepages-") or name in owned
    return kind == "label" and name in owned


def _wanted_labels(report: NodeReport, live: LiveNode) -> dict[str, str | None]:
    wanted: dict[str, str | None] = {f"label:{key}": None for key in report.managed_label_keys}
    wanted.update({f"label:{key}": value for key, value in report.labels.items()})
    if live.is_ours:
        wanted[f"label:{TYPE_LABEL}"] = VIRTUAL_KUBELET
    return wanted


def _wanted_amounts(report: NodeReport) -> dict[str, str | None]:
    wanted: dict[str, str | None] = {f"capacity:{key}": value for key, value in report.capacity.items()}
    wanted.update({f"allocatable:{key}": value for key, value in report.allocatable.items()})
    return wanted


def _wanted_host_facts(report: NodeReport) -> dict[str, str | None]:
    host = report.host
    facts = {
        "architecture": host.architecture,
        "bootID": host.boot_id,
        "kernelVersion": host.kernel_version,
        "kubeletVersion": f"{AGENT_VERSION_PREFIX}{report.agent_version}" if report.agent_version else "",
        "machineID": host.machine_id,
        "operatingSystem": "linux",
        "osImage": host.os_image,
        "systemUUID": host.system_uuid,
    }
    wanted: dict[str, str | None] = {f"nodeInfo:{key}": value for key, value in facts.items() if value}
    for address in report.addresses:
        # Two of a kind make the API server fail with 500.
        wanted.setdefault(f"address:{address.type}", address.address)
    return wanted
