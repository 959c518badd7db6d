"""The two parts of the official client that we use: how a kubeconfig is read, and what comes of it.

Why this exists: importing its packages imports everything they have, the generated models, a second HTTP library and
the informers, a fifth of a second of every start. Their modules can be imported without that; this is the one place
that does so. Whoever imports the packages later finds them whole.
"""

import importlib.util
import sys
from types import ModuleType

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


__all__ = ["Configuration", "kube_config"]

_made = _without_their_contents()
try:
    from kubernetes.aio import config as kube_config
    from kubernetes.aio.client import Configuration
finally:
    for _name in _made:
        del sys.modules[_name]
