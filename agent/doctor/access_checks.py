"""The ways in: TLS files, gRPC addresses, the HTTP listener. Nothing stays bound and no socket is made."""

import errno
import os
import socket
import stat
import time
from collections.abc import Iterator

from agent.config import Settings
from agent.config_values import ListenAddress
from agent.doctor.findings import Finding, failed, ok, skipped, warning
from agent.doctor.running import RunningAgent
from agent.rpc.tls import certificate_problem
from common.certificate_life import has_run_out, life_problem
from common.tls_files import TlsContents, TlsFiles, TlsFilesError

_SECONDS = 2.0


def check_tls(settings: Settings) -> Iterator[Finding]:
    """Do the TLS files fit together, are they for this node, how long do they hold, and who may read the key."""
    if settings.tls_cert_file is None or settings.tls_key_file is None or settings.tls_client_ca_file is None:
        yield ok("tls", "none: plain text on loopback and Unix sockets only")
        return
    files = TlsFiles(settings.tls_client_ca_file, settings.tls_cert_file, settings.tls_key_file)
    try:
        contents = files.read()
    except TlsFilesError as error:
        yield failed("tls", str(error), "put PEM files in order there; a running agent goes on with the last good ones")
        return
    mode = stat.S_IMODE(os.stat(files.key).st_mode)
    if mode & 0o077:
        yield failed("tls-key", f"{files.key} has mode {mode:04o}: others may read it", f"chmod 600 {files.key}")
    yield _certificate(contents, settings.node_name)


def _certificate(contents: TlsContents, node_name: str) -> Finding:
    now = time.time()
    if problem := certificate_problem(contents, node_name, now):
        return failed("tls", f"controllers refuse the certificate: {problem}", "issue one for this node's name")
    if problem := life_problem(contents, now):
        tell = failed if has_run_out(contents, now) else warning
        return tell("tls", problem, "put new files in place; the agent reads them by itself")
    days = int((min(contents.certificate_ends_at, contents.authorities_end_at) - now) // 86400)
    return ok("tls", f"for {', '.join(sorted(contents.chain[0].names))}, {days} more days")


def check_addresses(settings: Settings, running: RunningAgent | None) -> Iterator[Finding]:
    """Is each gRPC address free to take, or served by the agent that runs."""
    for address in settings.listen:
        if address.unix_path:
            yield _unix_address(address.unix_path, running)
        else:
            yield _tcp_address("listen", address, running)


def check_http(settings: Settings, running: RunningAgent | None) -> Iterator[Finding]:
    """The same for health and metrics."""
    if settings.http_listen is None:
        yield skipped("http-listen", "off: health and metrics can only be asked over gRPC")
        return
    asked = running if running is not None and running.is_asked else None
    yield _tcp_address("http-listen", ListenAddress(*settings.http_listen), asked)


def _tcp_address(check: str, address: ListenAddress, running: RunningAgent | None) -> Finding:
    family, kind, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                told = f"{address}: {os.strerror(error.errno or 0)}"
                return failed(check, told, "use an address of this host and a port this user may take")
            if running is not None:
                return ok(check, f"{address} is served")
            return failed(check, f"{address} is in use by another program", "stop that, or choose another address")
    if running is not None and address.port:
        return failed(check, f"{address} is free although an agent runs", "use the agent's own settings (--config)")
    return ok(check, f"{address} is free")


def _unix_address(path: str, running: RunningAgent | None) -> Finding:
    directory = os.path.dirname(path)
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        if os.path.isdir(os.path.dirname(directory)):
            return ok("listen", f"unix:{path}: its directory will be made")
        return failed("listen", f"unix:{path}: {os.path.dirname(directory)} does not exist", "make it")
    if not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
        told = f"unix:{path}: {directory} is no directory of this user with mode 0700"
        return failed("listen", told, f"chmod 700 {directory}, and let the agent's user own it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_SECONDS)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return ok("listen", f"unix:{path} is free")
        except OSError as error:
            return failed("listen", f"unix:{path}: {os.strerror(error.errno or 0)}", "choose another path")
    if running is None:
        return failed("listen", f"another program listens on unix:{path}", "stop that, or choose another path")
    return ok("listen", f"unix:{path} is served")
