"""A hub with its real parts, from its settings."""

from __future__ import annotations

from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.config import HubConfig
from orchestrator.fleet.decisions_redis import DecisionStore
from orchestrator.fleet.hubs_redis import HubDirectory
from orchestrator.fleet.local_served_redis import LocalServedStore
from orchestrator.fleet.registry_redis import RedisRegistry, connect
from orchestrator.hub.clock import Clock
from orchestrator.hub.service import Hub, HubParts
from orchestrator.identity.authority import Authority
from orchestrator.identity.cache_users_redis import CacheUsers
from orchestrator.identity.token_store_redis import TokenStore
from orchestrator.rollout.store_redis import RolloutStore
from orchestrator.routing.router import Router


def build_hub(config: HubConfig) -> Hub:
    """Reads authority and secrets, makes Redis clients; connects and listens only at `start`."""
    client = connect(config.state_url)
    authority = Authority.load_or_create(config.ca_dir)
    users = CacheUsers(config.cache) if config.cache is not None else None

    async def release() -> None:
        await client.aclose()
        if users is not None:
            await users.close()

    parts = HubParts(
        registry=RedisRegistry(client),
        directory=HubDirectory(client),
        decisions=DecisionStore(client),
        local_served=LocalServedStore(client),
        catalogue=CatalogueStore(client),
        rollouts=RolloutStore(client),
        tokens=TokenStore(client, authority.ca_sha256),
        authority=authority,
        router=Router(),
        clock=Clock(),
        release=release,
        cache_users=users,
    )
    return Hub(config, parts)
