"""A TCP proxy in a test's hands: cuts, delays, half-opens, trickles what passes, or holds one thing it waits for."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_CHUNK_BYTES = 65536
_POLL_SECONDS = 0.05


class TcpProxy:
    """Listens on a loopback port of its own and passes everything on to `target` (`host:port`).

    What it does to all connections, present and to come, until told otherwise:
    `delay_seconds` waits before each chunk; `trickle_bytes` passes so few at once, each after 10 ms; `silent` passes
    nothing and says nothing, as behind a router that forgot the connection; `refusing` ends connections at once.
    `forget` does the same to the connections there are and to no later one, for ever.
    `trap` holds back the chunk from the client in which these bytes are, and all after it, until `spring` is called;
    `trapped` is set then. `answers` is what came from the target since the trap closed.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.delay_seconds = 0.0
        self.trickle_bytes = 0
        self.silent = False
        self.refusing = False
        self.trap = b""
        self.trapped = threading.Event()
        self.answers = bytearray()
        self._sprung = threading.Event()
        self._closing = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._forgotten: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_POLL_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._run(self._accept)

    def cut(self) -> None:
        """End every connection there is."""
        with self._lock:
            open_now, self._sockets = self._sockets, set()
        for each in open_now:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def forget(self) -> None:
        """Pass nothing any more on the connections there are, and do not tell; later ones work."""
        with self._lock:
            self._forgotten |= self._sockets

    def repair(self) -> None:
        """Pass everything from now on. Connections that were silent are cut: what they swallowed would be missing."""
        was_silent, self.silent = self.silent, False
        self.delay_seconds, self.trickle_bytes, self.refusing = 0.0, 0, False
        if was_silent:
            self.cut()

    def spring(self) -> None:
        """Let go what the trap holds."""
        self.trap = b""
        self._sprung.set()

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        self.spring()
        self.cut()
        self._listener.close()
        for thread in self._threads:
            thread.join(5)

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                each.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            self._run(self._pump, client, server, True)
            self._run(self._pump, server, client, False)

    def _pump(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        try:
            while chunk := source.recv(_CHUNK_BYTES):
                if is_client and self.trap and self.trap in chunk:
                    self.trapped.set()
                    self._sprung.wait()
                if not is_client and self.trapped.is_set():
                    self.answers += chunk
                if source not in self._forgotten:
                    self._pass(chunk, sink)
        except OSError:
            pass  # cut, or ended by one side
        finally:
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _pass(self, chunk: bytes, sink: socket.socket) -> None:
        if self.silent:
            return
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
        step = self.trickle_bytes or len(chunk)
        for start in range(0, len(chunk), step):
            if self.silent:
                return
            if self.trickle_bytes:
                time.sleep(0.01)
            sink.sendall(chunk[start : start + step])
