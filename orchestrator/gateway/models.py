"""`GET /v1/models`: what the fleet and the cloud serve now."""

from __future__ import annotations

from typing import Any

from orchestrator.dispatch.dispatcher import Dispatcher
from shoal.openai.models import model_object


def list_models(dispatcher: Dispatcher, created_unix_s: int) -> list[dict[str, Any]]:
    """OpenAI's model objects, each with a `shoal` object; ordered by name."""
    models: dict[str, dict[str, Any]] = {}
    for name, route in dispatcher.cloud.routes.items():
        models[name] = model_object(name, created_unix_s, route.endpoint.name)
        models[name]["shoal"] |= {
            "tiers": ["cloud"],
            "num_parameters": route.model.num_parameters,
            "context_tokens": route.model.context_tokens,
        }
    for summary in dispatcher.edge.summaries():
        for entry in summary.models:
            model = models.setdefault(entry.name, model_object(entry.name, created_unix_s, "shoal"))
            shoal = model["shoal"]
            shoal["tiers"] = sorted({*shoal["tiers"], "edge"}, reverse=True)
            shoal["num_parameters"] = entry.num_parameters or shoal["num_parameters"]
            shoal["context_tokens"] = max(shoal["context_tokens"], entry.context_tokens)
            shoal["ready_devices"] += entry.ready_devices
            shoal["free_slots"] += entry.free_slots
            shoal["device_classes"] = sorted({*shoal["device_classes"], *entry.device_classes})
    return [models[name] for name in sorted(models)]
