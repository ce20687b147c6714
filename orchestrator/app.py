"""`python -m orchestrator.app`: Ray, hubs and the gateway on this machine.

The composition root. Redis must run already. Prints one JSON object a line on
stdout for each stage, the last one `ready`; logs go to stderr. Ends cleanly on
SIGTERM and SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import structlog

from orchestrator import setup
from orchestrator.actors.background import end_unused_processes
from orchestrator.actors.config import HAPROXY_DIR, set_ray_environment
from orchestrator.actors.haproxy import write_haproxy_wrapper
from orchestrator.actors.ports import PortBlocks
from orchestrator.dispatch.config import CloudConfigError, load_cloud_config
from orchestrator.dispatch.endpoint import CloudConfig
from orchestrator.hosting import Deploying, HostingError, with_hosted
from orchestrator.identity.key_files import KeyFileError
from orchestrator.stages import Stages
from orchestrator.wiring import cache_names, gateway_config, hub_configs, local_host
from shoal.home import Home
from shoal.kv_sharing import SharePolicy, share_policy_flag, write_limit_flag
from shoal.logs import set_up_logs
from shoal.ports import port_is_free

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_log = structlog.get_logger(__name__)

_OBJECT_STORE_BYTES = 100_000_000  # nothing of ours goes through it
_READY_LIMIT_S = 60.0
_STOP_LIMIT_S = 5.0
_WATCH_INTERVAL_S = 1.0


class StartFailure(Exception):
    """The orchestrator cannot start or go on; the message names the remedy."""


def main() -> int:
    """Run until told to stop; the exit status, 1 when the start failed."""
    arguments = _parse(sys.argv[1:])
    set_up_logs("orchestrator")
    stages = Stages()
    stop = threading.Event()
    _stop_on_signals(stop)
    try:
        orchestrator = Orchestrator(arguments, stages)
        orchestrator.prepare()
        try:
            orchestrator.start(stop)
            orchestrator.watch(stop)
        finally:
            orchestrator.stop()
    except (StartFailure, HostingError, KeyFileError, CloudConfigError, OSError) as error:
        _log.error("start_failed", error=str(error))
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="orchestrator.app", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="state directory")
    parser.add_argument("--port", type=int, required=True, help="public HTTP port")
    parser.add_argument("--host", default="127.0.0.1", help="address that the port is bound to")
    parser.add_argument("--advertise", default="", help="host that devices dial; default: --host")
    parser.add_argument("--redis-url", required=True, help="state Redis: unix:// or redis://")
    parser.add_argument("--cache-url", default="", help="Redis of shared KV blocks, no password")
    parser.add_argument(
        "--kv-share", type=share_policy_flag, default=SharePolicy.ALWAYS, help="KV blocks to share"
    )
    parser.add_argument("--kv-write-limit", type=write_limit_flag, default=0, help="MB/s; 0: none")
    parser.add_argument("--cloud-config", type=Path, help="TOML or JSON file of cloud endpoints")
    parser.add_argument(
        "--cloud-model", action="append", default=[], help="GGUF file to host on this Ray cluster"
    )
    parser.add_argument("--hubs", type=int, default=1, help="hubs, which share the devices")
    parser.add_argument("--gateways", type=int, default=1, help="gateway replicas")
    return parser.parse_args(arguments)


def _stop_on_signals(stop: threading.Event) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())


class Orchestrator:
    """Starts and stops the parts, in order."""

    def __init__(self, arguments: argparse.Namespace, stages: Stages) -> None:
        self._say = stages.say
        self._arguments = arguments
        self._home = Home(arguments.home.absolute())
        self._hubs: list[ActorHandle[Any]] = []
        self._ray_started = False
        self._ray_processes: list[psutil.Process] = []

    def prepare(self) -> None:
        """Check what can be checked before anything runs; set Ray's environment."""
        arguments = self._arguments
        if not port_is_free(arguments.port):
            raise StartFailure(
                f"port {arguments.port} is taken; end what uses it or choose another with --port"
            )
        file = arguments.cloud_config
        try:
            self._cloud = with_hosted(
                load_cloud_config(file) if file else CloudConfig(),
                arguments.cloud_model,
                self._home,
                self._gateway_url,
            )
        except ValueError as error:
            raise StartFailure(str(error)) from error
        self._sockets_dir = self._home.make_sockets_dir()
        haproxy_dir = self._sockets_dir / HAPROXY_DIR
        haproxy_dir.mkdir(mode=0o700, exist_ok=True)
        self._blocks = PortBlocks()
        self._ports = self._blocks.choose(self._home.path / "hub" / "ports.json", arguments.hubs)
        haproxy = write_haproxy_wrapper(haproxy_dir, (arguments.host, arguments.port))
        set_ray_environment(self._ports, haproxy_dir, haproxy, self._home.ray_token_file)
        self._secrets = setup.prepare_identity(self._home, arguments.hubs, cache_names(arguments))
        self._say("identity_ready")

    def start(self, stop: threading.Event) -> None:
        """Start Ray, hub and gateway; returns when requests are served, or `stop` is set."""
        began_s = time.monotonic()
        self._start_ray()
        # Ray puts its own handler of SIGTERM in the place of ours.
        _stop_on_signals(stop)
        self._say("ray_ready", after_s=round(time.monotonic() - began_s, 1))
        if stop.is_set():
            return
        asyncio.run(setup.prepare_keys(self._home, self._arguments.redis_url))
        self._start_hubs()
        self._start_gateway(stop)
        url = self._gateway_url
        self._say("ready", gateway_url=url, after_s=round(time.monotonic() - began_s, 1))

    def watch(self, stop: threading.Event) -> None:
        """Wait for `stop`; raises StartFailure when Ray itself dies, for nothing restarts it."""
        while not stop.wait(_WATCH_INTERVAL_S):
            for process in self._ray_processes:
                if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                    raise StartFailure("Ray's own process ended; start the fleet again")

    def stop(self) -> None:
        """Stop what was started, gateway first, so that clients are told before devices go."""
        if not self._ray_started:
            return
        import ray
        from ray import serve

        serve.shutdown()  # type: ignore[no-untyped-call]
        stops: list[Any] = [hub.stop.remote() for hub in self._hubs]
        for stop in stops:
            try:
                ray.get(stop, timeout=_STOP_LIMIT_S)
            except ray.exceptions.RayError as error:
                _log.warning("hub_stop_failed", error=repr(error))
        self._keep_logs()
        ray.shutdown()
        self._say("stopped")

    def _keep_logs(self) -> None:
        """Copy the actors' logs home: Ray keeps them beside its sockets, which go away."""
        kept = self._home.logs_dir / "ray"
        shutil.rmtree(kept, ignore_errors=True)
        session = self._sockets_dir / "ray" / "session_latest" / "logs"
        shutil.copytree(
            session, kept, ignore=shutil.ignore_patterns("events", "export_events", "old", "*.sock")
        )

    @property
    def _gateway_url(self) -> str:
        return f"http://{local_host(self._arguments)}:{self._arguments.port}"

    def _start_ray(self) -> None:
        # Late: Ray and Serve read their environment when they are imported.
        import ray

        # Serve takes a second to import; Ray's start is mostly waiting.
        threading.Thread(target=_import_actors, daemon=True).start()
        self._ray_started = True
        ray.init(
            # Never "auto": another fleet's cluster on this machine must not be joined.
            address="local",
            # Actors here ask for hardly any CPU. Ray starts this many worker processes at once,
            # ahead of their use: one each for Serve's controller, two proxies, a replica, each hub.
            num_cpus=4 + self._arguments.hubs,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self._sockets_dir / "ray"),
        )
        end_unused_processes()
        children = psutil.Process().children()
        self._ray_processes = [p for p in children if p.name() in ("raylet", "gcs_server")]

    def _start_hubs(self) -> None:
        from orchestrator.actors.hub import start_hubs

        self._hubs = start_hubs(hub_configs(self._arguments, self._home, self._ports))

    def _start_gateway(self, stop: threading.Event) -> None:
        import ray

        from orchestrator.actors.gateway import run_gateway, start_serve

        start_serve(self._arguments.port)
        self._say("serve_ready")
        hosted = [model for model in self._cloud.hosted if not model.url]
        address = ray.get_runtime_context().gcs_address
        deploying = Deploying(hosted, self._home, address) if hosted else None
        config = gateway_config(
            self._arguments, self._home, self._ports, self._secrets, self._cloud
        )
        run_gateway(config, self._arguments.gateways)
        asked: list[Any] = [hub.addresses.remote() for hub in self._hubs]
        answers: list[dict[str, str]] = ray.get(asked, timeout=_READY_LIMIT_S)
        for hub_id, addresses in zip(setup.hub_ids(len(asked)), answers, strict=True):
            self._say("hub_ready", hub_id=hub_id, **addresses)
        _wait_until_ready(self._gateway_url, stop)
        self._say("gateway_ready")
        if deploying is not None:
            deploying.wait()
            self._say("hosted_ready", models=",".join(model.name for model in hosted))


def _import_actors() -> None:
    import orchestrator.actors.gateway
    import orchestrator.actors.hub  # noqa: F401 - later imports find them loaded


def _wait_until_ready(url: str, stop: threading.Event) -> None:
    """Poll `/readyz` through the public port; raises StartFailure after a minute."""
    deadline_s = time.monotonic() + _READY_LIMIT_S
    last = "no answer"
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while time.monotonic() < deadline_s and not stop.is_set():
            try:
                response = client.get(f"{url}/readyz")
            except httpx.HTTPError as error:
                last = repr(error)
            else:
                if response.status_code == 200:
                    return
                last = f"{response.status_code} {response.text[:200]}"
            stop.wait(0.05)
    if not stop.is_set():
        raise StartFailure(f"the gateway was not ready within {_READY_LIMIT_S:.0f} s: {last}")


if __name__ == "__main__":
    sys.exit(main())
