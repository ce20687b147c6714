"""A decision in words, made from the values that decided it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.fleet.view import DeviceState, DeviceView
from orchestrator.request import Objective, RouteRequest
from orchestrator.routing.decision import (
    Candidate,
    Decision,
    Rejection,
    RejectionKind,
    RuledOut,
)
from orchestrator.routing.estimator import Estimator
from orchestrator.routing.scoring import Contender, free_classes, why_lost
from orchestrator.routing.tree import branch_text, class_order
from shoal.errors import Foreseen, Reason, ShoalError

# Bounds of the Retry-After that a refused client is told.
MIN_RETRY_AFTER_MS = 250
MAX_RETRY_AFTER_MS = 60_000
# Retry-After while a model loads or a device is suspected: small models load in seconds.
SOON_MS = 2_000

# Full devices asked for when a place comes free; more would cost and tell little.
_MAX_ASKED = 16
# Reasons that lie in the request, not in the device.
_BY_REQUEST = (RejectionKind.MODEL_ABSENT, RejectionKind.CLASS_HINT, RejectionKind.DEVICE_HINT)
_OBJECTIVE_TEXT = {Objective.EDP: "energy-delay product", Objective.ENERGY: "energy"}
_NO_REMEDY = "start an agent that serves it, or ask for another model (GET /v1/models)"


def bounded_retry_ms(wanted_ms: float) -> int:
    """The wait as a client is told it."""
    return int(min(MAX_RETRY_AFTER_MS, max(MIN_RETRY_AFTER_MS, wanted_ms)))


def listed(ruled_out: Iterable[RuledOut]) -> tuple[Candidate, ...]:
    """Devices that could not take the request, as candidates."""
    return tuple(
        [
            Candidate(device.device_id, device.name, device.device_class, None, rejection)
            for device, rejection in ruled_out
        ]
    )


def chosen_of(best_first: Sequence[Contender]) -> Candidate | None:
    """The first contender as the candidate that won."""
    return _candidate(best_first[0], None) if best_first else None


def explained(request: RouteRequest, best_first: Sequence[Contender]) -> list[Candidate]:
    """The contenders as candidates; all but the first with why they lost against it."""
    free = free_classes(best_first)
    return [
        _candidate(
            contender,
            why_lost(request, contender, best_first[0], free) if index else None,
        )
        for index, contender in enumerate(best_first)
    ]


def refused(best_first: Sequence[Contender]) -> list[RuledOut]:
    """Devices that could serve but would miss the SLO, of a request that wants no less."""
    return [
        (
            contender.device,
            Rejection(
                RejectionKind.SLO_TTFT,
                "predicted TTFT {:.0f} ms, TPOT {:.1f} ms miss the stated SLO",
                (contender.ttft_ms, contender.tpot_ms),
            ),
        )
        for contender in best_first
    ]


def unreachable(request: RouteRequest, best: Contender, sure_share: float) -> ShoalError:
    """The failure when not even the best device is predicted to meet the SLO."""
    slo = request.slo
    stated = [
        f"{name} {value:g} ms"
        for name, value in (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms))
        if value is not None
    ]
    excess_ms = 0.0 if slo.ttft_ms is None else best.ttft_ms - sure_share * slo.ttft_ms
    surely = " surely" if best.meets_slo else ""
    return ShoalError(
        Reason.SLO_UNREACHABLE,
        f"no device is predicted to meet {' and '.join(stated)}{surely}:"
        f" {best.device.name}, the best,"
        f" has TTFT {best.ttft_ms:.0f} ms and TPOT {best.tpot_ms:.1f} ms;"
        " ask for less or try again later",
        param="shoal.slo",
        # So long the queues of the best device take to shrink enough; a TPOT has no such time.
        retry_after_ms=0 if excess_ms <= 0 else bounded_retry_ms(excess_ms),
        foreseen=Foreseen(best.ttft_ms, best.tpot_ms),
    )


def _candidate(contender: Contender, rejection: Rejection | None) -> Candidate:
    device = contender.device
    return Candidate(
        device.device_id, device.name, device.device_class, contender.prediction, rejection
    )


def sentence(
    request: RouteRequest,
    best_first: Sequence[Contender],
    others: Sequence[RuledOut],
    num_parameters: int,
) -> str:
    """Why the first contender was chosen; `others` could not take the request."""
    best = best_first[0]
    order = class_order(num_parameters, request.slo.tpot_ms)
    chosen_class = best.device.device_class
    branch = branch_text(num_parameters, request.slo.tpot_ms)
    if request.device or request.device_class:
        why = f"the request asks for {request.device or request.device_class}"
    elif request.objective is not Objective.LATENCY:
        why = f"least {_OBJECTIVE_TEXT[request.objective]} of those considered"
    elif chosen_class == order[0]:
        why = f"{branch}: {chosen_class} preferred"
    else:
        why_not = _why_not_preferred(best_first, others, order[0])
        why = f"{branch}: {order[0]} preferred, but {why_not}, so {chosen_class}"
    text = (
        f"{best.device.name}: {why}; predicted TTFT {best.ttft_ms:.0f} ms,"
        f" TPOT {best.tpot_ms:.1f} ms"
    )
    if best.cached_tokens:
        where = "in the shared tier" if best.fetches else "there"
        text += f" with {best.cached_tokens} prompt tokens cached {where}"
    if not best.meets_slo:
        text += "; no device is predicted to meet the stated SLO, best effort"
    return text


def _why_not_preferred(
    best_first: Sequence[Contender], others: Sequence[RuledOut], preferred: str
) -> str:
    of_class = [c for c in best_first if c.device.device_class == preferred]
    if not of_class:
        kinds = {rejection.kind for device, rejection in others if device.device_class == preferred}
        if not kinds - {RejectionKind.MODEL_ABSENT}:
            return "none serves the model"
        return "all are full" if RejectionKind.FULL in kinds else "none is available"
    if best_first[0].meets_slo and not any(c.meets_slo for c in of_class):
        return "it would miss the stated SLO"
    if best_first[0].slo < min(c.slo for c in of_class):
        return "it would come close to missing the stated SLO"
    return "all its slots are taken"


def unknown(
    request: RouteRequest, candidates: tuple[Candidate, ...], decided_unix_ms: int
) -> Decision:
    """The decision when no device considered serves the model, in whatever state."""
    if request.device:
        failure = _no_such_device(request)
    else:
        failure = ShoalError(
            Reason.MODEL_NOT_FOUND,
            f"no device serves {request.model!r}: {_NO_REMEDY}",
            param="model",
        )
    return Decision(
        request_id=request.request_id,
        model=request.model,
        tier="edge",
        class_order=(),
        ranked=(),
        candidates=candidates,
        reason=failure.message,
        failure=failure,
        decided_unix_ms=decided_unix_ms,
        privacy=request.privacy.value,
    )


def failure_of(
    request: RouteRequest,
    ruled_out: Sequence[RuledOut],
    estimator: Estimator,
) -> ShoalError:
    """Why none of the devices can take the request, when at least one serves its model.

    OVERLOADED when one would if it had room, with the predicted wait for the first place;
    MODEL_NOT_FOUND when the request asks for a device that is not there or lacks the model; else
    NO_DEVICE, with a time to try again when one is expected to be there soon.
    """
    full = [device for device, why in ruled_out if why.kind is RejectionKind.FULL]
    if full:
        wait_ms = min(
            estimator.place_wait_ms(d, d.models[request.model]) for d in full[:_MAX_ASKED]
        )
        retry_after_ms = bounded_retry_ms(wait_ms)
        return ShoalError(
            Reason.OVERLOADED,
            f"all devices looked at that can serve {request.model!r} are full ({len(full)});"
            f" a place is predicted to come free in {retry_after_ms} ms",
            retry_after_ms=retry_after_ms,
        )
    present = {why.kind for _, why in ruled_out} - {RejectionKind.MODEL_ABSENT}
    if present <= {RejectionKind.CLASS_HINT, RejectionKind.DEVICE_HINT}:
        if RejectionKind.CLASS_HINT not in present:
            return _no_such_device(request)
        return ShoalError(
            Reason.NO_DEVICE,
            f"no device that serves {request.model!r} fits `shoal.class` ="
            f" {request.device_class!r}; leave it out to use any",
            param="shoal.class",
        )
    reasons = sorted({str(why) for _, why in ruled_out if why.kind not in _BY_REQUEST})
    message = f"no device can take a request for {request.model!r} now: each {' or '.join(reasons)}"
    if not any(_comes_soon(device, why.kind) for device, why in ruled_out):
        return ShoalError(Reason.NO_DEVICE, message)
    return ShoalError(
        Reason.NO_DEVICE,
        f"{message}; try again in {SOON_MS / 1000:g} s",
        retry_after_ms=SOON_MS,
    )


def _no_such_device(request: RouteRequest) -> ShoalError:
    return ShoalError(
        Reason.MODEL_NOT_FOUND,
        f"device {request.device!r} does not exist or does not serve {request.model!r};"
        " leave `shoal.device` out to use any",
        param="shoal.device",
    )


def _comes_soon(device: DeviceView, kind: RejectionKind) -> bool:
    """Whether what is in the way is expected to pass by itself within seconds."""
    if kind is RejectionKind.STATE:
        return device.state is DeviceState.SUSPECT
    return kind in (RejectionKind.MODEL_LOADING, RejectionKind.UNWELL)
