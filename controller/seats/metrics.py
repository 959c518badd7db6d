"""What this room counts."""

from prometheus_client import Counter, Gauge, Histogram

PODS_DELETED = Counter(
    "cocoon_node_seat_release_pods_deleted_total", "Pods deleted to free the seat of a suspended VM."
)
FLAG_FAILURES = Counter(
    "cocoon_node_seat_release_flag_failures_total",
    "Keep flags that could not be written; the pods were deleted all the same.",
)
WAKES = Counter(
    "cocoon_node_seat_release_wake_total",
    "Wakes whose VM is live, by where it landed: hint-node or pool.",
    ["placement"],
)
UNSCHEDULABLE = Counter(
    "cocoon_node_seat_release_unschedulable_total", "Wakes whose pod the scheduler found no place for."
)
SNAPSHOTS_MISSING = Counter(
    "cocoon_node_seat_release_snapshot_missing_total", "Wakes whose hibernate snapshot was found missing."
)
STEPS = Counter(
    "cocoon_node_seat_release_steps_total", "Steps done, by what they do and how they ended.", ["step", "outcome"]
)
SUSPENDING = Histogram(
    "cocoon_node_seat_release_suspending_seconds",
    "How long sets were Suspending until they were Suspended.",
    buckets=(1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600),
)
RELEASE = Histogram(
    "cocoon_node_seat_release_seconds",
    "From finding the gate satisfied to the last pod's deletion being taken.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
SETS = Gauge("cocoon_node_seat_release_sets", "Sets whose seat is kept by this controller, by phase.", ["phase"])
QUEUE_DEPTH = Gauge("cocoon_node_seat_release_queue_depth", "Sets waiting for work.")
