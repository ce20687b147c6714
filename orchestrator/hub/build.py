"""A hub with its real parts, from its settings."""

from __future__ import annotations

from orchestrator.config import HubConfig
from orchestrator.fleet.decisions_redis import DecisionStore
from orchestrator.fleet.registry_redis import RedisRegistry, connect
from orchestrator.hub.clock import Clock
from orchestrator.hub.service import Hub, HubParts
from orchestrator.identity.authority import Authority
from orchestrator.identity.token_store_redis import TokenStore
from orchestrator.routing.router import Router


def build_hub(config: HubConfig) -> Hub:
    """Reads the authority and makes a Redis client; connects and listens only at `start`."""
    client = connect(config.state_url)
    authority = Authority.load_or_create(config.ca_dir)
    parts = HubParts(
        registry=RedisRegistry(client),
        decisions=DecisionStore(client),
        tokens=TokenStore(client, authority.ca_sha256),
        authority=authority,
        router=Router(),
        clock=Clock(),
        release=client.aclose,
    )
    return Hub(config, parts)
