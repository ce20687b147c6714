"""Names in `GET /v1/models` that several models stand behind: cascades and drafted models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.dispatch.cascade.service import Cascades
from orchestrator.dispatch.speculative_models import DraftedModel
from shoal.openai.models import model_object


def with_joint_models(
    models: Sequence[dict[str, Any]], drafted: Iterable[DraftedModel], cascades: Cascades
) -> list[dict[str, Any]]:
    """All of `models` and the joint ones that could be asked for now, by name.

    A drafted model needs a device that has its draft; whether its node answers shows with
    the first request. A cascade needs two models: with one it would be another name for it.
    """
    by_name = {each["id"]: each for each in models}
    created_unix_s = max((each["created"] for each in models), default=0)
    for model in drafted:
        draft = by_name.get(model.draft)
        if draft is None or "edge" not in draft["shoal"]["tiers"]:
            continue
        entry = by_name.setdefault(model.name, model_object(model.name, created_unix_s, "shoal"))
        entry["shoal"] |= {
            "tiers": ["edge", "cloud"],
            "ready_devices": draft["shoal"]["ready_devices"],
            "free_slots": draft["shoal"]["free_slots"],
            "device_classes": draft["shoal"]["device_classes"],
            "context_tokens": entry["shoal"]["context_tokens"] or draft["shoal"]["context_tokens"],
            "drafted_by": model.draft,
        }
    for name, route in cascades.routes():
        edge, target = by_name.get(route.edge), route.target
        if edge is None or target is None:
            continue
        entry = by_name.setdefault(name, model_object(name, created_unix_s, "shoal"))
        entry["shoal"] |= edge["shoal"] | {
            "tiers": ["edge", "cloud"] if target.tier == "cloud" else ["edge"],
            "cascade": {"edge": route.edge, "target": target.model},
        }
    return [by_name[name] for name in sorted(by_name)]
