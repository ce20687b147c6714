"""The hub as a Ray actor: a shell round orchestrator.hub.service.Hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray
import structlog

from orchestrator.config import HubConfig
from orchestrator.hub.build import build_hub
from shoal.logs import set_up_logs

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_log = structlog.get_logger()

# A token share: Ray's SPREAD leaves actors that ask for no CPU on one node.
_CPUS = 0.01


def start_hubs(configs: Sequence[HubConfig]) -> list[ActorHandle[Any]]:
    """One actor for each, spread over the cluster's nodes; that of a lost node moves."""
    return [
        HubActor.options(name=config.hub_id, scheduling_strategy="SPREAD").remote(config)  # type: ignore[attr-defined]
        for config in configs
    ]


@ray.remote(num_cpus=_CPUS, max_restarts=-1, max_task_retries=-1)
class HubActor:
    """Listens as soon as it exists, and again, on the same ports, after each restart.

    Ray calls only place, restart and ask for addresses; requests travel over gRPC.
    """

    async def __init__(self, config: HubConfig) -> None:  # type: ignore[misc]
        # Ray awaits it: the hub must listen again after a restart, when nobody calls `start`.
        set_up_logs("hub")
        self._hub = build_hub(config)
        await self._hub.start()
        self._watch = asyncio.create_task(self._exit_on_failure())

    async def addresses(self) -> dict[str, str]:
        """`enrol` and `link`, as host:port to dial."""
        addresses = self._hub.addresses
        return {"enrol": addresses.enrol, "link": addresses.link}

    async def node(self) -> str:
        """Id of the Ray node that it runs on."""
        return str(ray.get_runtime_context().get_node_id())

    async def stop(self) -> None:
        """Say goodbye to devices and gateways and free the ports; then kill the actor."""
        self._watch.cancel()
        await self._hub.stop()

    async def _exit_on_failure(self) -> None:
        error = await self._hub.failure()
        if error is not None:
            _log.error("hub_failed", error=repr(error))
            # Ray starts a fresh process in this one's place.
            os._exit(1)
