"""The order among devices that may take a request, and why each but the first lost."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.fleet.view import DeviceClass, DeviceView, ServedModel
from orchestrator.request import Objective, RouteRequest, Slo
from orchestrator.routing.decision import Prediction, Rejection, RejectionKind

# Scores within about 5 % count as equal, so that noise in what was learned does not
# move the traffic to and fro; the load decides then.
_STEPS_PER_LOG = 20.0


@dataclass(frozen=True, slots=True)
class Contender:
    """A device that may take the request, with what it would make of it.

    `score`: ms (latency), J·s (edp) or J (energy), less is better; inf: unknown.
    `step`: the score in steps of 5 %, by which it is compared.
    """

    device: DeviceView
    model: ServedModel
    prediction: Prediction
    score: float
    step: float
    meets_slo: bool
    free_slot: bool
    occupied: int
    tie: int


def contend(
    request: RouteRequest,
    device: DeviceView,
    prediction: Prediction,
    completion_tokens: float,
    occupied: int,
) -> Contender:
    """Score one device by the request's objective."""
    model = device.models[request.model]
    total_ms = prediction.ttft_ms + prediction.tpot_ms * max(0.0, completion_tokens - 1)
    if request.objective is Objective.LATENCY:
        score = total_ms
    elif prediction.joules is None:
        score = math.inf
    elif request.objective is Objective.EDP:
        score = prediction.joules * total_ms / 1000.0
    else:
        score = prediction.joules
    return Contender(
        device=device,
        model=model,
        prediction=prediction,
        score=score,
        step=_step(score),
        meets_slo=_meets(request.slo, prediction),
        free_slot=occupied < model.slots,
        occupied=occupied,
        tie=zlib.crc32(f"{request.request_id}{device.device_id}".encode()),
    )


def free_classes(contenders: Sequence[Contender]) -> frozenset[DeviceClass]:
    """Classes of which some device has a free slot."""
    return frozenset([c.device.device_class for c in contenders if c.free_slot])


def ranked(contenders: Sequence[Contender], order: Sequence[DeviceClass]) -> list[Contender]:
    """Best first: SLO met, class with a free slot, class order, score, load, then spread.

    A class is full when all its slots are taken; it still queues, but a later class with
    a free slot goes first. Within a class only the prediction counts, so that a fast
    device with a queue may beat a slow idle one.
    """
    free = free_classes(contenders)
    place = {
        device_class: (device_class not in free, index) for index, device_class in enumerate(order)
    }
    return sorted(
        contenders,
        key=lambda c: (
            not c.meets_slo,
            place[c.device.device_class],
            c.step,
            c.occupied,
            c.tie,
        ),
    )


def why_lost(
    request: RouteRequest, loser: Contender, winner: Contender, free: frozenset[DeviceClass]
) -> Rejection:
    """The first comparison that `loser` lost against `winner`; `free`: classes with a free slot."""
    lost, won = loser.prediction, winner.prediction
    if winner.meets_slo and not loser.meets_slo:
        return _why_missed(request.slo, lost)
    lost_class, won_class = loser.device.device_class, winner.device.device_class
    if lost_class != won_class:
        if won_class in free and lost_class not in free:
            return Rejection(
                RejectionKind.CLASS_BUSY,
                "all slots of {} are taken and {} has a free one",
                (lost_class, won_class),
            )
        return Rejection(
            RejectionKind.CLASS_ORDER, "{} comes after {} for this model", (lost_class, won_class)
        )
    if loser.step != winner.step:
        what, unit = _SCORE_TEXT[request.objective]
        if math.isinf(loser.score):
            return Rejection(RejectionKind.SCORE, "its {} cannot be estimated", (what,))
        return Rejection(
            RejectionKind.SCORE,
            "predicted {} {:.3g} {} against {:.3g} {}",
            (what, loser.score, unit, winner.score, unit),
        )
    if loser.occupied != winner.occupied:
        return Rejection(
            RejectionKind.LOAD,
            "as good within 5 %, but holds {} requests against {} (TTFT {:.0f} against {:.0f} ms)",
            (loser.occupied, winner.occupied, lost.ttft_ms, won.ttft_ms),
        )
    return Rejection(RejectionKind.SPREAD, "as good and as loaded; spread by request id")


_SCORE_TEXT = {
    Objective.LATENCY: ("completion", "ms"),
    Objective.EDP: ("energy-delay product", "J·s"),
    Objective.ENERGY: ("energy", "J"),
}


def _step(score: float) -> float:
    if score <= 0 or math.isinf(score):
        return score
    return math.floor(math.log(score) * _STEPS_PER_LOG)


def _meets(slo: Slo, prediction: Prediction) -> bool:
    if slo.ttft_ms is not None and prediction.ttft_ms > slo.ttft_ms:
        return False
    return slo.tpot_ms is None or prediction.tpot_ms <= slo.tpot_ms


def _why_missed(slo: Slo, prediction: Prediction) -> Rejection:
    if slo.tpot_ms is not None and prediction.tpot_ms > slo.tpot_ms:
        return Rejection(
            RejectionKind.SLO_TPOT,
            "predicted TPOT {:.1f} ms misses the stated {:g} ms",
            (prediction.tpot_ms, slo.tpot_ms),
        )
    return Rejection(
        RejectionKind.SLO_TTFT,
        "predicted TTFT {:.0f} ms misses the stated {:g} ms",
        (prediction.ttft_ms, slo.ttft_ms),
    )
