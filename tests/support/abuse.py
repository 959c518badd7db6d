"""What somebody who means harm brings, sockets, HTTP/2 by hand, mutated recordings, and how a program bears it.

Everything is bounded in count and made from a seed, so that a failure can be had again.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
_SOURCES = 50
_SPARE_FILES = 1_000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """Return an HTTP/2 frame; `length` is what it says of itself, the truth by default."""
    said = len(payload) if length is None else length
    return said.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def setting(number: int, value: int) -> bytes:
    """Return one entry of a SETTINGS frame."""
    return number.to_bytes(2, "big") + value.to_bytes(4, "big")


def literal(name: str, value: str) -> bytes:
    """Return a header as HPACK has it without index and without Huffman coding; both under 16 KiB."""
    return b"\x00" + _text(name.encode()) + _text(value.encode())


def request_headers(path: str, *more: tuple[str, str]) -> bytes:
    """Return the header block of a gRPC call."""
    every = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "agent"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    )
    return b"".join(literal(*each) for each in every)


def message(payload: bytes) -> bytes:
    """Return a gRPC message with its five bytes of head."""
    return b"\x00" + len(payload).to_bytes(4, "big") + payload


class Footprint:
    """Memory and files of a running program, by its process id."""

    def __init__(self, pid: int) -> None:
        self._directory = Path(f"/proc/{pid}")

    def memory_mib(self) -> int:
        """Resident memory."""
        for line in (self._directory / "status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) // 1024
        raise AssertionError("no VmRSS")

    def open_files(self) -> int:
        """Number of open files, connections included."""
        return len(os.listdir(self._directory / "fd"))


def room_for_files(wanted: int) -> int:
    """Raise this process' limit of open files as far as it may; return how many of `wanted` it can have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, hard - _SPARE_FILES)


@contextlib.contextmanager
def crowd(address: str, count: int, first_words: Sequence[bytes] = (b"",)) -> Iterator[list[socket.socket]]:
    """Hold `count` connections to `host:port`, from many addresses of the loopback network.

    Each says the next of `first_words`. Those that the program ends, or never takes, stay with us all the same.
    """
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        held = []
        for number in range(count):
            each = stack.enter_context(socket.socket())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            # The port is chosen with the destination in mind, so that one source has more than 28,000.
            each.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            each.bind((f"127.0.1.{1 + number % _SOURCES}", 0))
            each.settimeout(20)
            with contextlib.suppress(OSError):
                each.connect((host, int(port)))
                each.sendall(first_words[number % len(first_words)])
            held.append(each)
        yield held


def ended(connection: socket.socket) -> bool:
    """Whether the other side has ended this connection, or sent what ends it; what it has sent is read and dropped."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def say(connect: Callable[[], socket.socket], words: bytes, seconds: float = 0.02) -> None:
    """Connect, send all of `words` as far as they are taken, listen for a moment, and go."""
    with contextlib.suppress(OSError), connect() as connection:
        connection.settimeout(2)
        connection.sendall(words)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and select.select([connection], [], [], left)[0]:
            if not connection.recv(65536):
                return


class Mutations:
    """Endless variations on recordings, the same ones for the same seed."""

    def __init__(self, recordings: Sequence[bytes], seed: int) -> None:
        self._recordings = [bytearray(recording) for recording in recordings]
        # Not for secrets: a failure has to be had again.
        self._random = random.Random(seed)  # noqa: S311

    def next(self) -> bytes:
        """Return a recording with one to eight things done to it."""
        chance = self._random
        words = bytearray(chance.choice(self._recordings))
        for _ in range(chance.randint(1, 8)):
            chance.choice(self._DONE)(self, words)
        return bytes(words)

    def _flip(self, words: bytearray) -> None:
        if words:
            words[self._random.randrange(len(words))] ^= 1 << self._random.randrange(8)

    def _overwrite(self, words: bytearray) -> None:
        at = self._random.randint(0, len(words))
        words[at : at + 4] = self._random.choice(
            [b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"\r\n\r\n"]
        )

    def _insert(self, words: bytearray) -> None:
        at = self._random.randint(0, len(words))
        words[at:at] = self._random.randbytes(self._random.choice([1, 9, 100, 5000]))

    def _cut(self, words: bytearray) -> None:
        del words[self._random.randint(0, len(words)) :]

    def _repeat(self, words: bytearray) -> None:
        start = self._random.randint(0, len(words))
        words += words[start : start + self._random.choice([9, 64, 1000])] * self._random.choice([1, 3, 50])

    def _odd_frame(self, words: bytearray) -> None:
        chance = self._random
        payload = chance.randbytes(chance.choice([0, 1, 4, 6, 8, 100]))
        length = chance.choice([None, 0, 5, 16_384, 16_385, 0xFFFFFF])
        stream = chance.choice([0, 1, 1, 2, 3, 0x7FFFFFFF, 0xFFFFFFFF])
        words += frame(chance.randrange(12), chance.randrange(256), stream, payload, length=length)

    _DONE = (_flip, _flip, _overwrite, _insert, _cut, _repeat, _odd_frame, _odd_frame)


class Recorder:
    """Stands between a client and a program and keeps what clients say, one recording a connection."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.recordings: list[bytearray] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """Take no more; what is open ends with its client."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            target = socket.create_connection(self._target)
            said = bytearray()
            self.recordings.append(said)
            for source, sink, kept in ((client, target, said), (target, client, bytearray())):
                thread = threading.Thread(target=_pump, args=(source, sink, kept), daemon=True)
                self._threads.append(thread)
                thread.start()


def _pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(65536):
            kept += chunk
            sink.sendall(chunk)
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
    # Whichever direction ends first leaves the files to the other; both close the same ones, which does no harm.
    source.close()
    sink.close()


def _text(text: bytes) -> bytes:
    """Return a string as HPACK has it: its length with a prefix of seven bits, then its bytes."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    left, head = len(text) - 127, bytearray(b"\x7f")
    while left >= 128:
        head.append(left % 128 + 128)
        left //= 128
    head.append(left)
    return bytes(head) + text
