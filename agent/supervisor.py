"""What the agent tells whoever started it: systemd by its socket, scripts and tests by a file.

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


def write_ready_file(path: str, text: str) -> None:
    """Write the file in one step, so that a reader sees all of it or none. Raises `OSError`."""
    draft = f"{path}.{os.getpid()}.new"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text + "\n")
    os.replace(draft, path)
