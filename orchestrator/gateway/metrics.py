"""What the gateway counts of requests, for Prometheus: once a request, nothing a token."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from shoal.errors import ShoalError
from shoal.openai.outcome import Outcome
from shoal.v1 import inference_pb2 as pb

# From a cached prompt on a fast device to a long one on a slow board.
_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# The article's classes take 18 to 238 ms a token for 8B, small models much less.
_TPOT_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0)
# 0.15 and 0.25 are what we aim for in the median.
_ERROR = (0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0)


class RequestMetrics:
    """Counters and histograms of one gateway; names and labels as in docs/metrics.md."""

    def __init__(self) -> None:
        # A series of start times beside each counter would double what is stored.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "shoal_requests",
            "Choices that were dispatched, by how they ended.",
            ("model", "tier", "outcome"),
            registry=registry,
        )
        self._failures = Counter(
            "shoal_failures", "Answers that were an error, by code.", ("code",), registry=registry
        )
        self._tokens = Counter(
            "shoal_tokens",
            "Tokens: prompt (all), cached (of them restored), completion.",
            ("model", "tier", "kind"),
            registry=registry,
        )
        self._ttft = Histogram(
            "shoal_ttft_seconds",
            "Arrival at the engine to the first token.",
            ("model", "tier"),
            buckets=_TTFT_S,
            registry=registry,
        )
        self._tpot = Histogram(
            "shoal_tpot_seconds",
            "Mean time a token after the first, of a request.",
            ("model", "tier"),
            buckets=_TPOT_S,
            registry=registry,
        )
        self._joules = Counter(
            "shoal_joules",
            "Energy charged to requests.",
            ("model", "device_class", "estimated"),
            registry=registry,
        )
        self._unmetered = Counter(
            "shoal_requests_without_joules",
            "Finished requests whose energy is not known.",
            ("model", "tier"),
            registry=registry,
        )
        self._error = Histogram(
            "shoal_prediction_error_ratio",
            "|predicted - actual| / actual of finished requests on the edge.",
            ("model", "figure"),
            buckets=_ERROR,
            registry=registry,
        )
        self.in_flight = Gauge(
            "shoal_requests_in_flight", "Requests this gateway holds now.", registry=registry
        )

    def ended(self, outcome: Outcome, model: str, failure: ShoalError | None) -> None:
        """Count one choice; `failure` is the response's, which ended the unfinished ones."""
        finished, placed = outcome.finished, outcome.placed
        # Names that nobody serves are the client's own words: no labels of them.
        label = model if placed is not None or finished is not None else ""
        if finished is None:
            ended = "cancelled" if failure is None else failure.reason.value
            self._requests.labels(label, outcome.tier, ended).inc()
            return
        self._requests.labels(label, outcome.tier, "finished").inc()
        usage, timings = finished.usage, finished.timings
        self._tokens.labels(label, outcome.tier, "prompt").inc(usage.prompt_tokens)
        self._tokens.labels(label, outcome.tier, "cached").inc(usage.cached_tokens)
        self._tokens.labels(label, outcome.tier, "completion").inc(usage.completion_tokens)
        self._ttft.labels(label, outcome.tier).observe(timings.ttft_ms / 1000)
        if timings.tpot_ms > 0:
            self._tpot.labels(label, outcome.tier).observe(timings.tpot_ms / 1000)
        if timings.HasField("joules"):
            estimated = "true" if timings.joules_estimated else "false"
            device_class = placed.device_class if placed is not None else ""
            self._joules.labels(label, device_class, estimated).inc(timings.joules)
        else:
            self._unmetered.labels(label, outcome.tier).inc()
        if placed is not None:
            self._compare(label, placed, timings)

    def failed(self, error: ShoalError) -> None:
        """Count one answer that is an error, whatever it reached before."""
        self._failures.labels(error.reason.value).inc()

    def render(self, *more: Collector) -> bytes:
        """Prometheus' text format: these metrics, then those of `more`."""
        return b"".join(generate_latest(each) for each in (self._registry, *more))

    def _compare(self, label: str, placed: pb.Placed, timings: pb.Timings) -> None:
        pairs = (
            ("ttft", "predicted_ttft_ms", timings.ttft_ms),
            ("tpot", "predicted_tpot_ms", timings.tpot_ms),
        )
        for figure, field, actual_ms in pairs:
            if placed.HasField(field) and actual_ms > 0:
                error = abs(getattr(placed, field) - actual_ms) / actual_ms
                self._error.labels(label, figure).observe(error)
