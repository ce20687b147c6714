"""Which device is to serve which variant: pure, from what is wanted and what is.

- A device that serves, or was chosen before and is not away for long, is kept: moving
  gigabytes is worse than any better choice.
- A device is given a model only when weights, KV cache and engine fit into its free
  memory, less what others that were promised to it will take. The calculation goes along.
- A variant that an engine could not load is not tried again on that device, and nowhere
  once two devices failed with it; the next variant of the model is taken. The device
  goes on with its other models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.catalogue.model import Deployment, DeviceFacts, ModelFacts, Placement, Variant
from orchestrator.fleet.view import DeviceId
from shoal.kv_budget import (
    ENGINE_OVERHEAD_BYTES,
    MIN_CONTEXT_TOKENS,
    FitRequest,
    default_context_tokens,
    plan_kv,
)
from shoal.selector import parse_selector

# A device that is away no longer keeps its place: a reboot with updates takes minutes.
AWAY_LIMIT_MS = 5 * 60_000
# What a hub that died last said of its devices is not believed for longer.
HEARD_WITHIN_MS = 60_000
BAD_AFTER_DEVICES = 2
SLOTS = 8
_HOLDING = ("LOADING", "READY", "RESTARTING")
# Of the file, not of the way to it.
_FILE_FAULTS = ("FILE", "ENGINE")


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a plan depends on. `failures`: by variant, then device, the reason."""

    deployments: Sequence[Deployment]
    variants: Sequence[Variant]
    devices: Sequence[DeviceFacts]
    earlier: Mapping[tuple[str, DeviceId], Placement]
    failures: Mapping[str, Mapping[str, str]]
    now_unix_ms: int


def bad_reason(failures: Mapping[str, str]) -> str:
    """Why a variant is given to nobody any more; empty: it is."""
    if len(failures) < BAD_AFTER_DEVICES:
        return ""
    return f"failed on {len(failures)} devices; last: {list(failures.values())[-1]}"


def plan(situation: Situation) -> list[Placement]:
    """A placement for each device that a deployment selects, and for some that it left."""
    promised: dict[DeviceId, int] = {}
    placements: list[Placement] = []
    for deployment in sorted(situation.deployments, key=lambda d: (d.created_unix_ms, d.model)):
        placements += _Planner(situation, deployment, promised).placements()
    return placements


class _Planner:
    """One deployment."""

    def __init__(
        self, situation: Situation, deployment: Deployment, promised: dict[DeviceId, int]
    ) -> None:
        self._now = situation
        self._wanted = deployment
        self._promised = promised
        self._variants = [
            variant
            for variant in situation.variants
            if variant.model == deployment.model
            and deployment.quantisation in ("", variant.quantisation)
        ]
        # Q4_0 has the fastest kernels on CPUs; then the smaller file.
        self._variants.sort(key=lambda v: (v.quantisation != "Q4_0", v.size_bytes, v.sha256))

    def placements(self) -> list[Placement]:
        selector = parse_selector(self._wanted.selector)
        selected = [each for each in self._now.devices if selector.matches(each.labels)]
        judged = [self._judge(device) for device in selected]
        limit = self._wanted.replicas or len(judged)
        order = sorted(range(len(judged)), key=lambda n: self._rank(selected[n], judged[n]))
        for position, number in enumerate(order):
            chosen = judged[number]
            if chosen.desired and position >= limit:
                reason = f"not needed: {limit} of {len(judged)} selected devices are wanted"
                judged[number] = replace(chosen, desired=False, actual="none", reason=reason)
            elif chosen.desired and chosen.actual == "none":
                judged[number] = replace(chosen, actual="waiting")
            if judged[number].desired and judged[number].actual == "waiting":
                self._promise(judged[number])
        return judged

    def _rank(self, device: DeviceFacts, placement: Placement) -> tuple[int, int, int, int, str]:
        order = ("serves", "loading", "fetching", "away", "waiting")
        actual = order.index(placement.actual) if placement.actual in order else len(order)
        kept = (self._wanted.model, device.device_id) in self._now.earlier
        return (
            not placement.desired,
            actual,
            -kept,
            -device.available_bytes,
            device.name,
        )

    def _judge(self, device: DeviceFacts) -> Placement:
        model = device.models.get(self._wanted.model)
        none = Placement(
            self._wanted.model, device.device_id, device.name, desired=False, actual="none",
            reason="", rate_bytes_per_s=self._wanted.rate_bytes_per_s,
        )  # fmt: skip
        if not device.ready or self._now.now_unix_ms - device.seen_unix_ms > HEARD_WITHIN_MS:
            return self._away(device, none)
        if model is not None and model.state in _HOLDING:
            return self._held(none, model)
        if not self._variants:
            return replace(none, reason="the catalogue has no such variant")
        refused = none
        for variant in self._variants:
            candidate = self._try(device, none, variant)
            if candidate.desired:
                return self._with_failure(candidate, model)
            refused = candidate
        return refused

    def _away(self, device: DeviceFacts, none: Placement) -> Placement:
        earlier = self._now.earlier.get((self._wanted.model, device.device_id))
        away_ms = self._now.now_unix_ms - device.seen_unix_ms
        if earlier is not None and earlier.desired and away_ms < AWAY_LIMIT_MS:
            return replace(earlier, actual="away", reason="the device is away; it is waited for")
        return replace(none, actual="away", reason="the device is not connected")

    def _held(self, none: Placement, model: ModelFacts) -> Placement:
        earlier = self._now.earlier.get((self._wanted.model, none.device_id))
        base = earlier if earlier is not None and earlier.desired else none
        if not model.deployed:
            return replace(
                none, desired=True, actual="serves", sha256=model.sha256,
                reason="it serves the model already, by its own --model",
            )  # fmt: skip
        variant = next((v for v in self._variants if v.sha256 == model.sha256), None)
        if variant is None:
            return replace(none, reason="it serves a variant that is not wanted")
        fetching = model.state == "LOADING" and model.fetched_bytes < model.file_bytes
        if model.state == "READY":
            actual, reason = "serves", "it serves the model"
        elif fetching:
            actual = "fetching"
            reason = f"{model.fetched_bytes} of {model.file_bytes} bytes are here"
        else:
            actual, reason = "loading", "the engine loads the file"
        return replace(
            base, desired=True, actual=actual, reason=reason, sha256=variant.sha256,
            quantisation=variant.quantisation,
        )  # fmt: skip

    def _try(self, device: DeviceFacts, none: Placement, variant: Variant) -> Placement:
        failures = self._now.failures.get(variant.sha256, {})
        why = failures.get(device.device_id, "") or bad_reason(failures)
        named = replace(none, sha256=variant.sha256, quantisation=variant.quantisation)
        if why:
            return replace(named, actual="failed", reason=f"this file is not tried again: {why}")
        if not device.total_bytes:
            return replace(named, actual="waiting", reason="its memory is not known yet")
        free = max(0, device.available_bytes - self._promised.get(device.device_id, 0))
        per_token = variant.kv_shape.bytes_per_token
        context = default_context_tokens(free, per_token, SLOTS, variant.context_tokens)
        context = max(context, min(MIN_CONTEXT_TOKENS, variant.context_tokens))
        fit = plan_kv(FitRequest(variant.kv_shape, variant.size_bytes, free, SLOTS, context))
        if not fit.fits:
            return replace(named, reason="weights and KV cache do not fit", calculation=fit.lines)
        return replace(
            named, desired=True, reason="fits", slots=fit.slots,
            context_tokens=fit.context_tokens, calculation=fit.lines,
        )  # fmt: skip

    def _with_failure(self, candidate: Placement, model: ModelFacts | None) -> Placement:
        """What failed on the way is tried again, and said."""
        if model is None or model.state != "FAILED" or model.failure_kind in _FILE_FAULTS:
            return candidate
        return replace(candidate, reason=f"tried again later: {model.failure}")

    def _promise(self, placement: Placement) -> None:
        variant = next((v for v in self._variants if v.sha256 == placement.sha256), None)
        if variant is not None:
            kv = placement.slots * placement.context_tokens * variant.kv_shape.bytes_per_token
            taken = variant.size_bytes + kv + ENGINE_OVERHEAD_BYTES
            device_id = placement.device_id
            self._promised[device_id] = self._promised.get(device_id, 0) + taken
