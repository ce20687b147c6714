"""OpenAI's model objects, with what the fleet adds to them."""

from __future__ import annotations

from typing import Any

from shoal.errors import Reason, ShoalError


def model_object(name: str, created_unix_s: int, owner: str) -> dict[str, Any]:
    """A model object; its `shoal` object is empty and to be filled."""
    return {
        "id": name,
        "object": "model",
        "created": created_unix_s,
        "owned_by": owner,
        "shoal": {
            "tiers": [],
            "num_parameters": 0,
            "context_tokens": 0,
            "ready_devices": 0,
            "free_slots": 0,
            "device_classes": [],
        },
    }


def find_in(models: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The model object of that name; raises MODEL_NOT_FOUND."""
    for model in models:
        if model["id"] == name:
            return model
    raise ShoalError(
        Reason.MODEL_NOT_FOUND,
        f"The model {name[:100]!a} is not served. See GET /v1/models.",
        param="model",
    )
