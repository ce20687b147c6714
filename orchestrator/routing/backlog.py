"""What a request has to expect that waits until one of the full devices has room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.fleet.view import DeviceView, num_occupied
from orchestrator.request import RouteRequest
from orchestrator.routing.eligibility import why_ineligible
from orchestrator.routing.estimator import SURE_SHARE, Estimator

# Devices asked for their pace, evenly chosen: it is measured once requests wait.
MAX_ASKED = 8


@dataclass(frozen=True, slots=True)
class Backlog:
    """Predicted pace of a model's devices, and the request's expected size.

    `gap_ms`: time from one place that comes free to the next; None when no device can
    serve now. `ttft_ms`: from being sent to the best of them to the first token. `sure_share`:
    who is predicted within this share of the time it has will likely be in time.
    """

    gap_ms: float | None
    ttft_ms: float
    prompt_tokens: int
    completion_tokens: float
    sure_share: float


def backlog_of(
    request: RouteRequest,
    estimator: Estimator,
    devices: Sequence[DeviceView],
    now_ms: float,
    *,
    of: int | None = None,
) -> Backlog:
    """The backlog by these devices, which stand for `of` like them (None: they are all)."""
    expected = estimator.expect(request, now_ms)
    places_per_ms, ttft_ms = 0.0, 0.0
    eligible = [d for d in devices if why_ineligible(request, d, frozenset()) is None]
    asked = eligible[:: 1 + len(eligible) // MAX_ASKED]
    for device in asked:
        model = device.models[request.model]
        # When the request is sent, one of those it holds now has ended.
        occupied = max(0, num_occupied(device, model) - 1)
        predicted_ms = estimator.predict_expected(expected, device, model, occupied).ttft_ms
        ttft_ms = min(ttft_ms or predicted_ms, predicted_ms)
        places_per_ms += 1.0 / max(1.0, estimator.place_wait_ms(device, model))
    if asked:
        places_per_ms *= len(eligible) / len(asked)
    if of is not None and devices:
        places_per_ms *= of / len(devices)
    gap_ms = 1.0 / places_per_ms if places_per_ms else None
    return Backlog(
        gap_ms,
        ttft_ms,
        expected.prompt_tokens,
        expected.completion_tokens,
        estimator.sure_share(request.model) or SURE_SHARE,
    )
