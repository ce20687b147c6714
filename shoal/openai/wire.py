"""Between validated requests and the wire's inference messages."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.openai.extension import RoutingHints
from shoal.openai.request import Prompt, TextRequest
from shoal.openai.sampling import SamplingParams
from shoal.v1 import inference_pb2 as pb

_PRIVACY = {
    "": pb.PRIVACY_UNSPECIFIED,
    "any": pb.PRIVACY_ANY,
    "local_preferred": pb.PRIVACY_LOCAL_PREFERRED,
    "local_only": pb.PRIVACY_LOCAL_ONLY,
}
_OBJECTIVE = {
    "": pb.OBJECTIVE_UNSPECIFIED,
    "latency": pb.OBJECTIVE_LATENCY,
    "edp": pb.OBJECTIVE_EDP,
    "energy": pb.OBJECTIVE_ENERGY,
}
_SLO_MISS = {
    "": pb.SLO_MISS_UNSPECIFIED,
    "best_effort": pb.SLO_MISS_BEST_EFFORT,
    "refuse": pb.SLO_MISS_REFUSE,
}


@dataclass(frozen=True, slots=True)
class Origin:
    """What the server adds to a client's request."""

    request_id: str
    tenant: str = ""
    tenant_salt: bytes = b""
    deadline_unix_ms: int = 0
    tenant_weight: float = 1.0


def to_generate_requests(request: TextRequest, origin: Origin) -> list[pb.GenerateRequest]:
    """One message for each choice, in the order of the choices' indices.

    The first carries the request's own id, the others a numbered one. Choices of
    one prompt get successive seeds when a seed is given, else they would be equal.
    """
    messages: list[pb.GenerateRequest] = []
    for prompt in request.prompts:
        for nth in range(request.num_choices):
            index = len(messages)
            message = _generate(request, prompt, nth)
            message.request_id = f"{origin.request_id}-{index}" if index else origin.request_id
            message.tenant = origin.tenant
            message.tenant_salt = origin.tenant_salt
            message.tenant_weight = origin.tenant_weight
            message.deadline_unix_ms = origin.deadline_unix_ms
            messages.append(message)
    return messages


def _generate(request: TextRequest, prompt: Prompt, nth: int) -> pb.GenerateRequest:
    message = pb.GenerateRequest(
        model=request.model,
        sampling=_sampling(request.sampling, nth),
        stop=request.stop,
        max_tokens=request.max_tokens,
        top_logprobs=request.top_logprobs,
        hints=_hints(request.hints),
        ignore_eos=request.ignore_eos,
        user=request.user,
    )
    if isinstance(prompt, str):
        message.text = prompt
    elif request.chat:
        for item in prompt:
            if isinstance(item, int):
                raise TypeError("a chat prompt holds messages, not token ids")
            message.chat.messages.add(role=item.role, content=item.content, name=item.name)
    else:
        message.tokens.ids.extend(item for item in prompt if isinstance(item, int))
    return message


def _sampling(params: SamplingParams, nth: int) -> pb.Sampling:
    return pb.Sampling(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repeat_penalty=params.repeat_penalty,
        seed=None if params.seed is None else (params.seed + nth) % 2**64,
        logit_bias=params.logit_bias,
    )


def _hints(hints: RoutingHints) -> pb.RoutingHints:
    return pb.RoutingHints(
        ttft_ms=hints.ttft_ms,
        tpot_ms=hints.tpot_ms,
        privacy=_PRIVACY[hints.privacy],
        device_class=hints.device_class,
        device=hints.device,
        priority=hints.priority,
        objective=_OBJECTIVE[hints.objective],
        on_slo_miss=_SLO_MISS[hints.on_slo_miss],
        hedge_after=hints.hedge_after,
    )
