"""The local agents' way into the fleet: the admin API, as for any other device."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from shoal.cli.children import Launch, StartError
from shoal.cli.client import GatewayClient, find_endpoint
from shoal.cli.launches import (
    JOIN_TOKEN_TTL_S,
    MODEL_LIMIT_S,
    AgentOptions,
    UpOptions,
    agent_launch,
)
from shoal.home import Home

READY_POLL_S = 0.1


class LocalAgents:
    """Makes launches of local agents and waits until the fleet counts them in."""

    def __init__(self, home: Home, options: UpOptions, gateway_url: str) -> None:
        self._home = home
        self._options = options
        self._gateway_url = gateway_url
        self._client = GatewayClient(find_endpoint(home, admin=True))

    def has_identity(self, name: str) -> bool:
        """Whether the agent enrolled in an earlier life."""
        return (self._home.agent_dir(name) / "identity.json").exists()

    def forget_identity(self, name: str) -> None:
        """Make the agent enrol again: the fleet no longer accepts who it was."""
        (self._home.agent_dir(name) / "identity.json").unlink(missing_ok=True)

    async def launch(self, name: str) -> Launch:
        """How to start the agent; asks the gateway for a join token when it needs one."""
        token = None
        if not self.has_identity(name):
            body = {"ttl_s": JOIN_TOKEN_TTL_S}
            reply = await asyncio.to_thread(self._client.post, "/shoal/v1/tokens", body)
            token = reply["token"]
        options = AgentOptions(name, self._gateway_url, token, self._options)
        return agent_launch(self._home, options)

    async def wait_until_ready(self, say: Callable[..., None]) -> None:
        """Return when every local agent is READY with all its models READY.

        Raises StartError when a model failed, or nothing changed for too long.
        """
        wanted = set(self._options.agent_names())
        deadline = time.monotonic() + MODEL_LIMIT_S
        while time.monotonic() < deadline:
            reply = await asyncio.to_thread(self._client.get, "/shoal/v1/devices")
            for device in reply["devices"]:
                if device["name"] in wanted and _is_ready(device):
                    wanted.discard(device["name"])
                    models = [model["name"] for model in device["models"]]
                    say("device_ready", source=device["name"], models=models)
            if not wanted:
                return
            await asyncio.sleep(READY_POLL_S)
        raise StartError(f"Not ready in time: {', '.join(sorted(wanted))}")


def _is_ready(device: dict[str, Any]) -> bool:
    for model in device["models"]:
        if model["state"] == "FAILED":
            raise StartError(f"{device['name']} cannot serve {model['name']}: {model['failure']}")
    states = {model["state"] for model in device["models"]}
    return device["state"] == "READY" and states == {"READY"}
