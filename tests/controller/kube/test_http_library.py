"""The HTTP library comes without the system's trust, and nothing else that makes contexts notices."""

import subprocess
import sys

_PROGRAM = """
import ssl
made = ssl.create_default_context

from controller.kube.http_library import aiohttp
from controller.kube import official

assert ssl.create_default_context is made
for_nobody = vars(aiohttp.connector)["_SSL_CONTEXT_VERIFIED"]
assert for_nobody.verify_mode is ssl.CERT_REQUIRED and for_nobody.check_hostname
assert for_nobody.cert_store_stats()["x509"] == 0
print("trusts nobody")
"""

_START = """
import sys
from controller import app

unused = {"controller.seats.assembly", "controller.seats.registry", "kubernetes.client", "pydantic", "rich"}
print(sorted(unused & sys.modules.keys()))
"""


def _printed(program: str) -> str:
    # In a process of its own: here others have imported everything long since.
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not answer.returncode, answer.stderr
    return answer.stdout


def test_a_connector_that_was_given_no_trust_lets_nobody_in() -> None:
    assert _printed(_PROGRAM) == "trusts nobody\n"


def test_a_start_leaves_out_what_is_not_asked_for() -> None:
    assert _printed(_START) == "[]\n"
