"""The commands `snapshots …`.

Why this exists: an operator on the host looks at the cache, keeps, purges and collects by hand, with the agent running
or stopped. What removes shows its plan first and asks.

Exit status: 0 done, 1 could not be done, 2 the settings or the command are wrong.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from agent.command_options import load_settings, settings_options, settings_or_exit
from agent.snapshot_progress import follow_collection, progress
from common.command_line import Command, fail, output_option

_PAGE_SIZE = 1000


@click.group(short_help="Look at, keep, purge and collect VM snapshots.")
def snapshots() -> None:
    """Look at the VM snapshots of this host, keep, purge and collect them."""


def _connected(command: Command) -> Command:
    for option in (
        click.option("--offline", is_flag=True, help="Work on the store of a stopped agent."),
        click.option("--address", metavar="HOST:PORT", help="The agent to ask; this host's by default."),
    ):
        command = option(command)
    return settings_options(command)


@contextlib.contextmanager
def _calls(options: dict[str, Any]) -> Iterator[Any]:
    """Give the calls that the options choose; end with one sentence when one fails."""
    from agent import snapshot_client

    address, is_offline = options.pop("address"), options.pop("offline")
    try:
        if address and not is_offline:
            with snapshot_client.online(address) as calls:
                yield calls
            return
        settings = settings_or_exit(load_settings(options.pop("config_file"), options))
        with (
            snapshot_client.offline(settings)
            if is_offline
            else snapshot_client.online(snapshot_client.default_address(settings))
        ) as calls:
            yield calls
    except snapshot_client.ClientError as error:
        fail(str(error), 1)


@snapshots.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only these states; may be repeated.")
@click.option("--vm", "vm_name", default="", metavar="NAME", help="Only snapshots of this VM.")
@output_option
@_connected
def list_(states: tuple[str, ...], vm_name: str, output: str, **options: Any) -> None:  # noqa: ANN401 # click's options
    """List snapshots by name."""
    from agent import snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    try:
        wanted = [pb.SnapshotState.Value(f"SNAPSHOT_STATE_{state.upper()}") for state in states]
    except ValueError:
        fail("--state must be one of PURGING, PENDING, IN_USE, SHARED, INVALID, RETAINED, UNCLAIMED", 2)
    found: list[pb.Snapshot] = []
    with _calls(options) as calls:
        token = ""
        while True:
            page = calls.ListSnapshots(
                pb.ListSnapshotsRequest(page_size=_PAGE_SIZE, page_token=token, states=wanted, vm_name=vm_name)
            )
            found.extend(page.snapshots)
            token = page.next_page_token
            if not token:
                break
    snapshot_printing.print_snapshots(found, output)


@snapshots.command()
@click.argument("name")
@output_option
@_connected
def show(name: str, output: str, **options: Any) -> None:  # noqa: ANN401 # click's options
    """Show everything about one snapshot."""
    from agent import snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    with _calls(options) as calls:
        snapshot = calls.GetSnapshot(pb.GetSnapshotRequest(name=name)).snapshot
    snapshot_printing.print_snapshot(snapshot, output)


@snapshots.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--expected-id", default="", metavar="ID", help="Id the snapshot must have; for one snapshot only.")
@output_option
@_connected
def verify(names: Sequence[str], expected_id: str, output: str, **options: Any) -> None:  # noqa: ANN401 # click's options
    """Read snapshots again and say which are damaged."""
    from agent import snapshot_client, snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    if expected_id and len(names) > 1:
        fail("--expected-id belongs to one snapshot; name one", 2)
    found: list[pb.Snapshot] = []
    damaged: list[str] = []
    with _calls(options) as calls, progress("verifying", len(names)) as step:
        for name in names:
            request = pb.VerifySnapshotRequest(name=name, expected_snapshot_id=expected_id)
            with snapshot_client.collecting_refusals(damaged if len(names) > 1 else None):
                found.append(calls.VerifySnapshot(request).snapshot)
            step()
    if len(names) == 1:
        snapshot_printing.print_snapshot(found[0], output)
    else:
        snapshot_printing.print_snapshots(found, output)
    if damaged:
        fail("\n".join(damaged), 1)


@snapshots.command()
@output_option
@_connected
def usage(output: str, **options: Any) -> None:  # noqa: ANN401 # click's options
    """Show counts and bytes by state, and the file system's use."""
    from agent import snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    with _calls(options) as calls:
        answer = calls.GetCacheUsage(pb.GetCacheUsageRequest())
    snapshot_printing.print_usage(answer, output)


@snapshots.command()
@click.argument("vm_name")
@click.option("--ttl-seconds", type=click.IntRange(min=1), help="How long; until released without it.")
@click.option("--expected-id", default="", metavar="ID", help="Refuse unless the hibernate image has this id.")
@output_option
@_connected
def retain(vm_name: str, ttl_seconds: int | None, expected_id: str, output: str, **options: Any) -> None:  # noqa: ANN401 # click's options
    """Keep the snapshots of a VM until they are released."""
    from agent import snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb
    from common.enum_words import enum_word

    request = pb.RetainSnapshotsRequest(
        owner=pb.Owner(vm_name=vm_name), reason=pb.RETAIN_REASON_REQUESTED, expected_snapshot_id=expected_id
    )
    if ttl_seconds is not None:
        request.ttl.seconds = ttl_seconds
    with _calls(options) as calls:
        answer = calls.RetainSnapshots(request)
    if answer.outcome != pb.RETAIN_OUTCOME_RETAINED:
        click.echo(enum_word(pb.RetainOutcome.DESCRIPTOR, answer.outcome), err=True)
    snapshot_printing.print_snapshots(answer.snapshots, output)


@snapshots.command(short_help="End every promise to keep; removes nothing.")
@click.argument("vm_name")
@output_option
@_connected
def release(vm_name: str, output: str, **options: Any) -> None:  # noqa: ANN401 # click's options
    """End every retention of a VM's snapshots; nothing is removed by it."""
    from agent import snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    request = pb.ReleaseRetentionRequest(owner=pb.Owner(vm_name=vm_name), reason=pb.RELEASE_REASON_REQUESTED)
    with _calls(options) as calls:
        answer = calls.ReleaseRetention(request)
    snapshot_printing.print_snapshots(answer.snapshots, output)


@snapshots.command()
@click.argument("vm_names", metavar="VM...", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also remove what is retained.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@_connected
def purge(
    vm_names: Sequence[str],
    force: bool,
    dry_run: bool,
    yes: bool,
    output: str,
    **options: Any,  # noqa: ANN401 # click's options
) -> None:
    """Remove the snapshots of VMs, after showing which."""
    from agent import snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    def request(vm_name: str, *, only_tell: bool) -> pb.PurgeSnapshotsRequest:
        return pb.PurgeSnapshotsRequest(
            owner=pb.Owner(vm_name=vm_name), reason=pb.PURGE_REASON_REQUESTED, force=force, dry_run=only_tell
        )

    with _calls(options) as calls:
        if dry_run or not yes:
            plan = [one for vm in vm_names for one in calls.PurgeSnapshots(request(vm, only_tell=True)).results]
            if dry_run or all(result.outcome != pb.PURGE_OUTCOME_PURGED for result in plan):
                snapshot_printing.print_purge(plan, output)
                return
            _confirm(lambda: snapshot_printing.print_purge(plan, "table"), output)
        done: list[pb.PurgeResult] = []
        try:
            with progress("purging", len(vm_names)) as step:
                for vm_name in vm_names:
                    done.extend(calls.PurgeSnapshots(request(vm_name, only_tell=False)).results)
                    step()
        finally:
            # Also when one of them was refused: the others are gone.
            if done:
                snapshot_printing.print_purge(done, output)


@snapshots.command(short_help="Collect, after showing the plan.")
@click.option("--max-age-seconds", type=click.IntRange(min=1), help="Collect what was last used longer ago.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Collect until at most this many bytes are left.")
@click.option("--keep-at-most", type=click.IntRange(min=0), help="Collect until at most this many are left.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@_connected
def gc(
    max_age_seconds: int | None,
    max_bytes: int | None,
    keep_at_most: int | None,
    dry_run: bool,
    yes: bool,
    output: str,
    **options: Any,  # noqa: ANN401 # click's options
) -> None:
    """Collect under the configured policy, or the one given here, after showing the plan."""
    from agent import snapshot_printing
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    request = pb.CollectGarbageRequest()
    if max_age_seconds is not None:
        request.policy.max_age.seconds = max_age_seconds
    if max_bytes is not None:
        request.policy.max_bytes = max_bytes
    if keep_at_most is not None:
        request.policy.keep_at_most = keep_at_most

    with _calls(options) as calls:
        if dry_run or not yes:
            request.dry_run = True
            plan = list(calls.CollectGarbage(request))
            if dry_run or not plan[-1].summary.removed_count:
                snapshot_printing.print_collection(plan, output)
                return
            _confirm(lambda: snapshot_printing.print_collection(plan, "table"), output)
            request.dry_run = False
        if output != "table":
            snapshot_printing.print_collection(list(calls.CollectGarbage(request)), output)
            return
        follow_collection(calls.CollectGarbage(request), None if yes else len(plan) - 1)


@snapshots.command()
@click.argument("name")
@_connected
def why(name: str, **options: Any) -> None:  # noqa: ANN401 # click's options
    """Tell which rule keeps a snapshot or dooms it."""
    from agent.snapshot_why import reasons
    from cocoonstack.node.v1 import snapshot_cache_pb2 as pb

    with _calls(options) as calls:
        snapshot = calls.GetSnapshot(pb.GetSnapshotRequest(name=name)).snapshot
        collected = list(calls.CollectGarbage(pb.CollectGarbageRequest(dry_run=True)))
    for line in reasons(snapshot, collected):
        click.echo(line)


def _confirm(show_plan: Callable[[], None], output: str) -> None:
    """Show the plan and ask; end the command unless the answer is yes, or when nobody can answer."""
    if output != "table":
        fail(f"nothing was removed: -o {output} is for programs; add --yes to remove, --dry-run to look", 2)
    show_plan()
    if not sys.stdin.isatty():
        fail("nothing was removed: there is nobody to ask here; add --yes to remove, --dry-run to look", 2)
    if not click.confirm("Remove these snapshots?"):
        click.echo("nothing was removed")
        sys.exit(0)
