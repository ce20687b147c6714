"""The environment that Ray and Serve read when they are imported.

Serve takes its HAProxy settings from the environment alone; set it before the first
import of `ray`. Every process of the cluster inherits it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.actors.ports import REPLICA_PORTS, FleetPorts

# HAProxy's folder among the sockets; one letter, as its socket's path must be short.
HAPROXY_DIR = "h"
_OTHERS = ("RAY_ADDRESS", "RAY_AUTH_", "RAY_JOB_", "RAY_SERVE_")


def set_ray_environment(
    ports: FleetPorts, haproxy_dir: Path, haproxy: Path, token_file: Path
) -> None:
    """Set what Ray and Serve read at import; nothing of another cluster's is left over."""
    for name in [name for name in os.environ if name.startswith(_OTHERS)]:
        del os.environ[name]
    os.environ.update(ray_environment(ports, haproxy_dir, haproxy, token_file))


def ray_environment(
    ports: FleetPorts, haproxy_dir: Path, haproxy: Path, token_file: Path
) -> Mapping[str, str]:
    """The variables; names from `ray.serve._private.constants` of Ray 2.60."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Despite its name: off, Ray takes 127.0.0.1 as this node's address, so that its
        # processes listen there. On, it replaces any loopback address by the machine's own
        # and they listen on every interface, where whoever connects can run code.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # Whoever can connect can run code: Ray's ports want the fleet's own token.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        # Nobody scrapes Ray's own metrics here, and collecting them costs idle CPU.
        "RAY_enable_metrics_collection": "0",
        # Ray kills workers when the machine's memory is nearly full, which a machine that
        # also runs engines often is; hub and gateway are not what should go.
        "RAY_memory_monitor_refresh_ms": "0",
        # Ray's default of 15 lets hub and gateway starve beside a device's compute threads.
        "RAY_worker_niceness": "0",
        # Ten rounds a second cost a twentieth of a core, of which models need every bit.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
        # An idle replica of a hosted model is known as such within seconds, not in ten.
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
        # Nothing here runs as Ray tasks that somebody would look up afterwards.
        "RAY_task_events_report_interval_ms": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        # One event loop in a replica: a hop between threads costs more than the handler.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
        "RAY_SERVE_LOG_TO_STDERR": "0",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(haproxy),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(haproxy_dir / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(haproxy_dir / "a"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(haproxy_dir),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(haproxy_dir / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports.haproxy_metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports.haproxy_stats),
        "RAY_SERVE_HAPROXY_NBTHREAD": "2",
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        # A replica that comes or goes, also a hosted model's, replaces HAProxy; the one before
        # goes on with its requests for as long as a request may take. A fleet that ends kills it.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "660",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.fallback_grpc),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports.first_replica_http),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports.first_replica_http + REPLICA_PORTS),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(ports.first_replica_grpc),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(ports.first_replica_grpc + REPLICA_PORTS),
    }
