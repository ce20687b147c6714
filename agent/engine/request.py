"""What an engine is asked for, as values: prompt, sampling, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class RequestKey(NamedTuple):
    """Identifies a request: ids are unique only within the session that sent them."""

    session_id: int
    request_id: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen; defaults as documented in inference.proto."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    seed: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    # None: no log-probabilities; N: that of each token and of the N likeliest.
    top_logprobs: int | None = None
    # Whether to tell how sure the model was of each token.
    measure_confidence: bool = False

    @property
    def is_plain_greedy(self) -> bool:
        """True when the likeliest token is taken and nothing changes the logits."""
        return (
            self.temperature == 0.0
            and not self.logit_bias
            and self.repeat_penalty == 1.0
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
        )


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A tokenised request that may be queued; `max_tokens` is already bounded."""

    key: RequestKey
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    # Unix time in seconds after which the answer is worth nothing.
    deadline_unix_s: float | None = None
    # Seconds on the engine's monotonic clock at which the request arrived.
    arrived_s: float = 0.0
    tenant: str = ""
    tenant_salt: bytes = b""
    # False: its KV blocks stay on this device.
    share_blocks: bool = True
