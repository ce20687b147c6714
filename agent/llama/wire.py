"""Engine outputs to protobuf messages; the stubs go no further into the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from agent.engine.output import Finished, FinishReason, Load, SampledToken, Speculated, Update
from agent.kv.sharing import SharingState
from shoal.v1 import inference_pb2 as pb

_REASONS = {
    FinishReason.STOP: pb.Finished.REASON_STOP,
    FinishReason.LENGTH: pb.Finished.REASON_LENGTH,
}


def update_to_wire(update: Update, piece: Callable[[int], bytes]) -> pb.SequenceUpdate:
    """One request's news as a message; `piece` gives a token's bytes."""
    message = pb.SequenceUpdate(request_id=update.key.request_id)
    if update.prompt_tokens is not None:
        message.admitted.prompt_tokens = update.prompt_tokens
        message.admitted.queue_position = update.queue_position
    if update.text or update.tokens:
        message.delta.text = update.text
        message.delta.tokens.extend([sampled.token for sampled in update.tokens])
        for sampled in update.tokens:
            if sampled.logprob is not None:
                message.delta.logprobs.append(logprob_to_wire(sampled, piece))
            if sampled.confidence is not None:
                message.delta.confidence.logprob.append(sampled.confidence.logprob)
                message.delta.confidence.entropy.append(sampled.confidence.entropy)
                message.delta.confidence.margin.append(sampled.confidence.margin)
    if update.finished is not None:
        message.finished.CopyFrom(_finished(update.finished))
    if update.failed is not None:
        message.failed.CopyFrom(update.failed.to_wire())
    return message


def logprob_to_wire(sampled: SampledToken, piece: Callable[[int], bytes]) -> pb.TokenLogprob:
    """A token's log-probability, for tokens that have one."""
    if sampled.logprob is None:
        raise AssertionError("called for tokens with log-probabilities only")
    return pb.TokenLogprob(
        token=sampled.token,
        text=piece(sampled.token),
        logprob=sampled.logprob.logprob,
        top=[
            pb.TokenLogprob(token=token, text=piece(token), logprob=value)
            for token, value in sampled.logprob.top
        ],
    )


def _finished(finished: Finished) -> pb.Finished:
    timings = finished.timings
    return pb.Finished(
        reason=_REASONS[finished.reason],
        usage=pb.Usage(
            prompt_tokens=finished.prompt_tokens,
            completion_tokens=finished.completion_tokens,
            cached_tokens=sum(finished.cached_tokens_by_tier.values()),
            cached_tokens_by_tier=finished.cached_tokens_by_tier,
        ),
        timings=pb.Timings(
            queue_ms=timings.queue_ms,
            prefill_ms=timings.prefill_ms,
            ttft_ms=timings.ttft_ms,
            tpot_ms=timings.tpot_ms,
            total_ms=timings.total_ms,
            mean_batch=timings.mean_batch,
            kv_decision=timings.kv_decision,
            kv_restore_ms=timings.kv_restore_ms,
            compute_ms=timings.compute_ms,
            busy_ms=timings.busy_ms,
        ),
        speculated=_speculated(finished.speculated),
    )


def _speculated(value: Speculated | None) -> pb.Speculated | None:
    return None if value is None else pb.Speculated(**asdict(value))


def load_to_wire(load: Load, model: str) -> pb.EngineLoad:
    """How busy the engine is, as a message."""
    return pb.EngineLoad(
        model=model,
        running=load.running,
        waiting=load.waiting,
        waiting_prefill_tokens=load.waiting_prefill_tokens,
        slots=load.slots,
        kv_used_tokens=load.kv_used_tokens,
        kv_capacity_tokens=load.kv_capacity_tokens,
        recent_prefill_tokens_per_s=load.prefill_tokens_per_s,
        recent_decode_tokens_per_s=load.decode_tokens_per_s,
        host_kv_bytes=load.host_kv_bytes,
        disk_kv_bytes=load.disk_kv_bytes,
        counters=dict(load.counters),
        kv_sharing=_sharing(load.sharing),
    )


def _sharing(state: SharingState | None) -> pb.KvSharing | None:
    if state is None:
        return None
    return pb.KvSharing(
        policy=state.policy,
        write_bytes_per_s=state.write_bytes_per_s,
        not_shared=state.not_shared or "",
    )
