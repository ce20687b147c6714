"""The endpoints of models that the fleet serves itself on cloud nodes."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from orchestrator.dispatch.endpoint import CloudEndpoint, CloudModel, Salt, Timeouts
from orchestrator.dispatch.prices import Price
from shoal.hosted import HostedModel
from shoal.vllm_models import VllmModel

# After a cold start the prompt is still to be computed.
_FIRST_BYTE_S = Timeouts().first_byte_s
# Our own machines: what they cost is in no tenant's budget.
_FREE = Price(Decimal(0), Decimal(0))


def hosted_endpoints(
    models: Sequence[HostedModel], base_url: str, key: str
) -> tuple[CloudEndpoint, ...]:
    """The endpoint of each model, at `base_url` unless it says where.

    To the gateway they are clouds like any other.
    """
    return tuple(
        _endpoint(model, f"hosted-{model.name}", model.url or base_url, (key, Salt.HEADER))
        for model in models
    )


def vllm_endpoints(models: Sequence[VllmModel], key: str) -> tuple[CloudEndpoint, ...]:
    """The endpoint of each model that vLLM serves on a cluster of the fleet's."""
    return tuple(
        _endpoint(model, f"vllm-{model.name}", model.url, (key, Salt.CACHE_SALT))
        for model in models
    )


def _endpoint(
    model: HostedModel | VllmModel, name: str, url: str, secrets: tuple[str, Salt]
) -> CloudEndpoint:
    key, salt = secrets
    return CloudEndpoint(
        name=name,
        url=f"{url.rstrip('/')}{model.path}/v1",
        models=(
            CloudModel(model.name, model.name, model.num_parameters, model.context_tokens, _FREE),
        ),
        key=key,
        timeouts=Timeouts(first_byte_s=model.cold_start_s + _FIRST_BYTE_S),
        salt=salt,
        own=model.own,
    )
