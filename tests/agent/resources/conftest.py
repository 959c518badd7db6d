"""Hosts to read: trees of files of other machines, and settings that point at them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.config import Settings
from agent.config_sources import load

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def host_settings(tmp_path: Path) -> Callable[..., Settings]:
    """A function that returns settings for a fixture host: `host_settings("arm64", VK_NODE_CPU="3")`."""

    def make(host: str | Path = "thirty-two-cpus", **variables: str) -> Settings:
        tree = FIXTURES / host
        environ = {
            "VK_NODE_NAME": "host-1",
            "VK_NODE_IP": "192.0.2.1",
            "COCOON_NODE_PROCFS": f"{tree}/proc",
            "COCOON_NODE_SYSFS": f"{tree}/sys",
            "COCOON_NODE_ETCFS": f"{tree}/etc",
            "COCOON_ROOT_DIR": str(tmp_path),
            "COCOON_NODE_RUN_DIR": str(tmp_path / "run"),
            "COCOON_NODE_START_RETRY_SECONDS": "0",
        }
        loaded = load({}, environ | variables)
        assert loaded.settings is not None, loaded.problems
        return loaded.settings

    return make
