"""The host: its name, its clock, what can be read of it, and what the agent's process may use."""

import re
import time
from collections.abc import Iterator

from agent.app import node_ip, read_host_once
from agent.config import Settings
from agent.doctor.findings import Finding, failed, ok, skipped, warning
from agent.doctor.ledger_copy import LedgerLook
from agent.doctor.running import RunningAgent
from agent.resources.capacity import HUGEPAGES_PREFIX, quantity_text
from agent.resources.report import MEMORY_OVERCOMMITTED
from agent.snapshots.clock import MAX_DRIFT_SECONDS
from common.program import StartError
from common.version import VERSION

# Nothing of this project was written before; a host that says so has lost its clock.
_EARLIEST_CLOCK = 1_735_689_600.0
_LEAST_MEMORY_BYTES = 128 * 1024 * 1024
_LEAST_OPEN_FILES = 2048
_TOLD_ELSEWHERE = frozenset({"CocoonSnapshotCacheReady", MEMORY_OVERCOMMITTED})


def check_process(running: RunningAgent | None) -> Iterator[Finding]:
    """Does an agent run, is it ready, is it of this version, and has its process room."""
    if running is None:
        yield skipped("agent", "no agent runs with these settings; what only it can tell is left out")
        return
    if not running.is_asked:
        yield warning(
            "agent",
            f"process {running.pid} holds the ledger, but nothing answers at COCOON_NODE_HTTP_LISTEN",
            "use the agent's own settings (--config), or do not turn its HTTP listener off",
        )
    elif running.unready:
        told = "; ".join(running.unready)
        yield failed("agent", f"it runs and is not ready: {told}", "its log says what it waits for")
    else:
        yield ok("agent", "it runs and is ready")
    versions = running.labelled("cocoon_node_agent_info", "version")
    if versions and VERSION not in versions:
        shown = ", ".join(versions)
        yield warning("version", f"version {shown} runs, {VERSION} is installed", "restart the agent")
    if running.pid:
        yield from _limits(running.pid)


def check_name(settings: Settings, look: LedgerLook | None) -> Iterator[Finding]:
    """Is the Node's name the one the ledger was written under."""
    name = settings.node_name
    known = look.contents.state.node_name if look and look.contents else ""
    if known and known != name:
        yield failed(
            "node-name",
            f"this is node {name}, and the ledger belongs to node {known}",
            "undo the renaming, or run: cocoon-node-agent accept node",
        )
        return
    address = node_ip(settings)
    if address is None:
        yield failed("node-name", f"node {name} has no address", "set VK_NODE_IP")
        return
    yield ok("node-name", f"node {name}, address {address}")


def check_clock(look: LedgerLook | None, running: RunningAgent | None) -> Iterator[Finding]:
    """Can the wall clock be believed."""
    now, remedy = time.time(), "set the host's clock; then, with the agent stopped: cocoon-node-agent accept clock"
    state = look.contents.state if look and look.contents else None
    if now < _EARLIEST_CLOCK:
        yield failed("clock", f"the host believes it is {_utc(now)}", remedy)
    elif state is not None and state.last_write_at is not None and state.last_write_at > now + MAX_DRIFT_SECONDS:
        told = f"the ledger was last written at {_utc(state.last_write_at)}, and it is {_utc(now)} now"
        yield failed("clock", told, remedy)
    elif (state is not None and state.clock_in_doubt) or (running and running.value("cocoon_node_clock_in_doubt")):
        yield warning("clock", "it was stepped, so nothing is removed for its age", f"{remedy}; a sync ends it too")
    else:
        yield ok("clock", _utc(now))


def check_readings(settings: Settings, running: RunningAgent | None) -> Iterator[Finding]:
    """Can everything that is published be read, and is anything odd about it."""
    try:
        report = read_host_once(settings)
    except StartError as error:
        for problem in str(error).splitlines():
            yield failed("host", problem, "look at the file or file system that is named")
        return
    amounts = {each.name: quantity_text(each.name, each.capacity) for each in report.amounts}
    yield ok("host", ", ".join(f"{name} {amount}" for name, amount in amounts.items()))
    pages = [f"{name} {amount}" for name, amount in amounts.items() if name.startswith(HUGEPAGES_PREFIX)]
    yield ok("hugepages", ", ".join(pages) or "none")
    # Of a single reading; the other conditions are about a time, and the running agent's.
    excess = next(each for each in report.conditions if each.type == MEMORY_OVERCOMMITTED)
    if excess.status:
        yield warning(MEMORY_OVERCOMMITTED, excess.message, "see docs/node-resources.md")
    for name, value in running.labelled("cocoon_node_condition", "type").items() if running else ():
        if value and name not in _TOLD_ELSEWHERE:
            yield failed(name, "the running agent says that this condition is true", "see docs/operations.md")


def _limits(pid: int) -> Iterator[Finding]:
    try:
        text = _text(f"/proc/{pid}/limits")
        limit = re.search(r"Max open files\s+(\d+)", text)
        group = re.search(r"^0::(/.*)$", _text(f"/proc/{pid}/cgroup"), re.MULTILINE)
    except OSError:
        yield skipped("process", f"process {pid} cannot be looked at by this user")
        return
    if limit and int(limit[1]) < _LEAST_OPEN_FILES:
        yield warning("process", f"it may open {limit[1]} files", f"LimitNOFILE={_LEAST_OPEN_FILES} or more")
        return
    memory = _memory_limit(group[1]) if group else None
    if memory is not None and memory < _LEAST_MEMORY_BYTES:
        yield warning("process", f"its cgroup may use {memory} bytes of memory", "raise MemoryMax= to 128M or more")
        return
    yield ok("process", f"process {pid}, {limit[1] if limit else 'any number of'} files")


def _memory_limit(group: str) -> int | None:
    try:
        text = _text(f"/sys/fs/cgroup{group}/memory.max").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
