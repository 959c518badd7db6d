"""What the Nodes' part of the controller counts."""

from prometheus_client import Counter, Gauge, Histogram

NODE_WRITES = Counter(
    "cocoon_node_writes_total", "Writing requests for Nodes, by verb of the plan and outcome.", ["verb", "outcome"]
)
FIELD_CONFLICTS = Counter(
    "cocoon_node_field_conflicts_total", "Fields given up because another writer keeps changing them.", ["kind"]
)
REFUSALS = Counter("cocoon_node_refusals_total", "Reports that were not written, by stable reason.", ["reason"])
NODES = Gauge("cocoon_node_nodes", "Nodes known to the controller, by who keeps them alive.", ["lifecycle"])
REACHABLE_AGENTS = Gauge("cocoon_node_agents_reachable", "Nodes whose agent was heard from within 30 s.")
LEASE_RENEWALS = Counter("cocoon_node_lease_renewals_total", "Lease renewals, by outcome.", ["outcome"])
LEASE_LATENESS = Histogram(
    "cocoon_node_lease_lateness_seconds",
    "How long after its time a Lease was renewed.",
    buckets=(0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0),
)
EVENTS = Counter("cocoon_node_events_total", "Kubernetes Events, by outcome.", ["outcome"])
