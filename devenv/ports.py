"""Free TCP ports for programs that cannot be told to pick one themselves, leased so that no two of us get the same.

Asking the kernel for a free port and closing it again is a race between parallel test workers, and a server that is
restarted must find its port still free. Ports therefore come from below the range the kernel hands out for outgoing
connections, and each is held by a name in the abstract socket namespace, which vanishes with the process that holds it.
"""

from __future__ import annotations

import random
import socket

from devenv.errors import DevenvError

_LOWEST, _HIGHEST = 20000, 32000
_ATTEMPTS = 500


class PortLease:
    """One TCP port on loopback that no other lease on this machine holds until `release`."""

    def __init__(self) -> None:
        for port in random.Random().sample(range(_LOWEST, _HIGHEST), _ATTEMPTS):  # noqa: S311 -- spreads, no secret
            name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                name.bind(f"\0cocoon-node-port-{port}")
            except OSError:
                name.close()
                continue
            if _is_free(port):
                self.port = port
                self._name = name
                return
            name.close()
        raise DevenvError(f"no free TCP port on loopback between {_LOWEST} and {_HIGHEST}")

    def release(self) -> None:
        """Give the port back; calling it again does nothing."""
        self._name.close()


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
