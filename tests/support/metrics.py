"""Reads one number from a program's /metrics, to wait for what no write shows."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families


def metric(http_address: str, name: str, **labels: str) -> float:
    """Return the sample of this name whose labels include `labels`; 0 when there is none (yet)."""
    text = httpx.get(f"http://{http_address}/metrics", trust_env=False, timeout=10).raise_for_status().text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return 0.0
