"""What the controller shows over HTTP: health, readiness with reasons, metrics."""
