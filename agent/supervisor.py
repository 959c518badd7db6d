"""What the agent tells systemd, if that started it.

Why this exists: "started" and "serves" are two moments, and who waits for the second must not have to guess.
"""

import os
import socket


def notify_supervisor(state: str) -> None:
    """Send a line such as `READY=1` to systemd, if it asked for that; nobody listening is no error."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        try:
            sender.connect(address)
            sender.send(state.encode())
        except OSError:
            return
