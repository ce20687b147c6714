"""The gateway as a Serve deployment: a shell round `orchestrator.gateway.app`."""

from __future__ import annotations

from collections.abc import Callable

from ray import serve
from ray.serve import Application
from ray.serve._private import replica
from ray.serve.config import ProxyLocation
from ray.serve.schema import LoggingConfig
from starlette.applications import Starlette

from orchestrator.gateway.app import build_gateway
from orchestrator.gateway.config import GatewayConfig
from shoal.logs import set_up_logs

# Serve's own limit on requests at once is put out of the way: the gateway's admission
# refuses with 429 in OpenAI's shape, and health checks must pass under load.
_SERVE_LIMIT = 100_000


def start_serve(port: int) -> None:
    """Start Serve's controller and HAProxy, listening on loopback.

    A public address is added by HAProxy's wrapper; the replicas stay on this machine.
    """
    serve.start(
        proxy_location=ProxyLocation.HeadOnly,
        http_options={"host": "127.0.0.1", "port": port},
        logging_config=_quiet(),
    )


def run_gateway(config: GatewayConfig, num_replicas: int = 1) -> None:
    """Deploy the gateway at `/` and return when it serves."""
    serve.run(_application(config, num_replicas), name="gateway", route_prefix="/")


def _application(config: GatewayConfig, num_replicas: int) -> Application:
    def build() -> Starlette:
        # Runs in the replica, before Serve opens the replica's own port.
        keep_replica_port_on_loopback()
        set_up_logs("gateway")
        return build_gateway(config).app

    @serve.deployment(
        name="Gateway",
        num_replicas=num_replicas,
        max_ongoing_requests=_SERVE_LIMIT,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=2,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=10,
        health_check_timeout_s=30,
        logging_config=_quiet(),
    )
    @serve.ingress(build)
    class Gateway:
        """The ingress; the application does the work."""

    application: Application = Gateway.bind()  # type: ignore[attr-defined]
    return application


def keep_replica_port_on_loopback() -> None:
    """Bind this replica's port for calls between deployments to loopback only.

    Serve binds it to every interface, has no setting for it, and unpickles what arrives
    there. Nothing here calls it.
    """
    bind: Callable[[object, str], int] = replica.add_port_to_grpc_server  # type: ignore[attr-defined]

    def bind_loopback(server: object, address: str) -> int:
        return bind(server, address.replace("[::]", "127.0.0.1"))

    replica.add_port_to_grpc_server = bind_loopback  # type: ignore[attr-defined]


def _quiet() -> LoggingConfig:
    """No access log: the gateway logs each request itself, and a line a request costs."""
    return LoggingConfig(log_level="WARNING", enable_access_log=False)
