"""The snapshot cache: keep, purge, bound, and survive anything."""
