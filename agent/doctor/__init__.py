"""What `doctor` looks at: the host, the ways in, the snapshots; beside a running agent or without one."""
