"""What this host has, what of it may be scheduled, and the gRPC service that says so."""
