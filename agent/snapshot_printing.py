"""What the snapshot commands print: tables for people, the API's messages as JSON or YAML for programs.

Why this exists: the tables may change with every version, the JSON may not: it is the message of the API, with the
names of its fields.
"""

from collections.abc import Sequence

import click
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich.text import Text

from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
from common.enum_words import enum_word
from common.logging import printable
from common.printing import new_console, new_table, print_data


def print_snapshots(snapshots: Sequence[pb.Snapshot], output: str) -> None:
    """Print a list of snapshots."""
    if output != "table":
        print_data([_data(snapshot) for snapshot in snapshots], output)
        return
    table = new_table("NAME", "STATE", "SIZE", "LAST USED", "OWNER", "KEPT BECAUSE", "PROBLEM", right=(2,))
    for one in snapshots:
        owner = f"{one.owner.namespace}/{one.owner.pod_name}" if one.owner.pod_name else "-"
        kept = enum_word(pb.RetainReason.DESCRIPTOR, one.retention.reason) if one.HasField("retention") else "-"
        table.add_row(
            printable(one.name),
            enum_word(pb.SnapshotState.DESCRIPTOR, one.state),
            one.allocated_quantity,
            _time(one.last_use_time),
            printable(owner),
            kept,
            printable(one.problems[0]) if one.problems else "-",
        )
    new_console().print(table)


def print_snapshot(snapshot: pb.Snapshot, output: str) -> None:
    """Print everything about one snapshot."""
    if output != "table":
        print_data(_data(snapshot), output)
        return
    console = new_console()
    for key, value in _data(snapshot).items():
        console.print(Text(f"{key}: {printable(str(value))}"))


def print_purge(results: Sequence[pb.PurgeResult], output: str) -> None:
    """Print what a purge did or would do."""
    if output != "table":
        print_data([_data(result) for result in results], output)
        return
    table = new_table("NAME", "OUTCOME", "SIZE", "WHY", right=(2,))
    for one in results:
        why = printable(one.message or one.deferred_reason or "-")
        table.add_row(printable(one.name), enum_word(pb.PurgeOutcome.DESCRIPTOR, one.outcome), one.quantity, why)
    new_console().print(table)


def item_line(item: pb.CollectedItem) -> str:
    """Return one item of a collection on one line."""
    outcome, reason = (
        enum_word(pb.CollectionOutcome.DESCRIPTOR, item.outcome),
        enum_word(pb.CollectionReason.DESCRIPTOR, item.reason),
    )
    note = f"  {printable(item.message)}" if item.message else ""
    return f"{outcome}  {printable(item.name)}  {item.quantity}  last used {_time(item.last_use_time)}  {reason}{note}"


def summary_line(summary: pb.CollectionSummary) -> str:
    """Return the end of a collection on one line."""
    if summary.deferred_reason:
        return f"nothing done: {summary.deferred_reason}"
    verb = "would be removed" if summary.dry_run else "removed"
    return f"{summary.removed_count} {verb}, {summary.removed_quantity}; {summary.skipped_count} left alone"


def collection_line(message: pb.CollectGarbageResponse) -> str:
    """Return a part of a collection's answer on one line."""
    return item_line(message.item) if message.HasField("item") else summary_line(message.summary)


def print_collection(messages: Sequence[pb.CollectGarbageResponse], output: str) -> None:
    """Print a whole collection."""
    if output != "table":
        print_data([_data(message) for message in messages], output)
        return
    for message in messages:
        click.echo(collection_line(message))


def print_usage(usage: pb.GetCacheUsageResponse, output: str) -> None:
    """Print the cache as a whole."""
    if output != "table":
        print_data(_data(usage), output)
        return
    table = new_table("STATE", "SNAPSHOTS", "SIZE", right=(1, 2))
    for one in usage.states:
        table.add_row(enum_word(pb.SnapshotState.DESCRIPTOR, one.state), str(one.count), one.allocated_quantity)
    new_console().print(table)
    click.echo(
        f"file system  {usage.filesystem_available_quantity} of {usage.filesystem_total_quantity} available,"
        f" {usage.trash_quantity} coming back"
    )
    click.echo(f"collection   above {usage.high_watermark_percent} % until below {usage.low_watermark_percent} %")
    if usage.HasField("last_collection"):
        click.echo(f"last         {summary_line(usage.last_collection)}")
    if usage.clock_in_doubt:
        click.echo("the clock is in doubt: nothing goes for age")


def _data(message: Message) -> dict[str, object]:
    return MessageToDict(message, always_print_fields_with_no_presence=True)


def _time(at: Timestamp) -> str:
    return at.ToJsonString() if at.seconds else "-"
