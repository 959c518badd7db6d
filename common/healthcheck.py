"""Asks a program's own listener whether it lives: the health check of the container images.

Why this exists: the images hold nothing that could ask over HTTP, and a shell line in a Dockerfile cannot be tested.
Standard library only, so that a check costs as little as a start of Python.

`python -m common.healthcheck VARIABLE DEFAULT` takes the address from the environment variable that the program itself
takes it from. Exit status 0: alive, or the listener is turned off and there is nothing to ask; 1: no good answer.
"""

import http.client
import os
import sys

from common.addresses import reachable_host
from common.setting_values import http_address

_SECONDS = 5.0


def problem_with(listen: str) -> str:
    """Ask `/healthz` at the address a listener was given, `HOST:PORT`; return what is wrong, empty when nothing is."""
    try:
        address = http_address(listen)
        if address is None:
            return ""
        host, port = address
        connection = http.client.HTTPConnection(reachable_host(host), port, timeout=_SECONDS)
        try:
            connection.request("GET", "/healthz")
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{listen}: {str(error) or type(error).__name__}"
    return "" if status == http.HTTPStatus.OK else f"{listen}: /healthz answered {status}"


def main(variable: str, default: str) -> int:
    """Print what is wrong, if anything; return the exit status."""
    problem = problem_with(os.environ.get(variable) or default)
    if problem:
        sys.stderr.write(f"{problem}\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
