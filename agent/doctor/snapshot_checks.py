"""The snapshots: ledger, store, trash, room on the disk, the engine, and the last word of a controller."""

import os
import time
from collections.abc import Iterator

from agent.config import Settings
from agent.doctor.findings import Finding, failed, ok, skipped, warning
from agent.doctor.ledger_copy import LedgerLook
from agent.doctor.running import RunningAgent
from agent.snapshots.cache_settings import SYNC_MAX_AGE_SECONDS
from agent.snapshots.errors import StoreFault, StoreUnavailableError
from agent.snapshots.ledger_rows import LedgerContents
from agent.snapshots.ledger_schema import SCHEMA_VERSION
from agent.snapshots.stores.contract import LedgerIdentity, StoreOrigin
from agent.snapshots.stores.engine_layout import SNAPSHOT_DIRECTORY
from agent.snapshots.stores.identity import StoreIdentity, decide_origin
from agent.snapshots.stores.trash import TRASH_DIRECTORY

_FEW_INODES_PERCENT = 5
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "gluster", "afs")
_RIGHTS = "let the agent's user own it, or call doctor as that user"


def store_directory(settings: Settings) -> str:
    """Return the directory that carries the store's marker."""
    if settings.store == "directory":
        return settings.snapshot_dir
    return os.path.join(settings.root_dir, SNAPSHOT_DIRECTORY)


def check_state_directory(settings: Settings) -> Iterator[Finding]:
    """Can the agent's records be written."""
    path = settings.state_dir
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        if os.path.isdir(parent) and _may_write(parent):
            yield ok("state-dir", f"{path} will be made at the first start")
        else:
            yield failed("state-dir", f"{path} does not exist and {parent} cannot be written", f"mkdir {path}")
    elif not _may_write(path):
        yield failed("state-dir", f"user {os.geteuid()} may not write {path}", _RIGHTS)
    else:
        yield ok("state-dir", path)


def check_ledger(look: LedgerLook | None, running: RunningAgent | None) -> Iterator[Finding]:
    """Is the ledger whole, can this program read it, and how old is it."""
    if look is None:
        available = running.value("cocoon_node_ledger_available") if running else None
        if available is None:
            yield skipped("ledger", "the running agent holds it and could not be asked")
        elif available:
            size = running.value("cocoon_node_ledger_bytes") if running else None
            yield ok("ledger", f"in use by the running agent, {int(size or 0)} bytes")
        else:
            yield failed("ledger", "the running agent cannot use it", "its log and the Node's condition say why")
    elif not look.exists:
        yield ok("ledger", f"{look.path} will be made at the first start")
    elif look.problem:
        yield failed("ledger", look.problem, "nothing is removed meanwhile; do as the message says")
    elif look.is_damaged or look.contents is None:
        told = f"{look.path} is damaged; the next start sets it aside and counts everything as in use"
        yield failed("ledger", told, "check the disk; see docs/snapshots.md, The ledger")
    else:
        yield ok("ledger", _ledger_words(look, look.contents))


def check_store(settings: Settings, look: LedgerLook | None, running: RunningAgent | None) -> Iterator[Finding]:
    """Is this the ledger's store, may it be written, and is its trash on the same file system."""
    if look is None and running is not None and running.value("cocoon_node_snapshot_store_available") == 0:
        yield failed(
            "store", "the running agent cannot use it", "the Node's condition CocoonSnapshotCacheReady says why"
        )
    directory = store_directory(settings)
    if not os.path.isdir(directory):
        yield _missing_store(directory, look)
        return
    try:
        marker = StoreIdentity(directory).marker()
    except StoreUnavailableError as error:
        yield failed("store", str(error), "see docs/troubleshooting.md, STORE_UNAVAILABLE")
        return
    verdict = decide_origin(_identity(look), marker) if look is not None else StoreOrigin.MATCHED
    if isinstance(verdict, StoreFault):
        told = f"{directory} is not the store the ledger belongs to ({verdict.value})"
        yield failed("store", told, "mount the right disk, or if this one is right: cocoon-node-agent accept store")
    elif look is None and marker is None:
        yield failed("store", f"{directory} has no marker although an agent runs", "mount the right disk")
    elif not _may_write(directory):
        yield failed("store", f"user {os.geteuid()} may not write {directory}", _RIGHTS)
    else:
        yield ok("store", f"{directory}, {verdict.value.lower().replace('_', ' ')}")
    yield from _trash(directory)


def check_disk(settings: Settings) -> Iterator[Finding]:
    """What file system the snapshots are on, and how much room it has."""
    directory = store_directory(settings)
    if not os.path.isdir(directory):
        directory = settings.root_dir
    kind = _file_system_of(os.stat(directory).st_dev)
    numbers = os.statvfs(directory)
    used = 100 - 100 * numbers.f_bavail // numbers.f_blocks if numbers.f_blocks else 0
    told = f"{directory} ({kind}): {used} % used, {numbers.f_bavail * numbers.f_frsize >> 20} MiB free"
    if numbers.f_flag & os.ST_RDONLY:
        yield failed("disk", f"{directory} ({kind}) is mounted read-only", "mount it read-write, after looking why")
    elif numbers.f_bavail == 0:
        yield failed("disk", f"{told}: full", "free some space; collection works with none left")
    elif used > settings.high_watermark_percent:
        yield warning("disk", f"{told}, above the high watermark", "see docs/snapshots.md, Collecting")
    elif kind.startswith(_REMOTE):
        yield warning("disk", f"{told}: not a local file system", "locks and renames must be those of a local disk")
    elif os.stat(directory).st_dev == os.stat("/").st_dev:
        yield warning("disk", f"{told}, the root file system", "if it should be another: is its disk mounted?")
    else:
        yield ok("disk", told)
    if numbers.f_files and 100 * numbers.f_favail < _FEW_INODES_PERCENT * numbers.f_files:
        yield warning("inodes", f"{numbers.f_favail} of {numbers.f_files} are free", "remove small files there")
    else:
        yield ok("inodes", f"{numbers.f_favail} are free" if numbers.f_files else "not counted here")


def check_engine(settings: Settings) -> Iterator[Finding]:
    """Is the engine's program there, where one is needed."""
    if settings.store != "cocoon":
        yield ok("engine", "not needed by the directory store")
    elif not os.path.isfile(settings.cocoon_bin) or not os.access(settings.cocoon_bin, os.X_OK):
        yield failed("engine", f"{settings.cocoon_bin} is no program this user may start", "set VK_COCOON_BIN")
    else:
        yield ok("engine", settings.cocoon_bin)


def check_sync(settings: Settings, look: LedgerLook | None, running: RunningAgent | None) -> Iterator[Finding]:
    """When a controller last told who owns what."""
    age: float | None = None
    if running is not None:
        age = running.value("cocoon_node_owner_sync_age_seconds")
    elif look is not None and look.contents is not None and look.contents.state.synced_at is not None:
        age = time.time() - look.contents.state.synced_at
    remedy = "does a controller run, lead, and reach this agent? cocoon-node-controller nodes"
    if settings.standalone:
        yield ok("owner-sync", "not needed: COCOON_NODE_STANDALONE")
    elif running is not None and not running.is_asked:
        yield skipped("owner-sync", "the running agent could not be asked")
    elif age is None:
        since = " since its start" if running is not None else " yet"
        yield warning("owner-sync", f"no controller has told this agent the owners{since}: purges are deferred", remedy)
    elif running is not None and age > SYNC_MAX_AGE_SECONDS:
        yield warning("owner-sync", f"the last one was {int(age)} s ago: purges are deferred", remedy)
    else:
        yield ok("owner-sync", f"{max(0, int(age))} s ago")


def _missing_store(directory: str, look: LedgerLook | None) -> Finding:
    if look is not None and _identity(look) == LedgerIdentity(None, knows_snapshots=False):
        if os.path.isdir(os.path.dirname(directory)):
            return ok("store", f"{directory} will be made at the first start")
        return failed("store", f"{os.path.dirname(directory)} does not exist", "mount its disk, or make it")
    return failed("store", f"{directory} does not exist", "mount its disk; nothing is removed meanwhile")


def _trash(directory: str) -> Iterator[Finding]:
    path = os.path.join(directory, TRASH_DIRECTORY)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        yield ok("trash", "made when it is needed")
        return
    if status.st_dev != os.stat(directory).st_dev:
        yield failed("trash", f"{path} is on another file system", "unmount what is mounted there")
    else:
        yield ok("trash", "on the store's file system")


def _identity(look: LedgerLook) -> LedgerIdentity:
    if look.contents is None:
        return LedgerIdentity(None, knows_snapshots=False)
    return LedgerIdentity(look.contents.state.store_id, knows_snapshots=bool(look.contents.rows))


def _ledger_words(look: LedgerLook, contents: LedgerContents) -> str:
    written = contents.state.last_write_at
    age = f"last written {max(0, int(time.time() - written))} s ago" if written is not None else "never written"
    return f"whole, schema {SCHEMA_VERSION}, {look.size_bytes} bytes, {len(contents.rows)} snapshots, {age}"


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK | os.X_OK, effective_ids=True)


def _file_system_of(device: int) -> str:
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            words, _, rest = line.partition(" - ")
            if words.split()[2] == number:
                return rest.split()[0]
    return "unknown"
