"""The two parts of the official client that we use: how a kubeconfig is read, and what comes of it.

Why this exists: importing its packages imports everything they have, the generated models, their checks and a second
HTTP library, a third of every start. Their modules can be imported without that; this is the one place that does so.
Whoever imports the packages later finds them whole.
"""

import importlib.util
import sys
from types import ModuleType

import controller.kube.http_library  # noqa: F401 - before the client imports that library in its own way

_PACKAGES = ("kubernetes", "kubernetes.aio")


def _without_their_contents() -> list[str]:
    """Put packages that nobody has imported yet into place without running them; return their names."""
    made: list[str] = []
    for name in _PACKAGES:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
        package: ModuleType = importlib.util.module_from_spec(spec)
        sys.modules[name] = package
        made.append(name)
    return made


def _make_api_client(*args: object, **named: object) -> object:
    """What the kubeconfig's module knows as `ApiClient`: the real one, imported when somebody makes one."""
    from kubernetes.aio.client.api_client import ApiClient

    return ApiClient(*args, **named)


__all__ = ["Configuration", "kube_config"]

_made = _without_their_contents()
try:
    import kubernetes.aio.client as _client
    from kubernetes.aio.client.configuration import Configuration

    _client.__dict__["ApiClient"] = _make_api_client
    try:
        from kubernetes.aio import config as kube_config
    finally:
        del _client.__dict__["ApiClient"]
finally:
    for _name in _made:
        del sys.modules[_name]
