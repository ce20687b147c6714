from shoal.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyRequest(_message.Message):
    __slots__ = ("open", "draft", "alone")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    open: OpenSequence
    draft: DraftRound
    alone: RunAlone
    def __init__(self, open: _Optional[_Union[OpenSequence, _Mapping]] = ..., draft: _Optional[_Union[DraftRound, _Mapping]] = ..., alone: _Optional[_Union[RunAlone, _Mapping]] = ...) -> None: ...

class OpenSequence(_message.Message):
    __slots__ = ("request_id", "model", "prompt", "sampling", "top_logprobs", "vocabulary", "chat_template", "tenant")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt: _containers.RepeatedScalarFieldContainer[int]
    sampling: _inference_pb2.Sampling
    top_logprobs: int
    vocabulary: str
    chat_template: str
    tenant: str
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_inference_pb2.Sampling, _Mapping]] = ..., top_logprobs: _Optional[int] = ..., vocabulary: _Optional[str] = ..., chat_template: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class DraftRound(_message.Message):
    __slots__ = ("round", "drafted")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    round: int
    drafted: _containers.RepeatedCompositeFieldContainer[Drafted]
    def __init__(self, round: _Optional[int] = ..., drafted: _Optional[_Iterable[_Union[Drafted, _Mapping]]] = ...) -> None: ...

class Drafted(_message.Message):
    __slots__ = ("token", "ids", "weights")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    token: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class RunAlone(_message.Message):
    __slots__ = ("round", "num_tokens")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    round: int
    num_tokens: int
    def __init__(self, round: _Optional[int] = ..., num_tokens: _Optional[int] = ...) -> None: ...

class VerifyReply(_message.Message):
    __slots__ = ("opened", "verdict", "failed")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    verdict: Verdict
    failed: _inference_pb2.Failed
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., failed: _Optional[_Union[_inference_pb2.Failed, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("first", "context_tokens", "prefill_ms", "token_ms")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    first: Chosen
    context_tokens: int
    prefill_ms: float
    token_ms: float
    def __init__(self, first: _Optional[_Union[Chosen, _Mapping]] = ..., context_tokens: _Optional[int] = ..., prefill_ms: _Optional[float] = ..., token_ms: _Optional[float] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("round", "num_accepted", "chosen", "pass_ms", "num_rows")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    PASS_MS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    round: int
    num_accepted: int
    chosen: _containers.RepeatedCompositeFieldContainer[Chosen]
    pass_ms: float
    num_rows: int
    def __init__(self, round: _Optional[int] = ..., num_accepted: _Optional[int] = ..., chosen: _Optional[_Iterable[_Union[Chosen, _Mapping]]] = ..., pass_ms: _Optional[float] = ..., num_rows: _Optional[int] = ...) -> None: ...

class Chosen(_message.Message):
    __slots__ = ("token", "logprob")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: _inference_pb2.TokenLogprob
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[_Union[_inference_pb2.TokenLogprob, _Mapping]] = ...) -> None: ...
