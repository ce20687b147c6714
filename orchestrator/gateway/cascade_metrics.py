"""What the gateway counts of cascades, for Prometheus; names as in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.dispatch.cascade.service import Cascades


class CascadeMetrics(Collector):
    """Reads the totals of one gateway's cascades when it is scraped."""

    def __init__(self, cascades: Cascades) -> None:
        self._cascades = cascades

    def collect(self) -> Iterator[Metric]:
        """The families."""
        ends = CounterMetricFamily(
            "shoal_cascade_requests",
            "Requests through a cascade, by whether the edge's answer stood and why.",
            labels=("policy", "decision", "reason"),
        )
        discarded = CounterMetricFamily(
            "shoal_cascade_discarded_tokens",
            "Tokens of the edge that no client got.",
            labels=("policy",),
        )
        confidence = HistogramMetricFamily(
            "shoal_cascade_confidence",
            "Confidence of the edge's answers, from 0 to 1.",
            labels=("policy",),
        )
        audits = CounterMetricFamily(
            "shoal_cascade_audits",
            "Confident answers of which the cloud was asked too, by how that ended.",
            labels=("policy", "result"),
        )
        shared = CounterMetricFamily(
            "shoal_cascade_audit_overlap",
            "Sum of the audited answers' overlap in words with the cloud's, each from 0 to 1.",
            labels=("policy",),
        )
        for policy, totals in self._cascades.totals.items():
            for (decision, reason), count in totals.ends.items():
                ends.add_metric((policy, decision, reason), count)
            discarded.add_metric((policy,), totals.discarded_tokens)
            confidence.add_metric((policy,), totals.buckets(), totals.confidence_sum)
        for policy, audited in self._cascades.audits.totals.items():
            for result, count in audited.ends.items():
                audits.add_metric((policy, result), count)
            shared.add_metric((policy,), audited.overlap_sum)
        yield from (ends, discarded, confidence, audits, shared)
