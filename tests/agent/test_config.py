"""Every setting's values, where they come from, and what a bad one is answered with."""

import dataclasses
import os
from pathlib import Path

import pytest

from agent.config import CONFIG_FILE_VARIABLE, SETTINGS, Settings
from agent.config_sources import Loaded, load
from agent.config_values import ListenAddress
from common.settings import printable_value

TLS = {
    "COCOON_NODE_TLS_CERT_FILE": "/c",
    "COCOON_NODE_TLS_KEY_FILE": "/k",
    "COCOON_NODE_TLS_CLIENT_CA_FILE": "/a",
}


def loaded(**environ: str) -> Loaded:
    return load({}, environ)


def settings(**environ: str) -> Settings:
    found = loaded(**environ)
    assert found.settings is not None, found.problems
    return found.settings


def test_the_table_and_the_struct_agree() -> None:
    """Each setting once, each variable once, each with a rule and a sentence of help."""
    assert [setting.name for setting in SETTINGS] == [field.name for field in dataclasses.fields(Settings)]
    assert len({setting.variable for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.rule.startswith("must be") and setting.help.endswith(".") for setting in SETTINGS)


def test_defaults() -> None:
    found = settings(VK_NODE_NAME="n")
    assert found.node_pods == 256
    assert found.reserve_percent == 20
    assert found.pool == "default"
    assert found.snapshot_cpu_class is None
    assert found.root_dir == "/var/lib/cocoon"
    assert found.snapshot_dir == "/var/lib/cocoon/snapshots"
    assert (found.store, found.cocoon_bin) == ("directory", "/usr/local/bin/cocoon")
    assert found.state_dir == "/var/lib/cocoon-node"
    assert (found.collection, found.standalone, found.retained_is_reclaimable) == ("on", False, False)
    assert (found.policy_max_age_seconds, found.policy_max_bytes, found.policy_keep_at_most) == (None, None, None)
    assert found.storage_refresh_seconds == 60
    assert found.refresh_seconds == 0
    assert found.listen == (ListenAddress("127.0.0.1", 7443),)
    assert (found.high_watermark_percent, found.low_watermark_percent) == (85, 80)
    assert found.trusted_vm_prefixes == ()


def test_the_node_name_is_the_host_name_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((uname[0], "Host-A.Example", *uname[2:])))
    assert settings().node_name == "host-a.example"


def test_a_host_name_that_is_no_node_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    uname = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((uname[0], "host_a", *uname[2:])))
    (problem,) = loaded().problems
    assert problem.startswith('VK_NODE_NAME="host_a" (default): must be an RFC 1123 subdomain')


@pytest.mark.parametrize(
    ("variable", "text", "name", "expected"),
    [
        ("VK_NODE_CPU", "32", "node_cpu_millicores", 32000),
        ("VK_NODE_CPU", "3100m", "node_cpu_millicores", 3100),
        ("VK_NODE_MEM", "1.2Gi", "node_memory_bytes", 1288490189),
        ("VK_NODE_MEM", "1.5Gi", "node_memory_bytes", 1610612736),
        ("VK_NODE_MEM", "129e6", "node_memory_bytes", 129000000),
        ("VK_NODE_MEM", "129M", "node_memory_bytes", 129000000),
        ("VK_NODE_MEM", "100m", "node_memory_bytes", 1),
        ("VK_NODE_STORAGE", "1Ei", "node_storage_bytes", 2**60),
        ("VK_NODE_HUGEPAGES", "0", "node_hugepages_bytes", 0),
        ("VK_NODE_PODS", "1k", "node_pods", 1000),
        ("VK_RESERVE_PERCENT", "0", "reserve_percent", 0),
        ("VK_RESERVE_PERCENT", "100", "reserve_percent", 100),
        ("VK_SNAPSHOT_CPU_CLASS", "Intel-Gen_4.x", "snapshot_cpu_class", "Intel-Gen_4.x"),
        ("VK_NODE_IP", "2001:DB8::1", "node_ip", "2001:db8::1"),
        ("VK_PROVIDER_ID", "cocoon://rack-1/7", "provider_id", "cocoon://rack-1/7"),
        ("COCOON_ROOT_DIR", "/data/", "root_dir", "/data"),
        ("COCOON_ROOT_DIR", "/data", "snapshot_dir", "/data/snapshots"),
        ("COCOON_ROOT_DIR", "/", "snapshot_dir", "/snapshots"),
        ("COCOON_NODE_LISTEN", "[::1]:0", "listen", (ListenAddress("::1", 0),)),
        (
            "COCOON_NODE_LISTEN",
            "localhost:1, unix:/run/a.sock",
            "listen",
            (ListenAddress("localhost", 1), ListenAddress(unix_path="/run/a.sock")),
        ),
        ("COCOON_NODE_HTTP_LISTEN", "off", "http_listen", None),
        ("COCOON_NODE_POLICY_MAX_AGE", "2w", "policy_max_age_seconds", 1209600),
        ("COCOON_NODE_POLICY_MAX_BYTES", "200Gi", "policy_max_bytes", 200 * 2**30),
        ("COCOON_NODE_POLICY_KEEP_AT_MOST", "0", "policy_keep_at_most", 0),
        ("COCOON_NODE_TRUSTED_VM_PREFIXES", "vk-lab-, vk-x.", "trusted_vm_prefixes", ("vk-lab-", "vk-x.")),
        ("COCOON_NODE_STANDALONE", "true", "standalone", True),
    ],
)
def test_reads(variable: str, text: str, name: str, expected: object) -> None:
    """F7: quantities as Kubernetes reads them."""
    assert getattr(settings(**{"VK_NODE_NAME": "n", variable: text}), name) == expected


REFUSED = {
    "VK_NODE_NAME": ["UPPER", "a_b", "-a", "a.", "a" * 64, "é", "a b"],
    "VK_NODE_CPU": ["9223372036854775808", " 5Gi", "5GB", "-1", "NaN", "0x10", "0", "9223372036854775807"],
    "VK_NODE_MEM": ["9223372036854775808", " 5Gi", "5GB", "-1", "NaN", "0x10", "0", "8Ei"],
    "VK_NODE_STORAGE": ["9223372036854775808", " 5Gi", "5GB", "-1", "NaN", "0x10", "0"],
    "VK_NODE_HUGEPAGES": ["9223372036854775808", " 5Gi", "5GB", "-1", "NaN", "0x10"],
    "VK_NODE_PODS": ["0", "1.5", "-1", "many", "100m"],
    "VK_RESERVE_PERCENT": ["20%", "-1", "101", "20.5", " 20", "20 ", "+20", "1e1", "٢٠"],
    "VK_NODE_POOL": ["-a", "a-", "a b", "a/b", "a" * 64, "ä"],
    "VK_SNAPSHOT_CPU_CLASS": ["-a", "a\n", "a" * 64],
    "VK_NODE_IP": [
        "10.0.0",
        "010.0.0.1",
        "host",
        "1.2.3.4/24",
        ":::",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "ff02::1",
        "224.0.0.1",
        "255.255.255.255",
    ],
    "VK_PROVIDER_ID": ["a b", "a\x1b", "x" * 254],
    "COCOON_ROOT_DIR": ["relative", "a/b", "/a\nb"],
    "COCOON_NODE_STORAGE_REFRESH_SECONDS": ["-1", "1.5", "86401", "1m"],
    "COCOON_NODE_MEMORY_EXCLUDES_HUGEPAGES": ["yes", "True", "1"],
    "COCOON_NODE_LISTEN": [
        "7443",
        "127.0.0.1",
        "127.0.0.1:70000",
        "::1:7443",
        "unix:relative",
        "host:1",
        "127.0.0.1:1,",
    ],
    "COCOON_NODE_HTTP_LISTEN": ["unix:/x", "7444", "on"],
    "COCOON_NODE_LOG_FORMAT": ["xml"],
    "COCOON_NODE_STORE": ["s3"],
    "COCOON_NODE_COLLECTION": ["true"],
    "COCOON_NODE_HIGH_WATERMARK_PERCENT": ["0", "101", "85%"],
    "COCOON_NODE_POLICY_MAX_AGE": ["0s", "5", "1y", "-1h", "1h30m"],
    "COCOON_NODE_POLICY_MAX_BYTES": ["0", "-1", "1GB"],
    "COCOON_NODE_TRUSTED_VM_PREFIXES": ["-a", "vk-A", "vk-a,,vk-b", "../x", "vm-", "vk-", "vk--"],
}


@pytest.mark.parametrize(("variable", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts])
def test_refuses(variable: str, text: str) -> None:
    """F7, F8, F9: the message names the variable, the value, where it came from, and the rule."""
    found = loaded(**{"VK_NODE_NAME": "n", variable: text})
    (problem,) = found.problems
    assert found.settings is None
    rule = next(setting.rule for setting in SETTINGS if setting.variable == variable)
    assert problem == f"{variable}={printable_value(text)} (environment): {rule}"
    assert problem.isprintable()


def test_all_problems_at_once() -> None:
    found = loaded(VK_NODE_NAME="UP", VK_NODE_CPU="NaN", VK_RESERVE_PERCENT="20%", COCOON_NODE_STORE="s3")
    assert [problem.split("=")[0] for problem in found.problems] == [
        "VK_NODE_NAME",
        "VK_NODE_CPU",
        "VK_RESERVE_PERCENT",
        "COCOON_NODE_STORE",
    ]


def test_a_long_value_is_cut_in_the_message() -> None:
    (problem,) = loaded(VK_NODE_NAME="n", VK_NODE_POOL="x" * 5000).problems
    assert "x" * 100 + "…" in problem
    assert "x" * 101 not in problem


def test_command_line_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "agent.env"
    file.write_text("VK_NODE_POOL=file\nVK_NODE_PODS=1\nVK_RESERVE_PERCENT=1\n")
    environ = {"VK_NODE_NAME": "n", "VK_NODE_POOL": "environment", "VK_NODE_PODS": "2"}
    found = load({"pool": "line", "node_pods": None}, environ, str(file))
    assert found.settings is not None
    assert (found.settings.pool, found.settings.node_pods, found.settings.reserve_percent) == ("line", 2, 1)
    sources = {value.setting.variable: value.source for value in found.values}
    assert sources["VK_NODE_POOL"] == "command line, --node-pool"
    assert sources["VK_NODE_PODS"] == "environment"
    assert sources["VK_RESERVE_PERCENT"] == f"{file}:3"
    assert sources["COCOON_ROOT_DIR"] == "default"


def test_an_empty_value_is_an_unset_one_at_each_level(tmp_path: Path) -> None:
    """F7, F9: a class cleared in the file is no class."""
    file = tmp_path / "agent.env"
    file.write_text("VK_SNAPSHOT_CPU_CLASS=\nVK_NODE_POOL=''\nVK_NODE_PODS=7\n")
    found = load({"node_pods": ""}, {"VK_NODE_NAME": "n", "VK_NODE_PODS": "", CONFIG_FILE_VARIABLE: str(file)})
    assert found.settings is not None
    assert found.settings.snapshot_cpu_class is None
    assert found.settings.pool == "default"
    assert found.settings.node_pods == 7


def test_a_hosts_existing_file_works_unchanged(tmp_path: Path) -> None:
    """Variables of other programs in it are nobody's business here, and warn about nothing."""
    file = tmp_path / "vk-cocoon.env"
    file.write_text(
        "# host settings\n"
        "; another comment\n"
        "KUBECONFIG=/etc/kubernetes/kubeconfig\n"
        'VK_NODE_NAME="gpu-7"\n'
        "VK_NODE_CPU=\n"
        "VK_NODE_MEM= 64Gi \n"
        "VK_TLS_CERT=/etc/x\n"
        "VK_NODE_POOL='blue'\n"
        "COCOON_ROOT_DIR=/data/cocoon\n"
        "VK_NODE_POOL=green\n"
    )
    found = load({}, {}, str(file))
    assert found.settings is not None, found.problems
    assert found.warnings == ()
    assert found.settings.node_name == "gpu-7"
    assert found.settings.node_memory_bytes == 64 * 2**30
    assert found.settings.pool == "green"
    assert found.settings.root_dir == "/data/cocoon"


def test_quotes_keep_white_space(tmp_path: Path) -> None:
    """F8: `" 20"` is refused, because its space is part of the value."""
    file = tmp_path / "agent.env"
    file.write_text('VK_NODE_NAME=n\nVK_RESERVE_PERCENT=" 20"\n')
    (problem,) = load({}, {}, str(file)).problems
    assert problem.startswith(f'VK_RESERVE_PERCENT=" 20" ({file}:2): ')


@pytest.mark.parametrize(
    "line",
    ["A", "=b", "A B=c", "1A=b", "A='b", 'A="b', "A='b'c", 'A="b"c', "A=b\\", "export A"],
)
def test_wrong_file_lines_are_problems(tmp_path: Path, line: str) -> None:
    file = tmp_path / "agent.env"
    file.write_text(f"VK_NODE_NAME=n\n{line}\n")
    (problem,) = load({}, {}, str(file)).problems
    assert problem.startswith(f"{file}:2: must be ")


@pytest.mark.parametrize("content", [b"A=\xff\n", b"#" * (1024 * 1024 + 1)])
def test_a_file_that_is_no_settings_file_is_a_problem(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "agent.env"
    file.write_bytes(content)
    (problem,) = load({}, {"VK_NODE_NAME": "n"}, str(file)).problems
    assert problem.startswith(f"{file}: must be ")


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, name: str) -> None:
    (problem,) = load({}, {"VK_NODE_NAME": "n"}, str(tmp_path / name)).problems
    assert "must be a readable file" in problem


def test_a_misspelt_setting_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "agent.env"
    file.write_text("COCOON_NODE_STATEDIR=/x\n")
    environ = {"VK_NODE_NAME": "n", "COCOON_NODE_REFRESH_SECOND": "1", "VK_NODE_CPUS": "1"}
    found = load({}, environ | {"COCOON_NODE_CONTROLLER_AGENTS": "", "COCOON_NODE_CONFIG": str(file)})
    assert found.settings is not None
    assert found.warnings == (
        "COCOON_NODE_REFRESH_SECOND (environment): no such setting; did you mean COCOON_NODE_REFRESH_SECONDS?",
        f"COCOON_NODE_STATEDIR ({file}:1): no such setting; did you mean COCOON_NODE_STATE_DIR?",
    )


@pytest.mark.parametrize("address", ["0.0.0.0:7443", "192.0.2.1:7443", "[::]:7443", "127.0.0.1:1,10.0.0.1:2"])
def test_plain_text_beyond_this_machine_is_refused(address: str) -> None:
    (problem,) = loaded(VK_NODE_NAME="n", COCOON_NODE_LISTEN=address).problems
    assert problem.startswith("COCOON_NODE_LISTEN=")
    assert "COCOON_NODE_TLS_CERT_FILE" in problem
    assert loaded(VK_NODE_NAME="n", COCOON_NODE_LISTEN=address, **TLS).problems == ()


@pytest.mark.parametrize("left_out", TLS)
def test_tls_files_come_together(left_out: str) -> None:
    environ = {name: path for name, path in TLS.items() if name != left_out}
    (problem,) = loaded(VK_NODE_NAME="n", **environ).problems
    assert "together" in problem


def test_the_low_watermark_is_below_the_high_one() -> None:
    environ = {"COCOON_NODE_HIGH_WATERMARK_PERCENT": "70", "COCOON_NODE_LOW_WATERMARK_PERCENT": "70"}
    (problem,) = loaded(VK_NODE_NAME="n", **environ).problems
    assert problem.startswith('COCOON_NODE_LOW_WATERMARK_PERCENT="70" (environment): must be less than')
