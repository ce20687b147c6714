"""Drafts to protobuf messages, and the target's tokens back."""

from __future__ import annotations

from agent.engine.output import Logprob, SampledToken
from agent.speculative.acceptance import Draft
from shoal.v1 import verify_pb2 as pb


def drafted_to_wire(draft: Draft) -> pb.Drafted:
    """A draft with what it was drawn from."""
    if draft.drawn_from is None:
        return pb.Drafted(token=draft.token)
    few = draft.drawn_from
    return pb.Drafted(token=draft.token, ids=few.ids.tolist(), weights=few.told.tolist())


def sampled_from_wire(chosen: pb.Chosen) -> SampledToken:
    """A token of the target."""
    if not chosen.HasField("logprob"):
        return SampledToken(chosen.token)
    told = chosen.logprob
    top = tuple((each.token, each.logprob) for each in told.top)
    return SampledToken(chosen.token, Logprob(told.logprob, top))
