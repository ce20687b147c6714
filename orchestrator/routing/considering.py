"""Looking at devices one by one: what rules each out, or what it would make of the request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from orchestrator.fleet.view import DeviceId, DeviceView, num_occupied
from orchestrator.request import Privacy, RouteRequest
from orchestrator.routing.decision import Rejection, RuledOut
from orchestrator.routing.eligibility import why_full, why_ineligible
from orchestrator.routing.estimator import Estimator, Expected
from orchestrator.routing.prefixes import cached_tokens, whole_blocks
from orchestrator.routing.scoring import Contender, Scale
from orchestrator.routing.standing import Standing


@dataclass(slots=True)
class Considered:
    """The devices looked at for one decision, and what is the same for all of them."""

    request: RouteRequest
    exclude: frozenset[DeviceId]
    expected: Expected
    scale: Scale
    # Bytes of the prompt that devices are likely to hold.
    cached_bytes: Mapping[DeviceId, int]
    # Tokens that all prompts begin with, which who served one holds.
    common_tokens: int
    # The same of devices that fetch it, by their block space (`shared_bytes`).
    shared_bytes: Mapping[str, int] = field(default_factory=dict)
    contenders: list[Contender] = field(default_factory=list)
    ruled_out: list[RuledOut] = field(default_factory=list)
    devices: list[DeviceView] = field(default_factory=list)

    def rule_out(self, device: DeviceView, rejection: Rejection | None) -> None:
        """Note why the device will not serve, where there is a reason."""
        if rejection is not None:
            self.ruled_out.append((device, rejection))


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
    standings = estimator.standings(name)
    considered.devices += devices
    prompt_tokens, measure = expected.prompt_tokens, scale.measure
    common = min(considered.common_tokens, prompt_tokens - 1)
    for device in devices:
        device_id = device.device_id
        standing = standings.get(device_id)
        if standing is None or standing.device is not device:
            model = device.models.get(name)
            occupied = 0 if model is None else num_occupied(device, model)
            full = None if model is None else why_full(device, model, occupied)
            if model is None or full is not None:
                # Nothing else need be known of it.
                considered.rule_out(device, why_ineligible(request, device, exclude) or full)
                continue
            standing = estimator.look(device, model, occupied)
        if hinted or not standing.takes or device_id in exclude:
            rejection = None
            if hinted or not standing.ready or device_id in exclude:
                rejection = why_ineligible(request, device, exclude)
            rejection = rejection or why_full(device, standing.model, standing.occupied)
            if rejection is not None:
                considered.rule_out(device, rejection)
                continue
        cached, fetches = common if standing.learned is not None else 0, False
        if cached_bytes and (num_bytes := cached_bytes.get(device_id)):
            held = cached_tokens(num_bytes, request.prompt_bytes, prompt_tokens)
            cached = held if held > cached else cached
        found = figures(expected, standing, cached)
        if shared:
            fetched = _fetched(considered, estimator, standing, cached)
            if fetched is not None and fetched[1][0] < found[0]:
                fetches = True
                cached, found = fetched
        ttft_ms, tpot_ms, joules, is_estimate = found
        score, slo = measure(ttft_ms, tpot_ms, joules)
        contenders.append(
            Contender(
                standing, ttft_ms, tpot_ms, joules, is_estimate,
                prompt_tokens, cached, score, slo, fetches,
            )
        )  # fmt: skip


def _fetched(
    considered: Considered, estimator: Estimator, standing: Standing, cached: int
) -> tuple[int, tuple[float, float, float | None, bool]] | None:
    """Tokens held and figures of a device that fetches what others share; None: nothing to."""
    model, request = standing.model, considered.request
    num_bytes = considered.shared_bytes.get(model.block_space)
    if not num_bytes or not model.shared_bytes_per_s:
        return None
    prompt_tokens = considered.expected.prompt_tokens
    there = whole_blocks(cached_tokens(num_bytes, request.prompt_bytes, prompt_tokens))
    num_fetched_bytes = (there - cached) * model.kv_bytes_per_token
    if num_fetched_bytes <= 0:
        return None
    fetch_ms = 1000.0 * num_fetched_bytes / model.shared_bytes_per_s
    found = estimator.figures(considered.expected, standing, there)
    return there, (found[0] + fetch_ms, *found[1:])
