"""The Kubernetes API: requests, watches, queues, events."""
