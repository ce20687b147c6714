"""The loopback ports of one fleet, which no other fleet on this machine gets meanwhile.

Ports are given out in blocks. A fleet binds the first port of its block, the guard, for
as long as it runs: what it starts binds the others only seconds after they were chosen,
and until then another fleet that starts would find them free, too.
"""

from __future__ import annotations

import json
import random
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from shoal.ports import port_is_free

# Below Linux's ephemeral range (32768 and up), so that no outgoing connection takes a
# port between choosing and binding it.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
_BLOCK = 128
# Ports that Serve may give to replicas: a restarted one gets another for a while.
REPLICA_PORTS = 16
_OTHER_PORTS = 4
_PORT_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class HubPorts:
    """Ports of one hub."""

    enrol: int
    link: int


@dataclass(frozen=True, slots=True)
class FleetPorts:
    """Loopback ports of one fleet, beside the public one."""

    hubs: tuple[HubPorts, ...]
    haproxy_metrics: int
    haproxy_stats: int
    fallback_http: int
    fallback_grpc: int
    first_replica_http: int
    first_replica_grpc: int


class PortBlocks:
    """The blocks that this process holds, until `close` or its end."""

    def __init__(self) -> None:
        self._guards: dict[int, socket.socket] = {}

    def close(self) -> None:
        """Leave all blocks to others."""
        while self._guards:
            self._guards.popitem()[1].close()

    def choose(self, saved: Path, num_hubs: int = 1) -> FleetPorts:
        """The ports of the fleet's last run as far as they are free, else new ones.

        They are kept in `saved`. Devices remember the hubs' addresses, so the hubs' ports
        outlive a restart: they are waited for a few seconds, for a fleet that was just
        stopped may hold them still.
        Raises OSError when no block is free.
        """
        try:
            last = tuple(HubPorts(**each) for each in json.loads(saved.read_text("utf-8"))["hubs"])
        except (OSError, ValueError, TypeError, KeyError):
            last = ()
        kept = tuple(old for old in last if self._becomes_free(old))
        ports = self._new(num_hubs)
        ports = replace(ports, hubs=(*kept, *ports.hubs[len(kept) :])[:num_hubs])
        saved.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        saved.write_text(json.dumps(asdict(ports)), encoding="utf-8")
        return ports

    def _becomes_free(self, hub: HubPorts) -> bool:
        deadline_s = time.monotonic() + _PORT_WAIT_S
        while not (self._hold(hub.enrol) and port_is_free(hub.enrol) and port_is_free(hub.link)):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.1)
        return True

    def _new(self, num_hubs: int) -> FleetPorts:
        size = 1 + 2 * num_hubs + _OTHER_PORTS + 2 * REPLICA_PORTS
        if size > _BLOCK:
            raise OSError(f"{num_hubs} hubs need {size} ports, a fleet has {_BLOCK}")
        starts = range(_FIRST_PORT, _LAST_PORT - _BLOCK, _BLOCK)
        for start in random.sample(starts, len(starts)):
            if start in self._guards or not self._hold(start):
                continue
            if all(port_is_free(port) for port in range(start + 1, start + size)):
                others = start + 1 + 2 * num_hubs
                replicas = others + _OTHER_PORTS
                return FleetPorts(
                    hubs=tuple(HubPorts(port, port + 1) for port in range(start + 1, others, 2)),
                    haproxy_metrics=others,
                    haproxy_stats=others + 1,
                    fallback_http=others + 2,
                    fallback_grpc=others + 3,
                    first_replica_http=replicas,
                    first_replica_grpc=replicas + REPLICA_PORTS,
                )
            self._guards.pop(start).close()
        raise OSError(f"no {size} free ports in a row between {_FIRST_PORT} and {_LAST_PORT}")

    def _hold(self, port: int) -> bool:
        """Whether the block of `port` is this process's, now if not before."""
        start = port - (port - _FIRST_PORT) % _BLOCK
        if start in self._guards:
            return True
        # Without SO_REUSEADDR the bound port is taken for everyone; nothing listens on it.
        guard = socket.socket()
        try:
            guard.bind(("127.0.0.1", start))
        except OSError:
            guard.close()
            return False
        self._guards[start] = guard
        return True
