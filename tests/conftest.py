"""Settings of all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says more of the machine's load than of the code under test.
_ANY_LOAD = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run, so that a red run is the change's own fault;
# `pytest --hypothesis-profile=new_examples` looks for others.
settings.register_profile("same_examples", _ANY_LOAD, derandomize=True)
settings.register_profile("new_examples", _ANY_LOAD)
settings.load_profile("same_examples")

# Engines of two workers share the cores: a thread that spins keeps the other's from work.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_E2E = Path(__file__).parent / "e2e"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep together, on one worker, what shares a fleet or a module's engines."""
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        group = "e2e" if item.path.is_relative_to(_E2E) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
