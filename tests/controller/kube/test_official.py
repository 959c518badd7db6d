"""The official client's packages stay out of a start, and are whole for whoever wants them later."""

import subprocess
import sys

_PROGRAM = """
import sys
from controller.kube import official

heavy = {"kubernetes", "kubernetes.client", "kubernetes.dynamic", "urllib3", "pydantic", "dateutil"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()

import kubernetes
import kubernetes.aio
from kubernetes.aio.config import kube_config

assert kubernetes.client.CoreV1Api
assert kubernetes.aio.client.Configuration is official.Configuration
assert kubernetes.aio.config is official.kube_config
made = kube_config.ApiClient(configuration=official.Configuration())
assert type(made) is kubernetes.aio.client.ApiClient, made
print("whole")
"""


def test_packages_are_not_run_and_not_broken() -> None:
    """In a process of its own: here others have imported them long since."""
    answer = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert answer.stdout == "whole\n", answer.stderr
