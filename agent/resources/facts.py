"""Facts about the host for the Node's system information, and its address.

Why this exists: these identify the machine and its kernel to people and to the controller, which tells a reinstalled
host from a restarted agent by them. A fact that cannot be read is empty, never an error.
"""

import os
import socket
from dataclasses import dataclass

from common.kubernetes_names import is_name_part

_ARCHITECTURES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
    "i386": "386",
    "loongarch64": "loong64",
}


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known about the host; `architecture` in the spelling of the label `kubernetes.io/arch`."""

    cpu_model: str
    architecture: str
    kernel_version: str
    os_image: str
    boot_id: str
    machine_id: str
    system_uuid: str


def read_facts(procfs: str, sysfs: str, etcfs: str) -> HostFacts:
    """Read the facts under the given roots."""
    machine = _line(f"{procfs}/sys/kernel/arch")
    if not is_name_part(machine):
        # It becomes a label's value, which nothing but such a name may be.
        machine = os.uname().machine
    return HostFacts(
        cpu_model=_cpu_model(f"{procfs}/cpuinfo", f"{sysfs}/firmware/devicetree/base/model"),
        architecture=_ARCHITECTURES.get(machine, machine),
        kernel_version=_line(f"{procfs}/sys/kernel/osrelease"),
        os_image=_os_image(f"{etcfs}/os-release") or _os_image(f"{etcfs}/../usr/lib/os-release"),
        boot_id=_line(f"{procfs}/sys/kernel/random/boot_id"),
        machine_id=_machine_id(f"{etcfs}/machine-id"),
        system_uuid=_line(f"{sysfs}/class/dmi/id/product_uuid").lower()
        or _line(f"{sysfs}/firmware/devicetree/base/vm,uuid").lower(),
    )


def first_ipv4_address() -> str | None:
    """Return the first IPv4 address outside 127.0.0.0/8 of an interface that is up, None when there is none.

    Interfaces in the order of their index; of each its first address.
    """
    import psutil  # a fifth of the start, and not needed where the address is configured

    states, addresses = psutil.net_if_stats(), psutil.net_if_addrs()
    for _, name in sorted(socket.if_nameindex()):
        if name not in states or not states[name].isup:
            continue
        for address in addresses.get(name, ()):
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return str(address.address)
    return None


def _cpu_model(cpuinfo: str, device_tree_model: str) -> str:
    text = _text(cpuinfo)
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "cpu model", "Model"} and value.strip():
            return _clean(value)
    return _line(device_tree_model)


def _machine_id(path: str) -> str:
    # A host's first boot has this word in its place for a while; taken for an id, it would be another machine's later.
    found = _line(path)
    return "" if found == "uninitialized" else found


def _os_image(path: str) -> str:
    for line in _text(path).splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return _clean(value.strip().strip("\"'"))
    return ""


def _line(path: str) -> str:
    return _clean(_text(path).partition("\n")[0])


def _text(path: str) -> str:
    # The first pages are enough: the first processor's entry, one line, a short list of names.
    try:
        with open(path, "rb") as file:
            return file.read(16384).decode("utf-8", "replace")
    except OSError:
        return ""


def _clean(text: str) -> str:
    """Return the text on one line, at most 256 characters, without characters that are not printable."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:256]
