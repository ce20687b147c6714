from shoal.v1 import inference_pb2 as _inference_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_FETCH: _ClassVar[FailureKind]
    FAILURE_KIND_DISK: _ClassVar[FailureKind]
    FAILURE_KIND_FILE: _ClassVar[FailureKind]
    FAILURE_KIND_ENGINE: _ClassVar[FailureKind]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_RESTARTING: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
    MODEL_STATE_UNLOADED: _ClassVar[ModelState]
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_FETCH: FailureKind
FAILURE_KIND_DISK: FailureKind
FAILURE_KIND_FILE: FailureKind
FAILURE_KIND_ENGINE: FailureKind
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_RESTARTING: ModelState
MODEL_STATE_FAILED: ModelState
MODEL_STATE_UNLOADED: ModelState

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelReport(_message.Message):
    __slots__ = ("name", "file", "fingerprint", "architecture", "quantisation", "num_parameters", "size_bytes", "context_tokens", "train_context_tokens", "slots", "kv_bytes_per_token", "kv_type", "flash_attention", "kernels", "prefill_tokens_per_s", "decode_tokens_per_s", "decode_batch_tokens_per_s", "has_chat_template", "state", "failure", "load", "file_sha256", "caches_blocks", "no_cache_reason", "condition", "companion", "deployed", "fetched_bytes", "file_bytes", "failure_kind", "block_space")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    QUANTISATION_FIELD_NUMBER: _ClassVar[int]
    NUM_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    KV_BYTES_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    KV_TYPE_FIELD_NUMBER: _ClassVar[int]
    FLASH_ATTENTION_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_BATCH_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    FILE_SHA256_FIELD_NUMBER: _ClassVar[int]
    CACHES_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NO_CACHE_REASON_FIELD_NUMBER: _ClassVar[int]
    CONDITION_FIELD_NUMBER: _ClassVar[int]
    COMPANION_FIELD_NUMBER: _ClassVar[int]
    DEPLOYED_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_KIND_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    file: str
    fingerprint: str
    architecture: str
    quantisation: str
    num_parameters: int
    size_bytes: int
    context_tokens: int
    train_context_tokens: int
    slots: int
    kv_bytes_per_token: int
    kv_type: str
    flash_attention: bool
    kernels: _containers.RepeatedScalarFieldContainer[str]
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    decode_batch_tokens_per_s: _containers.RepeatedScalarFieldContainer[float]
    has_chat_template: bool
    state: ModelState
    failure: str
    load: _inference_pb2.EngineLoad
    file_sha256: str
    caches_blocks: bool
    no_cache_reason: str
    condition: str
    companion: str
    deployed: bool
    fetched_bytes: int
    file_bytes: int
    failure_kind: FailureKind
    block_space: str
    def __init__(self, name: _Optional[str] = ..., file: _Optional[str] = ..., fingerprint: _Optional[str] = ..., architecture: _Optional[str] = ..., quantisation: _Optional[str] = ..., num_parameters: _Optional[int] = ..., size_bytes: _Optional[int] = ..., context_tokens: _Optional[int] = ..., train_context_tokens: _Optional[int] = ..., slots: _Optional[int] = ..., kv_bytes_per_token: _Optional[int] = ..., kv_type: _Optional[str] = ..., flash_attention: _Optional[bool] = ..., kernels: _Optional[_Iterable[str]] = ..., prefill_tokens_per_s: _Optional[float] = ..., decode_tokens_per_s: _Optional[float] = ..., decode_batch_tokens_per_s: _Optional[_Iterable[float]] = ..., has_chat_template: _Optional[bool] = ..., state: _Optional[_Union[ModelState, str]] = ..., failure: _Optional[str] = ..., load: _Optional[_Union[_inference_pb2.EngineLoad, _Mapping]] = ..., file_sha256: _Optional[str] = ..., caches_blocks: _Optional[bool] = ..., no_cache_reason: _Optional[str] = ..., condition: _Optional[str] = ..., companion: _Optional[str] = ..., deployed: _Optional[bool] = ..., fetched_bytes: _Optional[int] = ..., file_bytes: _Optional[int] = ..., failure_kind: _Optional[_Union[FailureKind, str]] = ..., block_space: _Optional[str] = ...) -> None: ...
