"""The hub as a Ray actor: killed, it is back on the same ports and takes devices again."""

from __future__ import annotations

import os
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.config import HubConfig
from orchestrator.identity.authority import Authority
from shoal.wire import HUB_TLS_NAME
from tests.harness.ports import free_port
from tests.harness.processes import command_line
from tests.harness.redis_server import running_redis


@pytest.fixture
def config() -> Iterator[HubConfig]:
    with tempfile.TemporaryDirectory(prefix="shoal-h-") as name, running_redis() as url:
        folder = Path(name)
        tls_dir = folder / "hub"
        tls_dir.mkdir()
        key, certificate = Authority.load_or_create(folder / "ca").issue_service(
            "hub:h1", [HUB_TLS_NAME]
        )
        (tls_dir / "tls.key").write_text(key)
        (tls_dir / "tls.crt").write_text(certificate)
        yield HubConfig(
            "h1",
            url,
            folder / "ca",
            tls_dir,
            enrol_port=free_port(),
            link_port=free_port(),
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_killed_hub_is_back_on_the_same_ports(config: HubConfig) -> None:
    with warnings.catch_warnings():
        # Ray's own imports use what is deprecated.
        warnings.simplefilter("ignore")
        import ray

        from orchestrator.actors.hub import HubActor

    expected = {
        "enrol": f"127.0.0.1:{config.enrol_port}",
        "link": f"127.0.0.1:{config.link_port}",
    }
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            _temp_dir=folder,
        )
        try:
            hub = HubActor.options(name="hub").remote(config)
            assert ray.get(hub.addresses.remote(), timeout=60) == expected
            (actor,) = [
                child
                for child in psutil.Process().children(recursive=True)
                if "HubActor" in command_line(child)
            ]
            os.kill(actor.pid, signal.SIGKILL)
            assert ray.get(hub.addresses.remote(), timeout=60) == expected
            ray.get(hub.stop.remote(), timeout=10)
        finally:
            ray.shutdown()
