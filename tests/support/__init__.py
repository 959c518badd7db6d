"""What tests share: real processes, the real API server's audit log, waiting for conditions, machine-wide locks."""
