"""Catalogue, desired state and placements in Redis; every hub and gateway reads the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

from redis.asyncio import Redis

from orchestrator.catalogue.model import (
    Deployment,
    DeviceFacts,
    Placement,
    Variant,
    facts_from,
    placement_from,
    to_json,
    value_from,
)
from orchestrator.catalogue.planning import Situation
from orchestrator.fleet.view import DeviceId

_VARIANTS = "shoal:models"
_DEPLOYMENTS = "shoal:deployments"
_PLACEMENTS = "shoal:placements"
_FACTS = "shoal:model-facts"
_FAILURES = "shoal:model-failures"
_LABELS = "shoal:labels:"
_INTAKE = "shoal:intake:"
_PLANNER = "shoal:planner"
_INTAKE_KEPT_S = 3600
PLANNER_LEASE_MS = 10_000


class CatalogueStore:
    """`client` must decode responses. Every call raises redis.RedisError."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def put_variant(self, variant: Variant) -> None:
        """Add or replace a variant; what failed with it is forgotten."""
        await self._hash_set(_VARIANTS, {variant.sha256: to_json(variant)})
        await self.forget_failures(variant.sha256)

    async def variants(self) -> list[Variant]:
        """All variants, by model and size."""
        found = [value_from(Variant, text) for text in (await self._hash(_VARIANTS)).values()]
        return sorted(found, key=lambda v: (v.model, v.size_bytes))

    async def variant(self, sha256: str) -> Variant | None:
        """One variant."""
        text = await cast(Any, self._client.hget(_VARIANTS, sha256))
        return None if text is None else value_from(Variant, text)

    async def remove_variant(self, sha256: str) -> None:
        """Forget a variant; its file stays."""
        await cast(Any, self._client.hdel(_VARIANTS, sha256))

    async def put_deployment(self, deployment: Deployment) -> None:
        """Add or replace what is wanted for a model."""
        await self._hash_set(_DEPLOYMENTS, {deployment.model: to_json(deployment)})

    async def remove_deployment(self, model: str) -> bool:
        """Want it no more; False when nobody did."""
        return bool(await cast(Any, self._client.hdel(_DEPLOYMENTS, model)))

    async def deployments(self) -> list[Deployment]:
        """All that is wanted."""
        found = await self._hash(_DEPLOYMENTS)
        return [value_from(Deployment, found[model]) for model in sorted(found)]

    async def placements(self) -> list[Placement]:
        """As they were planned last."""
        return [placement_from(text) for text in (await self._hash(_PLACEMENTS)).values()]

    async def replace_placements(self, placements: Iterable[Placement]) -> None:
        """Put a whole plan in the place of the last."""
        rows = {f"{each.model} {each.device_id}": to_json(each) for each in placements}
        pipeline = self._client.pipeline(transaction=True)
        pipeline.delete(_PLACEMENTS)
        if rows:
            pipeline.hset(_PLACEMENTS, mapping=cast(Any, rows))
        await pipeline.execute()

    async def clear_placements(self) -> None:
        """Nothing is wanted any more."""
        await self._client.delete(_PLACEMENTS)

    async def publish(self, facts: Iterable[DeviceFacts]) -> None:
        """What this hub's devices have and do."""
        rows = {str(each.device_id): to_json(each) for each in facts}
        if rows:
            await self._hash_set(_FACTS, rows)

    async def forget_device(self, device_id: DeviceId) -> None:
        """A removed device is planned with no more."""
        await cast(Any, self._client.hdel(_FACTS, device_id))

    async def situation(self, now_unix_ms: int) -> Situation:
        """All that a plan depends on."""
        facts = [facts_from(text) for text in (await self._hash(_FACTS)).values()]
        earlier = {(each.model, each.device_id): each for each in await self.placements()}
        return Situation(
            deployments=await self.deployments(),
            variants=await self.variants(),
            devices=facts,
            earlier=earlier,
            failures=await self.failures(),
            now_unix_ms=now_unix_ms,
        )

    async def note_failure(self, sha256: str, device_id: DeviceId, why: str) -> None:
        """An engine could not load the file there."""
        await self._hash_set(_FAILURES, {f"{sha256} {device_id}": why})

    async def failures(self) -> dict[str, dict[str, str]]:
        """Reasons by variant and device."""
        found: dict[str, dict[str, str]] = {}
        for key, why in (await self._hash(_FAILURES)).items():
            sha256, _, device_id = key.partition(" ")
            found.setdefault(sha256, {})[device_id] = why
        return found

    async def forget_failures(self, sha256: str) -> None:
        """Try the variant again everywhere."""
        devices = (await self.failures()).get(sha256, {})
        if devices:
            keys = [f"{sha256} {device}" for device in devices]
            await cast(Any, self._client.hdel(_FAILURES, *keys))

    async def labels(self, device_id: str) -> dict[str, str]:
        """What the owner called a device."""
        return await self._hash(_LABELS + device_id)

    async def labels_of(self, device_ids: list[DeviceId]) -> list[dict[str, str]]:
        """The same for many, in one round trip."""
        pipeline = self._client.pipeline(transaction=False)
        for device_id in device_ids:
            pipeline.hgetall(_LABELS + device_id)
        return cast(list[dict[str, str]], await pipeline.execute())

    async def set_labels(self, device_id: str, put: Mapping[str, str], drop: list[str]) -> None:
        """Change labels."""
        if put:
            await self._hash_set(_LABELS + device_id, put)
        if drop:
            await cast(Any, self._client.hdel(_LABELS + device_id, *drop))

    async def note_intake(self, intake_id: str, status: Mapping[str, Any]) -> None:
        """How far taking a file in is; kept for an hour."""
        await self._client.set(_INTAKE + intake_id, json.dumps(status), ex=_INTAKE_KEPT_S)

    async def intake(self, intake_id: str) -> dict[str, Any] | None:
        """The last that was noted."""
        text = await self._client.get(_INTAKE + intake_id)
        return None if text is None else dict(json.loads(text))

    async def may_plan(self, hub_id: str) -> bool:
        """Whether this hub is the one that plans; one at a time does."""
        await self._client.set(_PLANNER, hub_id, px=PLANNER_LEASE_MS, nx=True)
        if await self._client.get(_PLANNER) != hub_id:
            return False
        await self._client.pexpire(_PLANNER, PLANNER_LEASE_MS)
        return True

    async def _hash(self, key: str) -> dict[str, str]:
        return cast(dict[str, str], await cast(Any, self._client.hgetall(key)))

    async def _hash_set(self, key: str, rows: Mapping[str, str]) -> None:
        await cast(Any, self._client.hset(key, mapping=cast(Any, rows)))
