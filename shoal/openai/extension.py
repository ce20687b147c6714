"""The `shoal` object of a request: latency objective, privacy and placement.

Goes into the request's JSON beside OpenAI's own fields, so `extra_body={"shoal":
{...}}` of the OpenAI SDK carries it.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import invalid
from shoal.openai.fields import Fields

PRIVACY = ("any", "local_preferred", "local_only")
OBJECTIVES = ("latency", "edp", "energy")
SLO_MISSES = ("best_effort", "refuse")
DEVICE_CLASSES = ("arm_cpu", "x86_cpu", "gpu", "npu")
_KNOWN = frozenset(
    {
        "slo", "privacy", "class", "device", "priority", "objective", "on_slo_miss",
        "hedge_after", "cascade",
    }
)  # fmt: skip
_KNOWN_CASCADE = frozenset({"threshold", "delivery"})
CASCADE_DELIVERIES = ("hold", "restart")
_KNOWN_SLO = frozenset({"ttft_ms", "tpot_ms"})
# An hour: no latency objective is longer.
_MAX_SLO_MS = 3_600_000.0
# Later than that a device counts as silent anyway.
MAX_HEDGE_AFTER = 100.0


@dataclass(frozen=True, slots=True)
class RoutingHints:
    """What the client asks of placement; empty strings and None: nothing asked."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    privacy: str = ""
    device_class: str = ""
    device: str = ""
    priority: int = 0
    objective: str = ""
    on_slo_miss: str = ""
    hedge_after: float | None = None
    # Of a model that is a cascade; None and empty: as its policy says.
    cascade_threshold: float | None = None
    cascade_delivery: str = ""


def parse_extension(body: Fields) -> RoutingHints:
    """The hints in `shoal`.

    Unlike OpenAI's own object this one is closed: a misspelt privacy wish that is
    silently ignored would break a promise.
    """
    extension = body.nested("shoal")
    if extension is None:
        return RoutingHints()
    _closed(extension, _KNOWN)
    slo = extension.nested("slo")
    ttft_ms = tpot_ms = None
    if slo is not None:
        _closed(slo, _KNOWN_SLO)
        ttft_ms = slo.number("ttft_ms", 0.001, _MAX_SLO_MS)
        tpot_ms = slo.number("tpot_ms", 0.001, _MAX_SLO_MS)
    cascade = extension.nested("cascade")
    threshold, delivery = None, ""
    if cascade is not None:
        _closed(cascade, _KNOWN_CASCADE)
        threshold = cascade.number("threshold", 0.0, 1.0)
        delivery = cascade.choice("delivery", CASCADE_DELIVERIES) or ""
    device = extension.text("device") or ""
    if len(device) > 128:
        raise invalid("shoal.device", "'shoal.device' is longer than 128 characters.")
    return RoutingHints(
        ttft_ms=ttft_ms,
        tpot_ms=tpot_ms,
        privacy=extension.choice("privacy", PRIVACY) or "",
        device_class=extension.choice("class", DEVICE_CLASSES) or "",
        device=device,
        priority=extension.integer("priority", -100, 100) or 0,
        objective=extension.choice("objective", OBJECTIVES) or "",
        on_slo_miss=extension.choice("on_slo_miss", SLO_MISSES) or "",
        hedge_after=extension.number("hedge_after", 0.0, MAX_HEDGE_AFTER),
        cascade_threshold=threshold,
        cascade_delivery=delivery,
    )


def _closed(fields: Fields, known: frozenset[str]) -> None:
    for name in fields.names():
        if name not in known:
            param = fields.param(ascii(name)[1:-1][:60])
            listed = ", ".join(sorted(known))
            raise invalid(param, f"'{param}' is unknown. Known fields: {listed}.")
