"""What the agents' part of the controller counts."""

from prometheus_client import Counter, Gauge

AGENTS = Gauge("cocoon_node_agents", "Agents known from discovery, by what their stream is doing.", ["state"])
STREAM_LOSSES = Counter(
    "cocoon_node_agent_stream_losses_total", "Attempts to keep a stream to an agent that ended, by reason.", ["reason"]
)
REPORTS = Counter("cocoon_node_agent_reports_total", "Reports received from agents, by outcome.", ["outcome"])
VERSION_SKEW = Gauge(
    "cocoon_node_agent_version_skew",
    "Agents that answer, by how their version compares to this controller's.",
    ["skew"],
)
DISCOVERY_FAILING = Gauge(
    "cocoon_node_discovery_failing",
    "1 while agents cannot be looked up there and the last good list is used.",
    ["source"],
)
TLS_FILES_BROKEN = Gauge(
    "cocoon_node_tls_files_broken", "1 while the TLS files cannot be read and the last good ones are used."
)
TLS_RUNS_OUT = Gauge("cocoon_node_tls_runs_out_soon", "1 while what is in use is close to its end or beyond it.")
TLS_EXPIRY = Gauge(
    "cocoon_node_tls_expiry_timestamp_seconds",
    "When the certificate in use, or the last of its authorities, runs out.",
    ["part"],
)
