"""Reads one number from a program's /metrics, to wait for what no write shows."""

from __future__ import annotations

import contextlib
import http.client

from prometheus_client.parser import text_string_to_metric_families


def metric(http_address: str, name: str, **labels: str) -> float:
    """Return the sample of this name whose labels include `labels`; 0 when there is none (yet)."""
    for family in text_string_to_metric_families(metrics_page(http_address)):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    return 0.0


def metrics_page(http_address: str) -> str:
    """Return all of it; by a client that reads no authorities' certificates for a plain question asked very often."""
    with contextlib.closing(http.client.HTTPConnection(http_address, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == http.client.OK
        return answer.read().decode()
