"""Looking at devices one by one: what rules each out, or what it would make of the request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from orchestrator.fleet.view import DeviceId, DeviceState, DeviceView, num_occupied
from orchestrator.request import Privacy, RouteRequest
from orchestrator.routing.decision import RuledOut
from orchestrator.routing.eligibility import EXCLUDED, why_full, why_ineligible
from orchestrator.routing.estimator import Estimator, Expected
from orchestrator.routing.prefixes import cached_tokens
from orchestrator.routing.scoring import Contender, Scale

# Looked up once: enum attribute access is slow in the loop over devices.
_READY = DeviceState.READY


@dataclass(slots=True)
class Considered:
    """The devices looked at for one decision, and what is the same for all of them."""

    request: RouteRequest
    exclude: frozenset[DeviceId]
    expected: Expected
    scale: Scale
    # Bytes of the prompt that devices are likely to hold.
    cached_bytes: Mapping[DeviceId, int]
    # The same of devices that fetch it, by their block space (`shared_bytes`).
    shared_bytes: Mapping[str, int] = field(default_factory=dict)
    contenders: list[Contender] = field(default_factory=list)
    ruled_out: list[RuledOut] = field(default_factory=list)
    devices: list[DeviceView] = field(default_factory=list)


def shared_bytes(
    request: RouteRequest,
    cached_bytes: Mapping[DeviceId, int],
    devices: Mapping[DeviceId, DeviceView],
) -> Mapping[str, int]:
    """Bytes of the prompt that devices with a way to the shared tier are likely to find there.

    By block space; what one device of a space was given, it has put there for the others.
    """
    if request.privacy is Privacy.LOCAL_ONLY:
        return {}
    found: dict[str, int] = {}
    for device_id, num_bytes in cached_bytes.items():
        device = devices.get(device_id)
        model = None if device is None else device.models.get(request.model)
        if model is not None and model.block_space and model.shared_bytes_per_s > 0:
            found[model.block_space] = max(num_bytes, found.get(model.block_space, 0))
    return found


def consider(considered: Considered, estimator: Estimator, devices: Collection[DeviceView]) -> None:
    """Look at each device once and add it to `considered`."""
    request, expected, scale = considered.request, considered.expected, considered.scale
    cached_bytes, shared = considered.cached_bytes, considered.shared_bytes
    name, exclude = request.model, considered.exclude
    hinted = bool(request.device or request.device_class)
    figures, contenders = estimator.figures, considered.contenders
    considered.devices += devices
    prompt_tokens, measure = expected.prompt_tokens, scale.measure
    for device in devices:
        model = device.models.get(name)
        if model is not None and device.state is _READY and model.ready and not hinted:
            # The ordinary case of why_ineligible, without the call.
            rejection = EXCLUDED if exclude and device.device_id in exclude else None
        else:
            rejection = why_ineligible(request, device, exclude)
        if model is not None and rejection is None:
            occupied = num_occupied(device, model)
            if occupied >= model.slots + device.max_waiting:
                rejection = why_full(device, model, occupied)
        if rejection is not None:
            considered.ruled_out.append((device, rejection))
        if model is None or rejection is not None:
            continue
        cached = 0
        if cached_bytes and (num_bytes := cached_bytes.get(device.device_id)):
            cached = cached_tokens(num_bytes, request.prompt_bytes, prompt_tokens)
        fetches = False
        found = figures(expected, device, model, occupied, cached)
        if shared and (num_bytes := shared.get(model.block_space)) and model.shared_bytes_per_s:
            there = cached_tokens(num_bytes, request.prompt_bytes, prompt_tokens)
            num_fetched_bytes = (there - cached) * model.kv_bytes_per_token
            if num_fetched_bytes > 0:
                fetch_ms = 1000.0 * num_fetched_bytes / model.shared_bytes_per_s
                fetched = figures(expected, device, model, occupied, there)
                if fetched[0] + fetch_ms < found[0]:
                    cached, fetches = there, True
                    found = (fetched[0] + fetch_ms, *fetched[1:])
        ttft_ms, tpot_ms, joules, is_estimate = found
        contenders.append(
            Contender(
                device,
                model,
                ttft_ms,
                tpot_ms,
                joules,
                is_estimate,
                prompt_tokens,
                cached,
                occupied,
                *measure(ttft_ms, tpot_ms, joules),
                fetches=fetches,
            )
        )
