"""The controller's settings: one table of what there is, the typed struct the rest reads, and the rules between them.

Why this exists: an operator whose controller does not start has to see all that is wrong in one go, each with the
variable, the value, its source and the rule.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from common.setting_values import (
    VM_PREFIXES_RULE,
    OneOf,
    WholeNumber,
    absolute_path,
    boolean,
    http_address,
    vm_prefixes,
)
from common.settings import EffectiveValue, Setting, SettingsError, gather, parse_all
from controller.agents.endpoints import AgentEndpoint, parse_endpoints, plain_text_problem, split_address
from controller.nodes.plan import Lifecycle
from controller.seats.registry_address import parse_registry

_PREFIX = "COCOON_NODE_CONTROLLER_"
_PATH = "must be an absolute path"
_NAMESPACED = re.compile(r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/([a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?)")
_SECONDS = "must be seconds from 0.05 to 600, such as 10 or 1.5"
_DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_AGENT_SOURCES = ("agents", "agents_file", "agents_dns", "agents_service")
_TLS = ("tls_ca_file", "tls_cert_file", "tls_key_file")

_LEASE_TIMES = ("retry_period_seconds", "renew_deadline_seconds", "lease_duration_seconds")

# Read from the environment only, by the command line itself.
CONFIG_FILE_VARIABLE = _PREFIX + "CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings. None means unset; units stand in the names."""

    kubeconfig: str | None
    kube_context: str | None
    in_cluster: bool
    agents: tuple[AgentEndpoint, ...] | None
    agents_file: str | None
    agents_dns: str | None
    dns_server: str | None
    dns_refresh_seconds: int
    agents_service: tuple[str, str] | None
    agents_port_name: str | None
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    lifecycle: Lifecycle
    adopt_nodes: bool
    registration_taint: bool
    lease_namespace: str
    lease_name: str
    lease_duration_seconds: float
    renew_deadline_seconds: float
    retry_period_seconds: float
    trusted_vm_prefixes: tuple[str, ...]
    audit_only: bool
    seat_release: bool
    force_seat_release: bool
    registry: str | None
    registry_docker_config_file: str | None
    registry_ca_file: str | None
    http_listen: tuple[str, int] | None
    log_format: str
    log_level: str
    ready_file: str | None


def _file(text: str) -> str:
    """Any path: people name a kubeconfig relative to where they are."""
    if "\0" in text:
        raise ValueError(text)
    return os.path.abspath(text)


def _seconds(text: str) -> float:
    """Seconds, decimals allowed; no exponents and no infinities, which a number's own parser takes."""
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text, re.ASCII) or not 0.05 <= float(text) <= 600:
        raise ValueError(text)
    return float(text)


def _agents(text: str) -> tuple[AgentEndpoint, ...]:
    return parse_endpoints(text, "list")


def _dns_name(text: str) -> str:
    if not text.startswith("_"):
        split_address(text)
    elif not re.fullmatch(r"_[-a-z0-9_]+\._(tcp|udp)\.[-A-Za-z0-9_.]{1,200}", text):
        raise ValueError(text)
    return text


def _registry(text: str) -> str:
    parse_registry(text)
    return text


def _server(text: str) -> str:
    split_address(text)
    return text


def _service(text: str) -> tuple[str, str]:
    match = _NAMESPACED.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return match[1], match[2]


def _dns_label(text: str) -> str:
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError(text)
    return text


# No setting may be called PORT, SERVICE_HOST or the like: with a Service named after the program, Kubernetes puts such
# variables into every pod, which is also why unknown variables of our prefix are no mistake.
# fmt: off
SETTINGS: tuple[Setting, ...] = (
    # The cluster.
    Setting("kubeconfig", _PREFIX + "KUBECONFIG", None, _file, "must be the path of a kubeconfig file",
            "Kubeconfig of the cluster to write to; none is ever taken silently."),
    Setting("kube_context", _PREFIX + "CONTEXT", None, str, "must be the name of a context",
            "Context of the kubeconfig; its current one by default."),
    Setting("in_cluster", _PREFIX + "IN_CLUSTER", "false", boolean, "must be true or false",
            "Use the service account of the pod this runs in."),
    # The agents.
    Setting("agents", _PREFIX + "AGENTS", None, _agents,
            "must be a comma-separated list of NAME=HOST:PORT or NAME=unix:/PATH", "Agents by node name."),
    Setting("agents_file", _PREFIX + "AGENTS_FILE", None, _file,
            "must be the path of a file", "File of NAME=HOST:PORT lines; read again when it changes."),
    Setting("agents_dns", _PREFIX + "AGENTS_DNS", None, _dns_name,
            "must be _SERVICE._tcp.DOMAIN for SRV records, or HOST:PORT for addresses (only without TLS)",
            "DNS name behind which the agents are."),
    Setting("dns_server", _PREFIX + "DNS_SERVER", None, _server, "must be IP or IP:PORT",
            "Name server to ask; the system's by default."),
    Setting("dns_refresh_seconds", _PREFIX + "DNS_REFRESH_SECONDS", "30", WholeNumber(1, 3600),
            "must be a whole number of seconds from 1 to 3600", "How often DNS is asked."),
    Setting("agents_service", _PREFIX + "AGENTS_SERVICE", None, _service, "must be NAMESPACE/NAME",
            "Service whose EndpointSlices list the agents."),
    Setting("agents_port_name", _PREFIX + "AGENTS_PORT_NAME", None, _dns_label, "must be the name of a port",
            "Port of that Service; its only or first one by default."),
    Setting("tls_ca_file", _PREFIX + "TLS_CA_FILE", None, absolute_path, _PATH,
            "Authorities that the agents' certificates must come from, PEM."),
    Setting("tls_cert_file", _PREFIX + "TLS_CERT_FILE", None, absolute_path, _PATH,
            "Our client certificate chain, PEM."),
    Setting("tls_key_file", _PREFIX + "TLS_KEY_FILE", None, absolute_path, _PATH,
            "The certificate's private key, PEM."),
    # The Nodes.
    Setting("lifecycle", "COCOON_NODE_LIFECYCLE", "auto", OneOf("auto", "own", "external"),
            "must be auto, own or external",
            "Who renews the Node's Lease and sets Ready: we, somebody else, or found out."),
    Setting("adopt_nodes", _PREFIX + "ADOPT_NODES", "false", boolean, "must be true or false",
            "Write labels and capacity of Nodes that others registered, even without the cocoon-vm role label."),
    Setting("registration_taint", _PREFIX + "REGISTRATION_TAINT", "true", boolean, "must be true or false",
            "Register Nodes with the taint virtual-kubelet.io/provider=cocoon:NoSchedule."),
    # The leader, and what it decides about snapshots.
    Setting("lease_namespace", _PREFIX + "LEASE_NAMESPACE", "cocoon-system", _dns_label, "must be a namespace",
            "Namespace of the Lease on which the leader is elected."),
    Setting("lease_name", _PREFIX + "LEASE_NAME", "cocoon-node-controller", _dns_label, "must be a name",
            "Name of the Lease on which the leader is elected."),
    Setting("lease_duration_seconds", _PREFIX + "LEASE_DURATION_SECONDS", "10", _seconds, _SECONDS,
            "How long a leader that does not renew keeps others waiting."),
    Setting("renew_deadline_seconds", _PREFIX + "RENEW_DEADLINE_SECONDS", "7", _seconds, _SECONDS,
            "After how long without renewal a leader stops acting."),
    Setting("retry_period_seconds", _PREFIX + "RETRY_PERIOD_SECONDS", "2", _seconds, _SECONDS,
            "How often the Lease is renewed or asked for."),
    Setting("trusted_vm_prefixes", "COCOON_NODE_TRUSTED_VM_PREFIXES", "", vm_prefixes, VM_PREFIXES_RULE,
            "VM names that are not their pods' own and yet may be purged; the agents need the same."),
    Setting("audit_only", _PREFIX + "AUDIT_ONLY", "false", boolean, "must be true or false",
            "Decide about snapshots and tell, but send nothing to the agents."),
    # The seats of suspended VMs.
    Setting("seat_release", _PREFIX + "SEAT_RELEASE", "false", boolean, "must be true or false",
            "Free the seats of suspended CocoonSets with hibernatePolicy release, and wake them."),
    Setting("force_seat_release", _PREFIX + "FORCE_SEAT_RELEASE", "false", boolean, "must be true or false",
            "Release seats although a cocoon-operator holds its Lease."),
    Setting("registry", _PREFIX + "REGISTRY", None, _registry,
            "must be https://HOST[:PORT][/PATH] or http://…, without user, query or fragment",
            "OCI registry with the hibernate snapshots, and the path in front of VM names."),
    Setting("registry_docker_config_file", _PREFIX + "REGISTRY_DOCKER_CONFIG_FILE", None, absolute_path, _PATH,
            "Docker configuration file with the login for that registry."),
    Setting("registry_ca_file", _PREFIX + "REGISTRY_CA_FILE", None, absolute_path, _PATH,
            "Authorities that the registry's certificate must come from, PEM; the system's by default."),
    # How it is watched.
    Setting("http_listen", _PREFIX + "HTTP_LISTEN", "127.0.0.1:7445", http_address,
            "must be IP:PORT, [IPV6]:PORT, localhost:PORT or off",
            "Where /healthz, /readyz and /metrics are served."),
    Setting("log_format", _PREFIX + "LOG_FORMAT", "text", OneOf("text", "json"), "must be text or json",
            "Form of log records on standard error."),
    Setting("log_level", _PREFIX + "LOG_LEVEL", "info", OneOf("debug", "info", "warning", "error"),
            "must be debug, info, warning or error", "Least severity that is logged."),
    Setting("ready_file", _PREFIX + "READY_FILE", None, _file, "must be the path of a file",
            "Written once everything is ready: a JSON object with the HTTP address."),
)
# fmt: on


def gather_values(
    options: Mapping[str, str | None], environ: Mapping[str, str], path: str | None
) -> tuple[list[EffectiveValue], list[str]]:
    """Return the effective texts with their sources, and what is wrong with the settings file."""
    return gather(SETTINGS, options, environ, path or environ.get(CONFIG_FILE_VARIABLE) or None, _PREFIX)


def load_settings(
    options: Mapping[str, str | None],
    environ: Mapping[str, str],
    path: str | None = None,
    *,
    needs_cluster: bool = True,
    needs_agents: bool = True,
) -> Settings:
    """Return the settings. Raises `SettingsError` with every problem.

    `needs_cluster` and `needs_agents` say what the command cannot do without.
    """
    values, problems = gather_values(options, environ, path)
    parsed, wrong = parse_all(values)
    problems += wrong
    problems += _conflicts(parsed)
    named = {value.setting.name for value in values if value.text is not None}
    if needs_cluster and not (named & {"kubeconfig"} or parsed.get("in_cluster")):
        problems.append("the cluster to write to is not named: give --kubeconfig FILE or --in-cluster")
    if needs_agents and not named & set(_AGENT_SOURCES):
        problems.append("no agents are named: give --agents, --agents-file, --agents-dns or --agents-service")
    if problems:
        raise SettingsError(problems)
    # The parsers of the table give the types of the struct's fields.
    return Settings(**parsed)  # type: ignore[arg-type]


def _conflicts(parsed: Mapping[str, object]) -> list[str]:
    """Rules over several settings; one whose part has a problem already is left out."""
    problems: list[str] = []
    if parsed.get("kubeconfig") and parsed.get("in_cluster"):
        problems.append("--kubeconfig and --in-cluster name two clusters: give one of them")
    given = [name for name in _TLS if parsed.get(name)]
    if 0 < len(given) < len(_TLS):
        missing = ", ".join(_PREFIX + name.upper() for name in _TLS if name not in given)
        problems.append(f"TLS needs the agents' authorities, our certificate and its key together; missing: {missing}")
    times = [parsed.get(name) for name in _LEASE_TIMES]
    if all(isinstance(each, float) for each in times) and not times[0] < times[1] < times[2]:  # type: ignore[operator]
        names = ", ".join(_PREFIX + name.upper() for name in _LEASE_TIMES)
        problems.append(f"{names} must grow in this order")
    if parsed.get("seat_release") and parsed.get("audit_only"):
        problems.append("--seat-release and --audit-only exclude each other: an audit changes nothing")
    agents = cast("tuple[AgentEndpoint, ...]", parsed.get("agents") or ())
    problems += [
        f"{_PREFIX}AGENTS: {endpoint.node_name}={endpoint.address}: {problem}"
        for endpoint in agents
        if (problem := plain_text_problem(endpoint, tls=bool(given)))
    ]
    dns = parsed.get("agents_dns")
    if given and isinstance(dns, str) and not dns.startswith("_"):
        problems.append(f"{_PREFIX}AGENTS_DNS={dns}: with TLS only SRV records will do, addresses carry no node name")
    return problems
