"""Token ids are never sent to a model of another vocabulary."""

from __future__ import annotations

import pytest

from orchestrator.dispatch.cascade.policy import CascadePolicy, Route, Target
from orchestrator.dispatch.cascade.run import within_vocabulary
from shoal.errors import Reason, ShoalError
from shoal.v1 import inference_pb2 as pb

ROUTE = Route("small", Target("big", "cloud"))
TEXT = pb.GenerateRequest(text="Three fish:")
TOKENS = pb.GenerateRequest(tokens=pb.TokenPrompt(ids=[1, 2]))
BIASED = pb.GenerateRequest(text="Three fish:", sampling=pb.Sampling(logit_bias={7: 3.0}))


def test_text_may_go_to_either() -> None:
    assert within_vocabulary(CascadePolicy(), ROUTE, TEXT) == ROUTE


@pytest.mark.parametrize("request_", [TOKENS, BIASED])
@pytest.mark.parametrize("policy", [CascadePolicy("small"), CascadePolicy("mine", edge="small")])
def test_token_ids_stay_with_the_model_that_the_policy_names(
    policy: CascadePolicy, request_: pb.GenerateRequest
) -> None:
    assert within_vocabulary(policy, ROUTE, request_) == Route("small", None)


@pytest.mark.parametrize(
    ("policy", "route", "reason"),
    [
        (CascadePolicy(), ROUTE, Reason.INVALID_ARGUMENT),
        (CascadePolicy("mine", edge="small"), Route("", ROUTE.target), Reason.NO_DEVICE),
    ],
)
@pytest.mark.parametrize(("request_", "field"), [(TOKENS, "prompt"), (BIASED, "logit_bias")])
def test_token_ids_without_a_model_are_refused_by_name(
    policy: CascadePolicy, route: Route, reason: Reason, request_: pb.GenerateRequest, field: str
) -> None:
    with pytest.raises(ShoalError) as caught:
        within_vocabulary(policy, route, request_)
    assert (caught.value.reason, caught.value.param) == (reason, field)
