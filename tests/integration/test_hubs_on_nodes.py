"""Hubs on several Ray nodes: spread, and taken over when a node dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from orchestrator.config import HubConfig
from orchestrator.identity.authority import Authority
from shoal.wire import HUB_TLS_NAME
from tests.harness.ports import free_port
from tests.harness.redis_server import running_redis


@pytest.fixture
def configs() -> Iterator[list[HubConfig]]:
    with tempfile.TemporaryDirectory(prefix="shoal-n-") as name, running_redis() as url:
        folder = Path(name)
        authority = Authority.load_or_create(folder / "ca")
        configs = []
        for hub_id in ("hub-1", "hub-2"):
            (folder / hub_id).mkdir()
            key, certificate = authority.issue_service(f"hub:{hub_id}", [HUB_TLS_NAME])
            (folder / hub_id / "tls.key").write_text(key)
            (folder / hub_id / "tls.crt").write_text(certificate)
            configs.append(
                HubConfig(
                    hub_id,
                    url,
                    folder / "ca",
                    folder / hub_id,
                    enrol_port=free_port(),
                    link_port=free_port(),
                )
            )
        yield configs


def join_node(address: str, stack: ExitStack) -> subprocess.Popen[bytes]:
    """One more Ray node on this machine's loopback, ended with the stack."""
    folder = stack.enter_context(
        tempfile.TemporaryDirectory(prefix="rn-", ignore_cleanup_errors=True)
    )
    command = [str(Path(sys.executable).parent / "ray"), "start", "--address", address, "--block"]
    command += ["--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--temp-dir", folder]
    command += ["--object-store-memory", "100000000", "--disable-usage-stats"]
    node = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    stack.callback(end_node, node)
    return node


def end_node(node: subprocess.Popen[bytes]) -> None:
    """As a machine that loses its power: every process of the node at once."""
    if node.poll() is None:
        for process in (
            *psutil.Process(node.pid).children(recursive=True),
            psutil.Process(node.pid),
        ):
            process.send_signal(signal.SIGKILL)
        node.wait(10)


def wait_until_each_sees_all(ray: Any) -> None:
    """A node that another one does not know yet gets nothing from it: hubs go elsewhere."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [each["NodeID"] for each in ray.nodes()]

    def on(node: str, function: Any) -> Any:
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        return ray.remote(function).options(num_cpus=0, scheduling_strategy=strategy).remote()

    def sees_all() -> bool:
        return all(ray.get([on(node, lambda: True) for node in nodes]))

    deadline_s = time.monotonic() + 60
    while True:
        try:
            assert all(ray.get([on(node, sees_all) for node in nodes], timeout=60))
            return
        except ray.exceptions.RayError:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_hub_of_a_node_that_dies_comes_back_on_another(configs: list[HubConfig]) -> None:
    with warnings.catch_warnings():
        # Ray's own imports use what is deprecated.
        warnings.simplefilter("ignore")
        import ray

        from orchestrator.actors.hub import start_hubs

    with tempfile.TemporaryDirectory(prefix="ray-") as folder, ExitStack() as stack:
        ray.init(
            address="local",
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=100_000_000,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
        stack.callback(ray.shutdown)
        node = join_node(ray.get_runtime_context().gcs_address, stack)
        while sum(each["Alive"] for each in ray.nodes()) < 2:  # type: ignore[no-untyped-call]
            assert node.poll() is None
            time.sleep(0.2)
        wait_until_each_sees_all(ray)
        hubs: list[Any] = start_hubs(configs)
        asked: list[dict[str, str]] = ray.get([hub.addresses.remote() for hub in hubs], timeout=60)
        assert [each["link"] for each in asked] == [
            f"127.0.0.1:{config.link_port}" for config in configs
        ]
        places: list[str] = ray.get([hub.node.remote() for hub in hubs], timeout=10)
        assert len(set(places)) == 2
        here = ray.get_runtime_context().get_node_id()
        moved = hubs[1 - places.index(here)]
        end_node(node)
        assert ray.get(moved.node.remote(), timeout=90) == here
        assert ray.get(moved.addresses.remote(), timeout=10)["link"] in {
            each["link"] for each in asked
        }
        ray.get([hub.stop.remote() for hub in hubs], timeout=20)
