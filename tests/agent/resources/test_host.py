"""What is read from other machines' files, and from broken ones."""

import os
from pathlib import Path

import pytest

from agent.resources.facts import HostFacts, first_ipv4_address, read_facts
from agent.resources.host import HostProbe, ProbeError

FIXTURES = Path(__file__).parents[1] / "fixtures"
MI, GI = 2**20, 2**30

HOSTS = [
    ("thirty-two-cpus", 32000, 131927504, {}),
    ("numa-hugepages", 16000, 65000000, {GI: 4 * GI}),
    ("default-1gi-pages", 8000, 33554432, {GI: 4 * GI}),
    ("offline-cpus", 9000, 16000000, {2 * MI: GI, GI: 2 * GI}),
    ("arm64", 128000, 263000000, {512 * MI: GI, 2 * MI: 20 * MI, 16 * GI: 16 * GI}),
    ("container-with-quota", 32000, 131927504, {}),
    ("no-hugepages", 1000, 1024000, {}),
]


def probe_of(tree: Path, root: Path = Path("/")) -> HostProbe:
    return HostProbe(f"{tree}/proc", f"{tree}/sys", str(root))


@pytest.mark.parametrize(("host", "millicores", "kilobytes", "hugepages"), HOSTS)
def test_reads_the_host(host: str, millicores: int, kilobytes: int, hugepages: dict[int, int]) -> None:
    """F1, F2, F3: online CPUs and memory of the host, whatever the agent's own limits; only sizes with pages."""
    probe = probe_of(FIXTURES / host)
    memory = probe.read_memory()
    assert probe.read_cpu_millicores() == millicores
    assert memory.total_bytes == kilobytes * 1024
    assert probe.read_hugepages(memory) == hugepages


def test_affinity_changes_nothing() -> None:
    """F1: an agent that may run on one CPU only still publishes all of them."""
    allowed = os.sched_getaffinity(0)
    probe = HostProbe("/proc", "/sys", "/")
    everything = probe.read_cpu_millicores()
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert probe.read_cpu_millicores() == everything
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("text", ["", "\n", "x", "3-1", "-1", "0-", "0,,a", "0x4"])
def test_a_cpu_list_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text(text)
    with pytest.raises(ProbeError) as caught:
        probe_of(tmp_path).read_cpu_millicores()
    assert (caught.value.resource, caught.value.origin) == ("cpu", str(online))


@pytest.mark.parametrize(
    "text", ["", "MemFree: 5 kB\n", "MemTotal: 0 kB\n", "MemTotal: many kB\n", "MemTotal: -4 kB\n"]
)
def test_memory_without_a_total_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(text)
    with pytest.raises(ProbeError, match=r"memory cannot be read from .*/proc/meminfo"):
        probe_of(tmp_path).read_memory()


@pytest.mark.parametrize("method", ["read_cpu_millicores", "read_memory"])
def test_a_missing_file_is_an_error(tmp_path: Path, method: str) -> None:
    with pytest.raises(ProbeError, match="No such file"):
        getattr(probe_of(tmp_path), method)()


def test_a_broken_hugepages_file_is_an_error(tmp_path: Path) -> None:
    pages = tmp_path / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
    pages.parent.mkdir(parents=True)
    pages.write_text("?\n")
    memory = probe_of(FIXTURES / "no-hugepages").read_memory()
    with pytest.raises(ProbeError, match="hugepages cannot be read"):
        probe_of(tmp_path).read_hugepages(memory)


def test_storage_is_the_file_system_of_the_directory(tmp_path: Path) -> None:
    """F5: through a symbolic link, the file system it leads to."""
    link = tmp_path / "link"
    link.symlink_to("/proc/self", target_is_directory=True)
    reading = probe_of(FIXTURES / "arm64", tmp_path).read_storage()
    space = os.statvfs(tmp_path)
    assert reading.total_bytes == space.f_blocks * space.f_frsize
    assert reading.device == tmp_path.stat().st_dev
    # /proc has no blocks, which shows that the link was followed.
    with pytest.raises(ProbeError, match="no blocks"):
        probe_of(FIXTURES / "arm64", link).read_storage()


@pytest.mark.parametrize(
    ("blocks", "available", "available_bytes"),
    [
        (1000, 0, 0),
        (1000, 1000, 4_096_000),
        (1000, 1001, 0),
        (1000, 2**64 - 5, 0),
        (2**51 - 1, 2**51 - 1, 2**63 - 4096),
    ],
)
def test_free_space_is_never_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, available: int, available_bytes: int
) -> None:
    """A negative number of free blocks arrives as a huge one; a full disk must not be sold as an empty one."""
    pretend_space(monkeypatch, blocks, available)
    reading = probe_of(FIXTURES / "arm64", tmp_path).read_storage()
    assert (reading.total_bytes, reading.available_bytes) == (blocks * 4096, available_bytes)


def test_a_size_that_no_quantity_holds_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems over a network make sizes up."""
    pretend_space(monkeypatch, 2**51, 1)
    with pytest.raises(ProbeError, match=r"reports more than 2\^63-1 bytes"):
        probe_of(FIXTURES / "arm64", tmp_path).read_storage()


def pretend_space(monkeypatch: pytest.MonkeyPatch, blocks: int, available: int) -> None:
    answer = os.statvfs_result((4096, 4096, blocks, available, available, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: answer)


def test_a_missing_root_directory_is_an_error(tmp_path: Path) -> None:
    """F5: never the size of a directory further up."""
    with pytest.raises(ProbeError, match="No such file"):
        probe_of(FIXTURES / "arm64", tmp_path / "gone").read_storage()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (
            "thirty-two-cpus",
            HostFacts(
                cpu_model="Intel(R) Xeon(R) Gold 6430",
                architecture="amd64",
                kernel_version="6.1.0-18-amd64",
                os_image="Debian GNU/Linux 12 (bookworm)",
                boot_id="5f3b8b3c-0000-4000-8000-0123456789ab",
                machine_id="0123456789abcdef0123456789abcdef",
                system_uuid="4c4c4544-0042-3510-8052-b4c04f4e5a32",
            ),
        ),
        (
            "arm64",
            HostFacts(
                cpu_model="Ampere(R) Altra(R)",
                architecture="arm64",
                kernel_version="6.8.0-31-generic-64k",
                os_image="Ubuntu 24.04 LTS",
                boot_id="5f3b8b3c-0000-4000-8000-0123456789ab",
                machine_id="0123456789abcdef0123456789abcdef",
                system_uuid="",
            ),
        ),
    ],
)
def test_facts(host: str, expected: HostFacts) -> None:
    tree = FIXTURES / host
    assert read_facts(f"{tree}/proc", f"{tree}/sys", f"{tree}/etc") == expected


def test_facts_that_cannot_be_read_are_empty(tmp_path: Path) -> None:
    facts = read_facts(str(tmp_path), str(tmp_path), str(tmp_path))
    assert facts.architecture
    assert {facts.cpu_model, facts.kernel_version, facts.machine_id, facts.boot_id, facts.system_uuid} == {""}


def test_facts_are_one_printable_line(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_bytes(b'PRETTY_NAME="a\x1b[31m\xffb' + b"x" * 999 + b'"\n')
    image = read_facts(str(tmp_path), str(tmp_path), str(tmp_path)).os_image
    assert image.isprintable()
    assert len(image) == 256


@pytest.mark.parametrize("text", ["", " \n", "x86 64", "-x86", "x" * 64, "\xff", "../x86_64"])
def test_an_architecture_that_no_label_can_have_is_the_running_kernels(tmp_path: Path, text: str) -> None:
    """A value that Kubernetes would reject must not become a label."""
    (tmp_path / "sys/kernel").mkdir(parents=True)
    running = read_facts("/proc", "/sys", "/etc").architecture
    (tmp_path / "sys/kernel/arch").write_text(text)
    assert read_facts(str(tmp_path), str(tmp_path), str(tmp_path)).architecture == running


@pytest.mark.parametrize(
    ("text", "machine_id"),
    [("uninitialized\n", ""), ("", ""), ("0123456789abcdef0123456789abcdef\n", "0123456789abcdef0123456789abcdef")],
)
def test_a_machine_without_its_id_yet_has_none(tmp_path: Path, text: str, machine_id: str) -> None:
    """F34: the word that stands there during a first boot is no machine's id."""
    (tmp_path / "machine-id").write_text(text)
    assert read_facts(str(tmp_path), str(tmp_path), str(tmp_path)).machine_id == machine_id


def test_the_address_is_not_loopback() -> None:
    address = first_ipv4_address()
    assert address is None or not address.startswith("127.")
