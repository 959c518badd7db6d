"""The report as the message of the API.

Why this exists: the running agent and `probe` must answer the same message, and only this module knows how a report
becomes one.
"""

from agent.resources.capacity import ResourceAmount, quantity_text
from agent.resources.report import MANAGED_LABEL_KEYS, Condition, HostReport
from cocoonstack.node.v1 import node_resources_pb2 as pb
from common.version import VERSION


def report_message(report: HostReport, instance_id: str, revision: int) -> pb.NodeResourcesReport:
    """Return the message of a report of this run of the agent."""
    facts = report.facts
    message = pb.NodeResourcesReport(
        node_name=report.node_name,
        instance_id=instance_id,
        revision=revision,
        capacity={amount.name: quantity_text(amount.name, amount.capacity) for amount in report.amounts},
        allocatable={amount.name: quantity_text(amount.name, amount.allocatable) for amount in report.amounts},
        labels=dict(report.labels),
        managed_label_keys=MANAGED_LABEL_KEYS,
        reserve_percent=report.reserve_percent,
        resources=[_explanation(amount) for amount in report.amounts],
        host=pb.HostInfo(
            cpu_model=facts.cpu_model,
            architecture=facts.architecture,
            kernel_version=facts.kernel_version,
            os_image=facts.os_image,
            boot_id=facts.boot_id,
            machine_id=facts.machine_id,
            system_uuid=facts.system_uuid,
        ),
        addresses=[
            pb.NodeAddress(type="InternalIP", address=report.node_ip),
            pb.NodeAddress(type="Hostname", address=report.node_name),
        ],
        provider_id=report.provider_id,
        conditions=[_condition(condition) for condition in report.conditions],
        agent_version=VERSION,
    )
    message.observe_time.FromNanoseconds(_nanoseconds(report.observed_at))
    return message


def _explanation(amount: ResourceAmount) -> pb.ResourceExplanation:
    raw = amount.raw
    message = pb.ResourceExplanation(
        name=amount.name,
        source=pb.RESOURCE_SOURCE_OVERRIDDEN if raw.overridden else pb.RESOURCE_SOURCE_PROBED,
        origin=raw.origin,
        raw_value=raw.value,
        adjustments=[pb.Adjustment(reason=step.reason, value=step.value) for step in amount.adjustments],
        capacity_value=amount.capacity,
        allocatable_value=amount.allocatable,
    )
    message.observe_time.FromNanoseconds(_nanoseconds(raw.observed_at))
    return message


def _condition(condition: Condition) -> pb.Condition:
    status = {True: pb.CONDITION_STATUS_TRUE, False: pb.CONDITION_STATUS_FALSE, None: pb.CONDITION_STATUS_UNKNOWN}
    message = pb.Condition(
        type=condition.type,
        status=status[condition.status],
        reason=condition.reason,
        message=condition.message,
    )
    message.last_transition_time.FromNanoseconds(_nanoseconds(condition.changed_at))
    return message


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000) * 1000
