"""The order among devices that may take a request, and why each but the first lost."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.fleet.view import DeviceClass, DeviceView
from orchestrator.request import Objective, RouteRequest
from orchestrator.routing.decision import Prediction, Rejection, RejectionKind
from orchestrator.routing.standing import Standing

# Scores up to 5 % above the best count as equal to it, so that noise in what was learned
# does not move the traffic to and fro; the load decides then.
NEAR = 1.05
# A prediction is a mean. Up to this share of the objective it is met with confidence, and
# such a device goes before one that would only just meet it.
SLO_CONFIDENT = 0.75

CONFIDENT, MET, MISSED = 0, 1, 2


# Not frozen: dozens are made for each decision, and a frozen one takes three times as long.
@dataclass(slots=True)
class Contender:
    """A device that may take the request, with what it would make of it.

    `score`: ms (latency), J·s (edp) or J (energy), less is better; inf: unknown.
    `slo`: CONFIDENT, MET or MISSED. `rank`: filled by `ranked`, less is better.
    """

    standing: Standing
    ttft_ms: float
    tpot_ms: float
    joules: float | None
    joules_estimated: bool
    prompt_tokens: int
    cached_tokens: int
    score: float
    slo: int
    # Whether it fetches what is cached from the shared tier.
    fetches: bool = False
    rank: tuple[float, ...] = ()

    @property
    def device(self) -> DeviceView:
        """The device as the view shows it."""
        return self.standing.device

    @property
    def occupied(self) -> int:
        """Requests that it holds."""
        return self.standing.occupied

    @property
    def meets_slo(self) -> bool:
        """Predicted to meet the stated objective."""
        return self.slo != MISSED

    @property
    def free_slot(self) -> bool:
        """Whether it would start the request at once."""
        return self.standing.free_slot

    @property
    def serves_well(self) -> bool:
        """Nobody need look further: it meets the objective with confidence, and at once."""
        return self.slo == CONFIDENT and self.free_slot

    @property
    def prediction(self) -> Prediction:
        """The figures, as kept in the decision."""
        return Prediction(
            ttft_ms=self.ttft_ms,
            tpot_ms=self.tpot_ms,
            joules=self.joules,
            joules_estimated=self.joules_estimated,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
        )


class Scale:
    """How one request measures devices; made once for all of them."""

    __slots__ = (
        "_steps",
        "_sure_tpot_ms",
        "_sure_ttft_ms",
        "_tie_seed",
        "_tpot_ms",
        "_ttft_ms",
        "objective",
    )

    def __init__(self, request: RouteRequest, completion_tokens: float) -> None:
        self.objective = request.objective
        self._steps = max(0.0, completion_tokens - 1)
        self._tie_seed = zlib.crc32(request.request_id.encode())
        self._ttft_ms = math.inf if request.slo.ttft_ms is None else request.slo.ttft_ms
        self._tpot_ms = math.inf if request.slo.tpot_ms is None else request.slo.tpot_ms
        self._sure_ttft_ms = SLO_CONFIDENT * self._ttft_ms
        self._sure_tpot_ms = SLO_CONFIDENT * self._tpot_ms

    def measure(self, ttft_ms: float, tpot_ms: float, joules: float | None) -> tuple[float, int]:
        """Score by the request's objective (inf: energy unknown); how surely the SLO is met."""
        score = ttft_ms + tpot_ms * self._steps
        if self.objective is not _LATENCY:
            if joules is None:
                score = math.inf
            else:
                score = joules * score / 1000.0 if self.objective is _EDP else joules
        if ttft_ms > self._ttft_ms or tpot_ms > self._tpot_ms:
            return score, MISSED
        if ttft_ms > self._sure_ttft_ms or tpot_ms > self._sure_tpot_ms:
            return score, MET
        return score, CONFIDENT

    def tie(self, device: DeviceView) -> int:
        """A number that spreads equal devices over requests."""
        return zlib.crc32(device.device_id.encode(), self._tie_seed)


# Members looked up once: enum attribute access is slow in the loop over devices.
_LATENCY, _EDP, _ENERGY = Objective.LATENCY, Objective.EDP, Objective.ENERGY


def free_classes(contenders: Sequence[Contender]) -> frozenset[DeviceClass]:
    """Classes of which some device has a free slot."""
    return frozenset([s.device_class for c in contenders if (s := c.standing).free_slot])


def ranked(
    contenders: list[Contender], order: Sequence[DeviceClass], scale: Scale
) -> list[Contender]:
    """Best first: SLO, then class by the tree, then score, load and spread.

    - A class is full when all its slots are taken; it still queues, but a later class
      with a free slot goes first. Within a class only the prediction counts, so that a
      fast device with a queue may beat a slow idle one.
    - Who asks for the least energy or energy-delay product gets it from whatever class
      meets the SLO; the tree's order then only decides among equals. Energy alone knows
      no waiting: there a free slot goes first.
    """
    if len(contenders) == 1:
        return contenders
    free = free_classes(contenders)
    place = {name: index + (0 if name in free else len(order)) for index, name in enumerate(order)}
    by_class = scale.objective is _LATENCY
    by_room = scale.objective is _ENERGY
    first, best = (MISSED + 1, 0), math.inf
    for c in contenders:
        standing = c.standing
        in_class = place[standing.device_class]
        group = (c.slo, in_class if by_class else by_room and not standing.free_slot)
        if group < first:
            first, best = group, c.score
        elif group == first and c.score < best:
            best = c.score
        c.rank = (*group, c.score, in_class, standing.occupied)
    near = best * NEAR
    for c in contenders:
        if c.score <= near and c.rank[:2] == first:
            c.rank = (*first, 0.0, *c.rank[3:], scale.tie(c.device))
    contenders.sort(key=_rank)
    return contenders


def _rank(contender: Contender) -> tuple[float, ...]:
    return contender.rank


def why_lost(
    request: RouteRequest, loser: Contender, winner: Contender, free: frozenset[DeviceClass]
) -> Rejection:
    """The first comparison that `loser` lost against `winner`; `free`: classes with a free slot."""
    if winner.slo < loser.slo:
        return _why_missed(request, loser)
    lost_class, won_class = loser.device.device_class, winner.device.device_class
    if request.objective is _LATENCY and lost_class != won_class:
        return _why_class(loser, winner, free)
    if request.objective is _ENERGY and winner.free_slot and not loser.free_slot:
        return Rejection(RejectionKind.LOAD, "has no free slot, and the chosen one has")
    if loser.score > winner.score * NEAR:
        what, unit = _SCORE_TEXT[request.objective]
        if math.isinf(loser.score):
            return Rejection(RejectionKind.SCORE, "its {} cannot be estimated", (what,))
        return Rejection(
            RejectionKind.SCORE,
            "predicted {} {:.3g} {} against {:.3g} {}",
            (what, loser.score, unit, winner.score, unit),
        )
    if lost_class != won_class:
        return _why_class(loser, winner, free)
    if loser.occupied != winner.occupied:
        return Rejection(
            RejectionKind.LOAD,
            "as good within 5 %, but holds {} requests against {} (TTFT {:.0f} against {:.0f} ms)",
            (loser.occupied, winner.occupied, loser.ttft_ms, winner.ttft_ms),
        )
    return Rejection(RejectionKind.SPREAD, "as good and as loaded; spread by request id")


_SCORE_TEXT = {
    Objective.LATENCY: ("completion", "ms"),
    Objective.EDP: ("energy-delay product", "J·s"),
    Objective.ENERGY: ("energy", "J"),
}


def _why_class(loser: Contender, winner: Contender, free: frozenset[DeviceClass]) -> Rejection:
    lost_class, won_class = loser.device.device_class, winner.device.device_class
    if won_class in free and lost_class not in free:
        return Rejection(
            RejectionKind.CLASS_BUSY,
            "all slots of {} are taken and {} has a free one",
            (lost_class, won_class),
        )
    return Rejection(
        RejectionKind.CLASS_ORDER, "{} comes after {} for this model", (lost_class, won_class)
    )


def _why_missed(request: RouteRequest, loser: Contender) -> Rejection:
    """Which objective `loser` misses, or meets less surely."""
    slo, share, verb = request.slo, 1.0, "misses"
    if loser.slo == MET:
        share, verb = SLO_CONFIDENT, "is close to"
    if slo.tpot_ms is not None and loser.tpot_ms > slo.tpot_ms * share:
        return Rejection(
            RejectionKind.SLO_TPOT,
            "predicted TPOT {:.1f} ms {} the stated {:g} ms",
            (loser.tpot_ms, verb, slo.tpot_ms),
        )
    return Rejection(
        RejectionKind.SLO_TTFT,
        "predicted TTFT {:.0f} ms {} the stated {:g} ms",
        (loser.ttft_ms, verb, slo.ttft_ms),
    )
