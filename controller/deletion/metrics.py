"""What this room counts."""

from prometheus_client import Counter, Gauge, Histogram

DECISIONS = Counter(
    "cocoon_node_deletion_decisions_total",
    "Decisions about snapshots of deleted pods, by row of the table, action and reason.",
    ["row", "action", "reason"],
)
ANSWERS = Counter(
    "cocoon_node_deletion_answers_total", "What agents did with retains, releases and purges.", ["call", "outcome"]
)
CALL_FAILURES = Counter(
    "cocoon_node_deletion_call_failures_total", "Calls to agents that failed, by call and reason.", ["call", "reason"]
)
OWNER_SYNCS = Counter("cocoon_node_owner_syncs_total", "Owner syncs sent to agents, by outcome.", ["outcome"])
ODD_PODS = Counter(
    "cocoon_node_odd_pods_total",
    "Pods whose annotations or nodes cannot be used as they are, by what is odd.",
    ["what"],
)
LATENCY = Histogram(
    "cocoon_node_deletion_latency_seconds",
    "From a deletion seen to the agent's answer, by call.",
    ["call"],
    buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
QUEUE_DEPTH = Gauge("cocoon_node_deletion_queue_depth", "Names waiting for work, by queue.", ["queue"])
OLDEST_UNDONE = Gauge(
    "cocoon_node_deletion_oldest_undone_seconds", "Age of the oldest decision that could not be carried out yet."
)
UNDONE = Gauge("cocoon_node_deletion_undone", "Decisions that could not be carried out yet.")
BRAKED = Gauge("cocoon_node_deletion_braked", "Purges that the brake holds.")
LEADING = Gauge("cocoon_node_leading", "1 while this process leads.")
