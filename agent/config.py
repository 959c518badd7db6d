"""The agent's settings: one table of what there is, and the typed struct the rest of the agent reads.

Why this exists: a setting is described once, here, with its rule in words. The command line's options, the variables of
the environment, the file's lines, the messages about bad values and `config show` all come from this table.
"""

import os
from dataclasses import dataclass

from agent import config_values as values
from agent.config_values import ListenAddress
from common.setting_values import (
    VM_PREFIXES_RULE,
    OneOf,
    WholeNumber,
    absolute_path,
    boolean,
    http_address,
    vm_prefixes,
)
from common.settings import Setting

_QUANTITY = "must be a Kubernetes quantity above 0 and at most 2^63-1"
_PATH = "must be an absolute path"
_SECONDS = WholeNumber(0, 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings. `None` means unset; units stand in the names."""

    node_name: str
    node_cpu_millicores: int | None
    node_memory_bytes: int | None
    node_storage_bytes: int | None
    node_hugepages_bytes: int | None
    node_pods: int
    reserve_percent: int
    pool: str
    snapshot_cpu_class: str | None
    node_ip: str | None
    provider_id: str | None
    root_dir: str
    memory_excludes_hugepages: bool
    storage_refresh_seconds: int
    refresh_seconds: int
    start_retry_seconds: int
    procfs: str
    sysfs: str
    etcfs: str
    listen: tuple[ListenAddress, ...]
    http_listen: tuple[str, int] | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_client_ca_file: str | None
    tls_controller_names: tuple[str, ...]
    tls_viewer_names: tuple[str, ...]
    max_connections: int
    log_format: str
    log_level: str
    ready_file: str | None
    store: str
    snapshot_dir: str
    cocoon_bin: str
    run_dir: str
    state_dir: str
    trusted_vm_prefixes: tuple[str, ...]
    collection: str
    high_watermark_percent: int
    low_watermark_percent: int
    policy_max_age_seconds: int | None
    policy_max_bytes: int | None
    policy_keep_at_most: int | None
    standalone: bool
    retained_is_reclaimable: bool


def _host_name() -> str:
    return os.uname().nodename.lower()


# fmt: off
SETTINGS: tuple[Setting, ...] = (
    # What the Node says.
    Setting("node_name", "VK_NODE_NAME", _host_name, values.node_name,
            "must be an RFC 1123 subdomain (lower case, digits, '-' and '.') of at most 63 characters",
            "Node to publish; the host name in lower case by default."),
    Setting("node_cpu_millicores", "VK_NODE_CPU", None, values.cpu_millicores, _QUANTITY + ", such as 32 or 31500m",
            "CPU capacity in place of the probed one."),
    Setting("node_memory_bytes", "VK_NODE_MEM", None, values.byte_count, _QUANTITY + ", such as 64Gi",
            "Memory capacity in place of the probed one."),
    Setting("node_storage_bytes", "VK_NODE_STORAGE", None, values.byte_count, _QUANTITY + ", such as 1Ti",
            "Storage, total and available alike, in place of the probed numbers."),
    Setting("node_hugepages_bytes", "VK_NODE_HUGEPAGES", None, values.byte_count_or_none,
            "must be a Kubernetes quantity from 0 to 2^63-1, such as 8Gi",
            "Published as hugepages-2Mi in place of every probed size; 0 publishes none."),
    Setting("node_pods", "VK_NODE_PODS", "256", values.pod_count, "must be a whole number above 0",
            "Pods this Node takes; the reserve does not touch it."),
    Setting("reserve_percent", "VK_RESERVE_PERCENT", "20", WholeNumber(0, 100),
            "must be a whole number from 0 to 100",
            "Share of every resource but pods that is held back."),
    Setting("pool", "VK_NODE_POOL", "default", values.label_value,
            "must be a Kubernetes label value: at most 63 letters, digits, '-', '_' and '.', alphanumeric at both ends",
            "Value of the label cocoonstack.io/pool."),
    Setting("snapshot_cpu_class", "VK_SNAPSHOT_CPU_CLASS", None, values.label_value,
            "must be a Kubernetes label value: at most 63 letters, digits, '-', '_' and '.', alphanumeric at both ends",
            "Value of the label cocoonstack.io/snapshot-cpu-class; no label when unset."),
    Setting("node_ip", "VK_NODE_IP", None, values.host_address, "must be the IPv4 or IPv6 address of one host",
            "The Node's InternalIP; the first non-loopback IPv4 address by default."),
    Setting("provider_id", "VK_PROVIDER_ID", None, values.printable_word,
            "must be at most 253 printable characters without spaces",
            "Value of spec.providerID."),
    # How the host is read.
    Setting("root_dir", "COCOON_ROOT_DIR", "/var/lib/cocoon", absolute_path, _PATH,
            "Directory whose file system is measured."),
    Setting("memory_excludes_hugepages", "COCOON_NODE_MEMORY_EXCLUDES_HUGEPAGES", "false", boolean,
            "must be true or false", "Take huge pages off memory before the reserve, as the kubelet does."),
    Setting("storage_refresh_seconds", "COCOON_NODE_STORAGE_REFRESH_SECONDS", "60", _SECONDS,
            "must be a whole number of seconds from 0 to 86400", "How often storage is read again; 0 reads it once."),
    Setting("refresh_seconds", "COCOON_NODE_REFRESH_SECONDS", "0", _SECONDS,
            "must be a whole number of seconds from 0 to 86400",
            "How often CPU, memory and huge pages are read again; 0 reads them once."),
    Setting("start_retry_seconds", "COCOON_NODE_START_RETRY_SECONDS", "60", _SECONDS,
            "must be a whole number of seconds from 0 to 86400",
            "How long a probe that fails at start is tried again before the agent gives up."),
    Setting("procfs", "COCOON_NODE_PROCFS", "/proc", absolute_path, _PATH, "Where the host's /proc is."),
    Setting("sysfs", "COCOON_NODE_SYSFS", "/sys", absolute_path, _PATH, "Where the host's /sys is."),
    Setting("etcfs", "COCOON_NODE_ETCFS", "/etc", absolute_path, _PATH,
            "Where the host's /etc is (os-release, machine-id)."),
    # How it answers.
    Setting("listen", "COCOON_NODE_LISTEN", "127.0.0.1:7443", values.listen_addresses,
            "must be a comma-separated list of IP:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH",
            "Where gRPC is served."),
    Setting("http_listen", "COCOON_NODE_HTTP_LISTEN", "127.0.0.1:7444", http_address,
            "must be IP:PORT, [IPV6]:PORT, localhost:PORT or off",
            "Where /healthz, /readyz and /metrics are served."),
    Setting("tls_cert_file", "COCOON_NODE_TLS_CERT_FILE", None, absolute_path, _PATH,
            "The agent's certificate chain, PEM."),
    Setting("tls_key_file", "COCOON_NODE_TLS_KEY_FILE", None, absolute_path, _PATH,
            "The certificate's private key, PEM."),
    Setting("tls_client_ca_file", "COCOON_NODE_TLS_CLIENT_CA_FILE", None, absolute_path, _PATH,
            "Authorities that client certificates must come from, PEM."),
    Setting("tls_controller_names", "COCOON_NODE_TLS_CONTROLLER_NAMES", "cocoon-node-controller", values.words,
            "must be a comma-separated list of names",
            "Subject alternative names of clients that may do everything."),
    Setting("tls_viewer_names", "COCOON_NODE_TLS_VIEWER_NAMES", "cocoon-node-viewer", values.words,
            "must be a comma-separated list of names", "Subject alternative names of clients that may read."),
    Setting("max_connections", "COCOON_NODE_MAX_CONNECTIONS", "256", WholeNumber(4, 65536),
            "must be a whole number from 4 to 65536",
            "Connections that each address of COCOON_NODE_LISTEN takes at once; more are closed unanswered."),
    Setting("log_format", "COCOON_NODE_LOG_FORMAT", "text", OneOf("text", "json"), "must be text or json",
            "Form of log records on standard error."),
    Setting("log_level", "COCOON_NODE_LOG_LEVEL", "info", OneOf("debug", "info", "warning", "error"),
            "must be debug, info, warning or error", "Least severity that is logged."),
    Setting("ready_file", "COCOON_NODE_READY_FILE", None, absolute_path, _PATH,
            "Written once the agent serves: a JSON object with the bound addresses."),
    # The snapshot cache.
    Setting("store", "COCOON_NODE_STORE", "directory", OneOf("directory", "cocoon"), "must be directory or cocoon",
            "Who keeps the snapshots: a plain directory, or the cocoon engine."),
    Setting("snapshot_dir", "COCOON_NODE_SNAPSHOT_DIR", None, absolute_path, _PATH,
            "The directory store; <COCOON_ROOT_DIR>/snapshots by default."),
    Setting("cocoon_bin", "VK_COCOON_BIN", "/usr/local/bin/cocoon", absolute_path, _PATH,
            "The engine's program."),
    Setting("run_dir", "COCOON_NODE_RUN_DIR", "/var/lib/cocoon/run", absolute_path, _PATH,
            "The engine's run directory, where VMs have their disk overlays."),
    Setting("state_dir", "COCOON_NODE_STATE_DIR", "/var/lib/cocoon-node", absolute_path, _PATH,
            "The agent's own records."),
    Setting("trusted_vm_prefixes", "COCOON_NODE_TRUSTED_VM_PREFIXES", "", vm_prefixes, VM_PREFIXES_RULE,
            "VM names that are not their pods' own and yet may be purged; the controller needs the same."),
    Setting("collection", "COCOON_NODE_COLLECTION", "on", OneOf("on", "report", "off"), "must be on, report or off",
            "Whether snapshots are collected, only reported, or neither."),
    Setting("high_watermark_percent", "COCOON_NODE_HIGH_WATERMARK_PERCENT", "85", WholeNumber(1, 100),
            "must be a whole number from 1 to 100", "Use of the file system above which collection starts."),
    Setting("low_watermark_percent", "COCOON_NODE_LOW_WATERMARK_PERCENT", "80", WholeNumber(0, 99),
            "must be a whole number from 0 to 99", "Use of the file system below which collection stops."),
    Setting("policy_max_age_seconds", "COCOON_NODE_POLICY_MAX_AGE", None, values.span_seconds,
            "must be a span of time such as 90s, 30m, 72h, 14d or 2w",
            "Snapshots last used longer ago are collected."),
    Setting("policy_max_bytes", "COCOON_NODE_POLICY_MAX_BYTES", None, values.byte_count, _QUANTITY + ", such as 200Gi",
            "Snapshots are collected until the rest occupies at most this."),
    Setting("policy_keep_at_most", "COCOON_NODE_POLICY_KEEP_AT_MOST", None, WholeNumber(0, 1_000_000),
            "must be a whole number from 0 to 1000000", "Snapshots are collected until at most this many are left."),
    Setting("standalone", "COCOON_NODE_STANDALONE", "false", boolean, "must be true or false",
            "Says that no controller will ever tell this agent who owns what."),
    Setting("retained_is_reclaimable", "COCOON_NODE_RETAINED_IS_RECLAIMABLE", "false", boolean,
            "must be true or false", "Count what retained snapshots occupy as available storage."),
)
# fmt: on

# Read from the environment only, by the command line itself.
CONFIG_FILE_VARIABLE = "COCOON_NODE_CONFIG"
