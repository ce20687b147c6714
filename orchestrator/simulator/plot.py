"""A bar chart of the policies as SVG, without a plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _PANEL, _ROW, _LABEL = 720, 150, 24, 130
_COLOURS = ("#9aa5b1", "#6b7c93", "#2a9d8f", "#1d6f8a")
# (title, path into a run, format)
_PANELS = (
    ("SLO attainment, %", ("slo_attainment",), 100.0),
    ("TTFT p95, ms", ("latency", "ttft_ms", "p95"), 1.0),
    ("TPOT p95, ms", ("latency", "tpot_ms", "p95"), 1.0),
    ("Energy per request (whole fleet), J", ("fleet_joules_per_request",), 1.0),
    ("Energy-delay product per request, J·s", ("edp_js",), 1.0),
)


def svg(runs: Sequence[dict[str, Any]]) -> str:
    """One panel for each figure, one bar for each policy; bars are scaled by panel."""
    height = _ROW * len(runs) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}"'
        f' height="{height * len(_PANELS)}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, (title, path, factor) in enumerate(_PANELS):
        top = index * height
        parts.append(f'<text x="12" y="{top + 24}" font-weight="bold">{escape(title)}</text>')
        values = [_value(run, path) * factor for run in runs]
        largest = max(values) or 1.0
        for row, (run, value) in enumerate(zip(runs, values, strict=True)):
            parts += _bar(top + 34 + row * _ROW, run["policy"], value, value / largest, row)
    return "\n".join([*parts, "</svg>", ""])


def _bar(top: int, policy: str, value: float, share: float, row: int) -> list[str]:
    width = max(1, round(share * (_WIDTH - _LABEL - _PANEL)))
    colour = _COLOURS[row % len(_COLOURS)]
    return [
        f'<text x="12" y="{top + 15}">{escape(policy)}</text>',
        f'<rect x="{_LABEL}" y="{top}" width="{width}" height="{_ROW - 5}" fill="{colour}"/>',
        f'<text x="{_LABEL + width + 6}" y="{top + 15}">{value:,.4g}</text>',
    ]


def _value(run: dict[str, Any], path: Sequence[str]) -> float:
    value: Any = run
    for key in path:
        value = value[key]
    return float(value)
