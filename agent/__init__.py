"""The agent: on every VM host, answers what the host has and keeps its VM snapshots."""
