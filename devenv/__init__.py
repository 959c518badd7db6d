"""The local world of a developer: a real Kubernetes control plane from pinned sources, and the demonstration.

Nothing here ships in a wheel or an image; `agent` and `controller` never import it.
"""
