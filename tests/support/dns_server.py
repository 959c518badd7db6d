"""A DNS server on loopback with records a test sets, for A, AAAA and SRV over UDP."""

import asyncio
import ipaddress
import struct
from typing import Self

_TYPES = {1: "A", 28: "AAAA", 33: "SRV"}
_NO_SUCH_NAME = 3
_SERVER_FAILURE = 2


class DnsServer(asyncio.DatagramProtocol):
    """Answers from `records`: {(name, type): [rdata]}, rdata an address or (port, target); SERVFAIL while `failing`."""

    def __init__(self) -> None:
        """No records yet."""
        self.records: dict[tuple[str, str], list[object]] = {}
        self.additional = False
        self.failing = False
        self.questions: list[tuple[str, str]] = []
        self._transport: asyncio.DatagramTransport | None = None
        self.address = ""

    async def __aenter__(self) -> Self:
        """Listen on a free port."""
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: self, local_addr=("127.0.0.1", 0)
        )
        self._transport = transport
        host, port = transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        if self._transport is not None:
            self._transport.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer one question."""
        name, end = _read_name(data, 12)
        kind = _TYPES.get(struct.unpack("!H", data[end : end + 2])[0], "")
        self.questions.append((name, kind))
        found = self.records.get((name, kind), [])
        extra: list[bytes] = []
        if kind == "SRV" and self.additional:
            targets = [str(rdata[1]) for rdata in found if isinstance(rdata, tuple)]
            extra = [_record(t, "A", r) for t in targets for r in self.records.get((t, "A"), [])]
        known = any(key[0] == name for key in self.records)
        code = _SERVER_FAILURE if self.failing else 0 if known else _NO_SUCH_NAME
        answers = [] if self.failing else [_record(name, kind, rdata) for rdata in found]
        header = data[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(answers), 0, len(extra))
        if self._transport is not None:
            self._transport.sendto(header + data[12 : end + 4] + b"".join(answers) + b"".join(extra), addr)


def _record(name: str, kind: str, rdata: object) -> bytes:
    if kind == "SRV" and isinstance(rdata, tuple):
        body = struct.pack("!HHH", 0, 0, rdata[0]) + _write_name(rdata[1])
    else:
        body = ipaddress.ip_address(str(rdata)).packed
    number = next(code for code, text in _TYPES.items() if text == kind)
    return _write_name(name) + struct.pack("!HHIH", number, 1, 1, len(body)) + body


def _read_name(data: bytes, start: int) -> tuple[str, int]:
    labels = []
    while length := data[start]:
        labels.append(data[start + 1 : start + 1 + length].decode())
        start += 1 + length
    return ".".join(labels).lower(), start + 1


def _write_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
