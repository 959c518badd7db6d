"""The official client's packages stay out of a start, and are whole for whoever wants them later."""

import subprocess
import sys

_PROGRAM = """
import sys
from controller.kube import official

heavy = {"kubernetes", "kubernetes.client", "kubernetes.dynamic", "urllib3"} & sys.modules.keys()
assert not heavy, heavy

import kubernetes
import kubernetes.aio

assert kubernetes.client.CoreV1Api
assert kubernetes.aio.client.Configuration is official.Configuration
assert kubernetes.aio.config is official.kube_config
print("whole")
"""


def test_packages_are_not_run_and_not_broken() -> None:
    """In a process of its own: here others have imported them long since."""
    answer = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False)
    assert answer.stdout == "whole\n", answer.stderr
