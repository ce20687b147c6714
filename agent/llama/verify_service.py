"""The engine's Verifier service: devices' drafts in, verdicts out."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import structlog

from agent.engine.runner import RunnerError
from agent.llama.context import LlamaRunner
from agent.llama.owner import Owner
from agent.llama.prepare import RequestPreparer
from agent.llama.verified import Verdict, VerifiedSequence
from agent.llama.vocab import Vocab
from agent.llama.wire import logprob_to_wire
from agent.speculative.acceptance import Draft, DraftError, SparseDistribution
from agent.speculative.window import LONGEST_DRAFT
from shoal.errors import Reason, ShoalError, invalid
from shoal.v1 import inference_pb2, verify_pb2_grpc
from shoal.v1 import verify_pb2 as pb

log = structlog.get_logger()

_MOST_ALONE = 256


def vocabulary_sha256(vocab: Vocab) -> str:
    """Hex hash of all that two models must share for drafts to mean the same tokens."""
    digest = hashlib.sha256()
    for token in range(vocab.size):
        piece = vocab.piece(token)
        digest.update(len(piece).to_bytes(4, "little") + piece)
    digest.update(repr((sorted(vocab.ends), vocab.control_texts)).encode())
    return digest.hexdigest()


def template_sha256(text: str | None) -> str:
    """Hex hash of a chat template; empty without one."""
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


class VerifyService(verify_pb2_grpc.VerifierServicer):
    """Serves one loaded model; all methods run on the event loop's thread.

    `name`: what devices must ask for, so that no other model's text is taken for its own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: tuple[Owner, LlamaRunner, RequestPreparer] | None = None
        self._token_ms = 0.0
        self._vocabulary = self._template = ""

    def set_ready(
        self, owner: Owner, runner: LlamaRunner, preparer: RequestPreparer, token_ms: float
    ) -> None:
        """The model is loaded. `token_ms`: one token by itself, as measured; 0: unknown."""
        self._parts = (owner, runner, preparer)
        self._token_ms = token_ms
        self._vocabulary = vocabulary_sha256(runner.model.vocab)
        self._template = template_sha256(runner.model.chat_template)

    async def Verify(
        self, request_iterator: AsyncIterator[pb.VerifyRequest], context: Any
    ) -> AsyncIterator[pb.VerifyReply]:
        """Verify one sequence until the device ends the stream."""
        try:
            async with contextlib.aclosing(self._verify(request_iterator)) as replies:
                async for reply in replies:
                    yield reply
        except (ShoalError, DraftError) as error:
            failure = error if isinstance(error, ShoalError) else invalid("drafted", str(error))
            log.info("verification_refused", reason=failure.reason)
            yield pb.VerifyReply(failed=failure.to_wire())
        except RunnerError:
            failure = ShoalError(Reason.ENGINE_CRASHED, "the verifier's engine failed")
            yield pb.VerifyReply(failed=failure.to_wire())

    async def _verify(
        self, requests: AsyncIterator[pb.VerifyRequest]
    ) -> AsyncGenerator[pb.VerifyReply, None]:
        if self._parts is None:
            raise ShoalError(Reason.OVERLOADED, "the model is still loading", retry_after_ms=1000)
        owner, runner, preparer = self._parts
        opening = (await anext(requests)).open
        self._check(opening, runner)
        sampling = preparer.sampling(_as_request(opening))
        prompt = tuple(opening.prompt)
        async with owner.holding(
            lambda core: VerifiedSequence(core, runner, prompt, sampling)
        ) as sequence:
            while not await owner.call(lambda _: sequence.prefill()):
                pass
            first = await owner.call(lambda _: sequence.verify(()))
            yield pb.VerifyReply(
                opened=pb.Opened(
                    first=_chosen(first, preparer)[0],
                    context_tokens=runner.context_tokens,
                    token_ms=self._token_ms,
                )
            )
            async for request in requests:
                kind = request.WhichOneof("request")
                if kind == "draft":
                    drafts = [_draft(drafted, runner) for drafted in request.draft.drafted]
                    verdict = await owner.call(self._judging(sequence, drafts))
                    yield _reply(request.draft.round, verdict, preparer)
                elif kind == "alone":
                    for _ in range(min(request.alone.num_tokens, _MOST_ALONE)):
                        verdict = await owner.call(lambda _: sequence.verify(()))
                        yield _reply(request.alone.round, verdict, preparer)

    @staticmethod
    def _judging(sequence: VerifiedSequence, drafts: list[Draft]) -> Callable[[object], Verdict]:
        return lambda _: sequence.verify(drafts)

    def _check(self, opening: pb.OpenSequence, runner: LlamaRunner) -> None:
        if opening.model != self._name:
            raise invalid("model", f"model: the node serves '{self._name}', not '{opening.model}'")
        if opening.vocabulary != self._vocabulary:
            raise invalid("vocabulary", "vocabulary: the draft's is not the target's")
        if opening.chat_template and opening.chat_template != self._template:
            raise invalid("chat_template", "chat_template: the draft's is not the target's")
        size = runner.model.vocab.size
        if not opening.prompt or max(opening.prompt) >= size:
            raise invalid("prompt", "prompt: must be tokens of the vocabulary, and not empty")
        if len(opening.prompt) + LONGEST_DRAFT >= runner.context_tokens:
            raise ShoalError(Reason.CONTEXT_OVERFLOW, "prompt: longer than the target's context")


def _as_request(opening: pb.OpenSequence) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(sampling=opening.sampling)
    if opening.HasField("top_logprobs"):
        request.top_logprobs = opening.top_logprobs
    return request


def _draft(drafted: pb.Drafted, runner: LlamaRunner) -> Draft:
    size = runner.model.vocab.size
    if drafted.token >= size:
        raise DraftError("a drafted token is not of the vocabulary")
    if not drafted.ids:
        return Draft(drafted.token)
    return Draft(drafted.token, SparseDistribution.of(drafted.ids, drafted.weights, size))


def _reply(number: int, verdict: Verdict, preparer: RequestPreparer) -> pb.VerifyReply:
    return pb.VerifyReply(
        verdict=pb.Verdict(
            round=number,
            num_accepted=verdict.num_accepted,
            chosen=_chosen(verdict, preparer),
            pass_ms=verdict.pass_ms,
            num_rows=verdict.num_rows,
        )
    )


def _chosen(verdict: Verdict, preparer: RequestPreparer) -> list[pb.Chosen]:
    return [
        pb.Chosen(
            token=each.token,
            logprob=None if each.logprob is None else logprob_to_wire(each, preparer.piece),
        )
        for each in verdict.chosen
    ]
