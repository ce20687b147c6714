"""Catalogue, deployments, placements and labels through the admin API."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from orchestrator.catalogue.intake import IntakeError, Order, take_in
from orchestrator.catalogue.model import Deployment, Variant
from orchestrator.catalogue.planning import bad_reason
from orchestrator.catalogue.store_redis import CatalogueStore
from orchestrator.fleet.registry_redis import StateError
from orchestrator.fleet.view import DeviceId
from shoal.errors import Reason, ShoalError, invalid
from shoal.home import model_hub_from_environment
from shoal.openai.fields import Fields
from shoal.selector import BUILT_IN, CALIBRATED, check_label, parse_selector

_log = structlog.get_logger(__name__)

_MAX_REPLICAS = 100_000
_NOTE_EVERY_S = 0.5
_MAX_INTAKES = 4


class Catalogue:
    """What the admin API does with models."""

    def __init__(self, store: CatalogueStore, models_dir: Path) -> None:
        self._store = store
        self._models_dir = models_dir
        self._intakes: set[asyncio.Task[None]] = set()

    async def add(self, fields: Fields) -> Mapping[str, Any]:
        """Start to take a file in; `intake` says how far it is."""
        source = fields.text("source") or ""
        if not source:
            raise invalid("source", "'source' is needed: a path, pip:, http(s):// or hf://.")
        if len(self._intakes) >= _MAX_INTAKES:
            raise ShoalError(Reason.OVERLOADED, "Other files are being taken in. Try again soon.")
        order = Order(
            source=source,
            sha256=fields.text("sha256") or "",
            name=fields.text("name") or "",
            models_dir=self._models_dir,
            hub_endpoint=model_hub_from_environment(),
        )
        intake_id = uuid.uuid4().hex[:12]
        await self._store.note_intake(intake_id, {"id": intake_id, "stage": "starting"})
        task = asyncio.create_task(self._take_in(intake_id, order))
        self._intakes.add(task)
        task.add_done_callback(self._intakes.discard)
        return {"id": intake_id, "stage": "starting"}

    async def intake(self, intake_id: str) -> Mapping[str, Any]:
        """How far taking a file in is."""
        status = await self._store.intake(intake_id)
        if status is None:
            raise _unknown("intake", intake_id)
        return status

    async def _take_in(self, intake_id: str, order: Order) -> None:
        status: dict[str, Any] = {"id": intake_id, "stage": "starting"}

        def told(stage: str, done_bytes: int, total_bytes: int) -> None:
            status.update(stage=stage, done_bytes=done_bytes, total_bytes=total_bytes)

        work = asyncio.create_task(take_in(order, int(time.time() * 1000), told))
        while not (await asyncio.wait([work], timeout=_NOTE_EVERY_S))[0]:
            await self._store.note_intake(intake_id, status)
        try:
            variant = work.result()
            await self._store.put_variant(variant)
            status.update(stage="done", variant=asdict(variant))
        except IntakeError as error:
            status.update(stage="failed", failure=str(error))
        except Exception as error:
            _log.error("intake_failed", exc_info=error)
            status.update(stage="failed", failure=type(error).__name__)
            raise
        finally:
            await self._store.note_intake(intake_id, status)

    async def variants(self) -> Mapping[str, Any]:
        """All variants; `bad` says why one is given to nobody."""
        failures = await self._store.failures()
        return {
            "variants": [
                asdict(each) | {"bad": bad_reason(failures.get(each.sha256, {}))}
                for each in await self._store.variants()
            ]
        }

    async def remove(self, name: str) -> Mapping[str, Any]:
        """Forget variants; devices lose them when they are deployed."""
        found = await self._named(name)
        for each in found:
            await self._store.remove_variant(each.sha256)
        return {"removed": [each.sha256 for each in found]}

    async def retry(self, name: str) -> Mapping[str, Any]:
        """Try variants again where they failed."""
        found = await self._named(name)
        for each in found:
            await self._store.forget_failures(each.sha256)
        return {"retried": [each.sha256 for each in found]}

    async def deploy(self, fields: Fields) -> Mapping[str, Any]:
        """Want a model on devices."""
        model, _, quantisation = (fields.text("model") or "").partition(":")
        selector = fields.text("to") or ""
        try:
            parse_selector(selector)
        except ValueError as error:
            raise invalid("to", f"to: {error}") from error
        await self._named(f"{model}:{quantisation}" if quantisation else model)
        deployment = Deployment(
            model=model,
            selector=selector,
            replicas=fields.integer("replicas", 0, _MAX_REPLICAS) or 0,
            created_unix_ms=int(time.time() * 1000),
            quantisation=quantisation.upper(),
            rate_bytes_per_s=fields.integer("rate_bytes_per_s", 0, 1 << 40) or 0,
        )
        await self._store.put_deployment(deployment)
        return asdict(deployment)

    async def undeploy(self, model: str) -> Mapping[str, Any]:
        """Want it no more; devices unload it."""
        if not await self._store.remove_deployment(model):
            raise _unknown("deployment", model)
        return {"model": model}

    async def placements(self) -> Mapping[str, Any]:
        """What is wanted, what is, and why."""
        return {
            "deployments": [asdict(each) for each in await self._store.deployments()],
            "placements": [asdict(each) for each in await self._store.placements()],
        }

    async def label(self, device_id: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Set and drop labels of a device."""
        put, drop = body.get("set", {}), body.get("remove", [])
        if not isinstance(put, dict) or not isinstance(drop, list):
            raise invalid("set", "'set' is an object of texts, 'remove' a list of keys.")
        try:
            for text in [*put, *put.values(), *drop]:
                check_label(text if isinstance(text, str) else "")
        except ValueError as error:
            raise invalid("set", str(error)) from error
        if BUILT_IN & put.keys():
            raise invalid("set", f"These labels are built in: {', '.join(sorted(BUILT_IN))}.")
        if own := [key for key in put if key.startswith(CALIBRATED)]:
            raise invalid("set", f"{own[0]!r}: labels under {CALIBRATED!r} are the agent's own.")
        await self._store.set_labels(device_id, put, drop)
        return {"device_id": device_id, "labels": await self._store.labels(device_id)}

    async def add_labels(self, devices: list[dict[str, Any]]) -> None:
        """Give each device its `labels`, the owner's; none while the store is away."""
        try:
            found = await self._store.labels_of([DeviceId(each["id"]) for each in devices])
        except StateError as error:
            _log.warning("labels_unreadable", error=str(error))
            return
        for device, labels in zip(devices, found, strict=True):
            device["labels"] = labels

    async def _named(self, name: str) -> list[Variant]:
        model, _, quantisation = name.partition(":")
        found = [
            each
            for each in await self._store.variants()
            if (each.model == model and quantisation.upper() in ("", each.quantisation))
            or (len(name) >= 8 and each.sha256.startswith(name))
        ]
        if not found:
            raise _unknown("variant", name)
        return found


def _unknown(what: str, name: str) -> ShoalError:
    return ShoalError(Reason.MODEL_NOT_FOUND, f"There is no {what} {name[:100]!a}.", param=what)
