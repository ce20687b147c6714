from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SpeculationFallback(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPECULATION_FALLBACK_UNSPECIFIED: _ClassVar[SpeculationFallback]
    SPECULATION_FALLBACK_EDGE: _ClassVar[SpeculationFallback]
    SPECULATION_FALLBACK_CLOUD: _ClassVar[SpeculationFallback]

class Privacy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIVACY_UNSPECIFIED: _ClassVar[Privacy]
    PRIVACY_ANY: _ClassVar[Privacy]
    PRIVACY_LOCAL_PREFERRED: _ClassVar[Privacy]
    PRIVACY_LOCAL_ONLY: _ClassVar[Privacy]

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_LATENCY: _ClassVar[Objective]
    OBJECTIVE_EDP: _ClassVar[Objective]
    OBJECTIVE_ENERGY: _ClassVar[Objective]

class SloMiss(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLO_MISS_UNSPECIFIED: _ClassVar[SloMiss]
    SLO_MISS_BEST_EFFORT: _ClassVar[SloMiss]
    SLO_MISS_REFUSE: _ClassVar[SloMiss]

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_REASON_UNSPECIFIED: _ClassVar[FailureReason]
    FAILURE_REASON_INVALID_ARGUMENT: _ClassVar[FailureReason]
    FAILURE_REASON_CONTEXT_OVERFLOW: _ClassVar[FailureReason]
    FAILURE_REASON_MODEL_NOT_FOUND: _ClassVar[FailureReason]
    FAILURE_REASON_OVERLOADED: _ClassVar[FailureReason]
    FAILURE_REASON_NO_DEVICE: _ClassVar[FailureReason]
    FAILURE_REASON_DEVICE_LOST: _ClassVar[FailureReason]
    FAILURE_REASON_ENGINE_CRASHED: _ClassVar[FailureReason]
    FAILURE_REASON_CANCELLED: _ClassVar[FailureReason]
    FAILURE_REASON_DEADLINE_EXCEEDED: _ClassVar[FailureReason]
    FAILURE_REASON_UNAUTHENTICATED: _ClassVar[FailureReason]
    FAILURE_REASON_PERMISSION_DENIED: _ClassVar[FailureReason]
    FAILURE_REASON_UPSTREAM: _ClassVar[FailureReason]
    FAILURE_REASON_DRAINING: _ClassVar[FailureReason]
    FAILURE_REASON_SLO_UNREACHABLE: _ClassVar[FailureReason]
    FAILURE_REASON_INTERNAL: _ClassVar[FailureReason]
    FAILURE_REASON_BUDGET_EXCEEDED: _ClassVar[FailureReason]
    FAILURE_REASON_RATE_LIMITED: _ClassVar[FailureReason]
SPECULATION_FALLBACK_UNSPECIFIED: SpeculationFallback
SPECULATION_FALLBACK_EDGE: SpeculationFallback
SPECULATION_FALLBACK_CLOUD: SpeculationFallback
PRIVACY_UNSPECIFIED: Privacy
PRIVACY_ANY: Privacy
PRIVACY_LOCAL_PREFERRED: Privacy
PRIVACY_LOCAL_ONLY: Privacy
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_LATENCY: Objective
OBJECTIVE_EDP: Objective
OBJECTIVE_ENERGY: Objective
SLO_MISS_UNSPECIFIED: SloMiss
SLO_MISS_BEST_EFFORT: SloMiss
SLO_MISS_REFUSE: SloMiss
FAILURE_REASON_UNSPECIFIED: FailureReason
FAILURE_REASON_INVALID_ARGUMENT: FailureReason
FAILURE_REASON_CONTEXT_OVERFLOW: FailureReason
FAILURE_REASON_MODEL_NOT_FOUND: FailureReason
FAILURE_REASON_OVERLOADED: FailureReason
FAILURE_REASON_NO_DEVICE: FailureReason
FAILURE_REASON_DEVICE_LOST: FailureReason
FAILURE_REASON_ENGINE_CRASHED: FailureReason
FAILURE_REASON_CANCELLED: FailureReason
FAILURE_REASON_DEADLINE_EXCEEDED: FailureReason
FAILURE_REASON_UNAUTHENTICATED: FailureReason
FAILURE_REASON_PERMISSION_DENIED: FailureReason
FAILURE_REASON_UPSTREAM: FailureReason
FAILURE_REASON_DRAINING: FailureReason
FAILURE_REASON_SLO_UNREACHABLE: FailureReason
FAILURE_REASON_INTERNAL: FailureReason
FAILURE_REASON_BUDGET_EXCEEDED: FailureReason
FAILURE_REASON_RATE_LIMITED: FailureReason

class InferenceCommand(_message.Message):
    __slots__ = ("submit", "cancel")
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    submit: GenerateRequest
    cancel: CancelRequest
    def __init__(self, submit: _Optional[_Union[GenerateRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "model", "tenant", "chat", "text", "tokens", "sampling", "stop", "max_tokens", "top_logprobs", "hints", "deadline_unix_ms", "ignore_eos", "user", "tenant_salt", "tenant_weight", "speculation", "measure_confidence", "prefill_only")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    TENANT_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    MEASURE_CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ONLY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    tenant: str
    chat: ChatPrompt
    text: str
    tokens: TokenPrompt
    sampling: Sampling
    stop: _containers.RepeatedScalarFieldContainer[str]
    max_tokens: int
    top_logprobs: int
    hints: RoutingHints
    deadline_unix_ms: int
    ignore_eos: bool
    user: str
    tenant_salt: bytes
    tenant_weight: float
    speculation: Speculation
    measure_confidence: bool
    prefill_only: bool
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., tenant: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stop: _Optional[_Iterable[str]] = ..., max_tokens: _Optional[int] = ..., top_logprobs: _Optional[int] = ..., hints: _Optional[_Union[RoutingHints, _Mapping]] = ..., deadline_unix_ms: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., user: _Optional[str] = ..., tenant_salt: _Optional[bytes] = ..., tenant_weight: _Optional[float] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ..., measure_confidence: _Optional[bool] = ..., prefill_only: _Optional[bool] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("verifier", "target", "fallback", "timeout_ms")
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    verifier: str
    target: str
    fallback: SpeculationFallback
    timeout_ms: int
    def __init__(self, verifier: _Optional[str] = ..., target: _Optional[str] = ..., fallback: _Optional[_Union[SpeculationFallback, str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages", "tools_json")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_JSON_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    tools_json: str
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., tools_json: _Optional[str] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "name")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class TokenPrompt(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repeat_penalty", "seed", "logit_bias")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPEAT_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repeat_penalty: float
    seed: int
    logit_bias: _containers.ScalarMap[int, float]
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repeat_penalty: _Optional[float] = ..., seed: _Optional[int] = ..., logit_bias: _Optional[_Mapping[int, float]] = ...) -> None: ...

class RoutingHints(_message.Message):
    __slots__ = ("ttft_ms", "tpot_ms", "privacy", "device_class", "device", "priority", "objective", "on_slo_miss", "no_waiting", "hedge_after")
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    ON_SLO_MISS_FIELD_NUMBER: _ClassVar[int]
    NO_WAITING_FIELD_NUMBER: _ClassVar[int]
    HEDGE_AFTER_FIELD_NUMBER: _ClassVar[int]
    ttft_ms: float
    tpot_ms: float
    privacy: Privacy
    device_class: str
    device: str
    priority: int
    objective: Objective
    on_slo_miss: SloMiss
    no_waiting: bool
    hedge_after: float
    def __init__(self, ttft_ms: _Optional[float] = ..., tpot_ms: _Optional[float] = ..., privacy: _Optional[_Union[Privacy, str]] = ..., device_class: _Optional[str] = ..., device: _Optional[str] = ..., priority: _Optional[int] = ..., objective: _Optional[_Union[Objective, str]] = ..., on_slo_miss: _Optional[_Union[SloMiss, str]] = ..., no_waiting: _Optional[bool] = ..., hedge_after: _Optional[float] = ...) -> None: ...

class InferenceFrame(_message.Message):
    __slots__ = ("updates", "load")
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[SequenceUpdate]
    load: EngineLoad
    def __init__(self, updates: _Optional[_Iterable[_Union[SequenceUpdate, _Mapping]]] = ..., load: _Optional[_Union[EngineLoad, _Mapping]] = ...) -> None: ...

class SequenceUpdate(_message.Message):
    __slots__ = ("request_id", "placed", "admitted", "delta", "finished", "failed", "restarted")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    placed: Placed
    admitted: Admitted
    delta: Delta
    finished: Finished
    failed: Failed
    restarted: Restarted
    def __init__(self, request_id: _Optional[str] = ..., placed: _Optional[_Union[Placed, _Mapping]] = ..., admitted: _Optional[_Union[Admitted, _Mapping]] = ..., delta: _Optional[_Union[Delta, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., restarted: _Optional[_Union[Restarted, _Mapping]] = ...) -> None: ...

class Restarted(_message.Message):
    __slots__ = ("reason", "discarded_tokens")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    discarded_tokens: int
    def __init__(self, reason: _Optional[str] = ..., discarded_tokens: _Optional[int] = ...) -> None: ...

class Placed(_message.Message):
    __slots__ = ("device_id", "device_name", "device_class", "predicted_ttft_ms", "predicted_tpot_ms", "predicted_j", "reason", "attempt", "emulated", "queue_ms")
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_CLASS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_J_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    EMULATED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    device_id: str
    device_name: str
    device_class: str
    predicted_ttft_ms: float
    predicted_tpot_ms: float
    predicted_j: float
    reason: str
    attempt: int
    emulated: bool
    queue_ms: float
    def __init__(self, device_id: _Optional[str] = ..., device_name: _Optional[str] = ..., device_class: _Optional[str] = ..., predicted_ttft_ms: _Optional[float] = ..., predicted_tpot_ms: _Optional[float] = ..., predicted_j: _Optional[float] = ..., reason: _Optional[str] = ..., attempt: _Optional[int] = ..., emulated: _Optional[bool] = ..., queue_ms: _Optional[float] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ("prompt_tokens", "queue_position")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    queue_position: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., queue_position: _Optional[int] = ...) -> None: ...

class Delta(_message.Message):
    __slots__ = ("text", "tokens", "logprobs", "confidence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    confidence: Confidence
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., confidence: _Optional[_Union[Confidence, _Mapping]] = ...) -> None: ...

class Confidence(_message.Message):
    __slots__ = ("logprob", "entropy", "margin")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    MARGIN_FIELD_NUMBER: _ClassVar[int]
    logprob: _containers.RepeatedScalarFieldContainer[float]
    entropy: _containers.RepeatedScalarFieldContainer[float]
    margin: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[_Iterable[float]] = ..., entropy: _Optional[_Iterable[float]] = ..., margin: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "text", "logprob", "top")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token: int
    text: bytes
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, token: _Optional[int] = ..., text: _Optional[bytes] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "usage", "timings", "speculated")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Finished.Reason]
        REASON_STOP: _ClassVar[Finished.Reason]
        REASON_LENGTH: _ClassVar[Finished.Reason]
        REASON_CONTENT_FILTER: _ClassVar[Finished.Reason]
    REASON_UNSPECIFIED: Finished.Reason
    REASON_STOP: Finished.Reason
    REASON_LENGTH: Finished.Reason
    REASON_CONTENT_FILTER: Finished.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    SPECULATED_FIELD_NUMBER: _ClassVar[int]
    reason: Finished.Reason
    usage: Usage
    timings: Timings
    speculated: Speculated
    def __init__(self, reason: _Optional[_Union[Finished.Reason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., speculated: _Optional[_Union[Speculated, _Mapping]] = ...) -> None: ...

class Speculated(_message.Message):
    __slots__ = ("mode", "rounds", "drafted_tokens", "accepted_tokens", "tokens_by_tier", "target_passes", "fallback", "round_trip_ms", "because", "target")
    class TokensByTierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    TARGET_PASSES_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_MS_FIELD_NUMBER: _ClassVar[int]
    BECAUSE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    mode: str
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    tokens_by_tier: _containers.ScalarMap[str, int]
    target_passes: int
    fallback: str
    round_trip_ms: float
    because: str
    target: str
    def __init__(self, mode: _Optional[str] = ..., rounds: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., tokens_by_tier: _Optional[_Mapping[str, int]] = ..., target_passes: _Optional[int] = ..., fallback: _Optional[str] = ..., round_trip_ms: _Optional[float] = ..., because: _Optional[str] = ..., target: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "cached_tokens_by_tier")
    class CachedTokensByTierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cached_tokens_by_tier: _containers.ScalarMap[str, int]
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., cached_tokens_by_tier: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("queue_ms", "prefill_ms", "ttft_ms", "tpot_ms", "total_ms", "mean_batch", "joules", "joules_estimated", "kv_decision", "compute_ms", "busy_ms", "kv_restore_ms")
    class KvRestoreMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_MS_FIELD_NUMBER: _ClassVar[int]
    MEAN_BATCH_FIELD_NUMBER: _ClassVar[int]
    JOULES_FIELD_NUMBER: _ClassVar[int]
    JOULES_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    KV_DECISION_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_MS_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    KV_RESTORE_MS_FIELD_NUMBER: _ClassVar[int]
    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    tpot_ms: float
    total_ms: float
    mean_batch: int
    joules: float
    joules_estimated: bool
    kv_decision: str
    compute_ms: float
    busy_ms: float
    kv_restore_ms: _containers.ScalarMap[str, float]
    def __init__(self, queue_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ..., ttft_ms: _Optional[float] = ..., tpot_ms: _Optional[float] = ..., total_ms: _Optional[float] = ..., mean_batch: _Optional[int] = ..., joules: _Optional[float] = ..., joules_estimated: _Optional[bool] = ..., kv_decision: _Optional[str] = ..., compute_ms: _Optional[float] = ..., busy_ms: _Optional[float] = ..., kv_restore_ms: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("reason", "message", "param", "retry_after_ms", "predicted_ttft_ms", "predicted_tpot_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TTFT_MS_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_TPOT_MS_FIELD_NUMBER: _ClassVar[int]
    reason: FailureReason
    message: str
    param: str
    retry_after_ms: int
    predicted_ttft_ms: float
    predicted_tpot_ms: float
    def __init__(self, reason: _Optional[_Union[FailureReason, str]] = ..., message: _Optional[str] = ..., param: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., predicted_ttft_ms: _Optional[float] = ..., predicted_tpot_ms: _Optional[float] = ...) -> None: ...

class EngineLoad(_message.Message):
    __slots__ = ("model", "running", "waiting", "waiting_prefill_tokens", "slots", "kv_used_tokens", "kv_capacity_tokens", "recent_prefill_tokens_per_s", "recent_decode_tokens_per_s", "host_kv_bytes", "disk_kv_bytes", "counters", "kv_sharing")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_USED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_CAPACITY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECENT_PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    RECENT_DECODE_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    HOST_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    DISK_KV_BYTES_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    KV_SHARING_FIELD_NUMBER: _ClassVar[int]
    model: str
    running: int
    waiting: int
    waiting_prefill_tokens: int
    slots: int
    kv_used_tokens: int
    kv_capacity_tokens: int
    recent_prefill_tokens_per_s: float
    recent_decode_tokens_per_s: float
    host_kv_bytes: int
    disk_kv_bytes: int
    counters: _containers.ScalarMap[str, float]
    kv_sharing: KvSharing
    def __init__(self, model: _Optional[str] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., waiting_prefill_tokens: _Optional[int] = ..., slots: _Optional[int] = ..., kv_used_tokens: _Optional[int] = ..., kv_capacity_tokens: _Optional[int] = ..., recent_prefill_tokens_per_s: _Optional[float] = ..., recent_decode_tokens_per_s: _Optional[float] = ..., host_kv_bytes: _Optional[int] = ..., disk_kv_bytes: _Optional[int] = ..., counters: _Optional[_Mapping[str, float]] = ..., kv_sharing: _Optional[_Union[KvSharing, _Mapping]] = ...) -> None: ...

class KvSharing(_message.Message):
    __slots__ = ("policy", "write_bytes_per_s", "not_shared")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WRITE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NOT_SHARED_FIELD_NUMBER: _ClassVar[int]
    policy: str
    write_bytes_per_s: int
    not_shared: str
    def __init__(self, policy: _Optional[str] = ..., write_bytes_per_s: _Optional[int] = ..., not_shared: _Optional[str] = ...) -> None: ...
