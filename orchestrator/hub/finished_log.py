"""The one log line a request."""

from __future__ import annotations

import structlog

from orchestrator.hub.active import ActiveRequest
from orchestrator.routing.record import Actual
from shoal.errors import Reason

_log = structlog.get_logger()


def log_finished(active: ActiveRequest, outcome: str, actual: Actual | None, now_ms: float) -> None:
    """The one line a request."""
    prediction = active.prediction
    first_ms = active.first_token_ms
    _log.info(
        "request_finished",
        request_id=active.route.request_id,
        # A model that the fleet does not know is any text that a client sent.
        model=None if outcome == Reason.MODEL_NOT_FOUND.value else active.route.model,
        device_id=active.device_id,
        outcome=outcome,
        attempts=active.attempt,
        total_ms=round(now_ms - active.started_ms, 1),
        queue_ms=round(active.queue_ms, 1),
        ttft_ms=None if first_ms is None else round(first_ms - active.started_ms, 1),
        predicted_ttft_ms=None if prediction is None else round(prediction.ttft_ms, 1),
        predicted_tpot_ms=None if prediction is None else round(prediction.tpot_ms, 2),
        tpot_ms=None if actual is None else round(actual.tpot_ms, 2),
        prompt_tokens=None if actual is None else actual.prompt_tokens,
        cached_tokens=None if actual is None else actual.cached_tokens,
        completion_tokens=None if actual is None else actual.completion_tokens,
    )
