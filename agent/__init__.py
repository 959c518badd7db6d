"""The agent on every VM host: what the host has, and the snapshots on its disk."""
