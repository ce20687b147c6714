"""The tier of a request: every branch of the plan."""

from __future__ import annotations

import pytest

from orchestrator.dispatch.plan import ModelPresence, plan_tiers
from orchestrator.dispatch.ruling import Ruling, closed
from orchestrator.request import Privacy
from shoal.errors import Reason, ShoalError


def presence(**changes: object) -> ModelPresence:
    values = {"num_parameters": 10**9, "on_edge": True, "ready_devices": 1, "in_cloud": True}
    return ModelPresence(**(values | changes))  # type: ignore[arg-type]


def tiers(model: ModelPresence, privacy: str = "", *, pinned: bool = False) -> tuple[str, ...]:
    ruling = Ruling(Privacy(privacy or "any"), "As the test says.")
    return plan_tiers("m", model, ruling=ruling, pinned_to_device=pinned).tiers


@pytest.mark.parametrize(
    ("model", "privacy", "pinned", "expected"),
    [
        (presence(num_parameters=6_999_999_999), "", False, ("edge", "cloud")),
        (presence(num_parameters=7_000_000_000), "", False, ("cloud", "edge")),
        (presence(num_parameters=7_000_000_000), "any", False, ("cloud", "edge")),
        (presence(num_parameters=7_000_000_000), "local_preferred", False, ("edge", "cloud")),
        (presence(num_parameters=7_000_000_000), "local_only", False, ("edge",)),
        (presence(num_parameters=7_000_000_000), "", True, ("edge",)),
        (presence(num_parameters=7_000_000_000, in_cloud=False), "", False, ("edge",)),
        (presence(ready_devices=0), "", False, ("cloud", "edge")),
        (presence(ready_devices=0), "local_only", False, ("edge",)),
        (presence(on_edge=False, ready_devices=0), "", False, ("cloud",)),
        (presence(on_edge=False, ready_devices=0), "local_preferred", False, ("cloud",)),
        (presence(on_edge=False, ready_devices=0, in_cloud=False), "", False, ("edge",)),
        (presence(on_edge=False, in_cloud=False), "local_only", False, ("edge",)),
    ],
)
def test_tiers(model: ModelPresence, privacy: str, pinned: bool, expected: tuple[str, ...]) -> None:
    assert tiers(model, privacy, pinned=pinned) == expected


def test_local_only_request_for_a_cloud_model_is_forbidden() -> None:
    with pytest.raises(ShoalError) as caught:
        tiers(presence(on_edge=False, ready_devices=0), "local_only")
    assert caught.value.reason is Reason.PERMISSION_DENIED
    assert caught.value.http_status == 403
    assert caught.value.param == "shoal.privacy"
    assert "As the test says." in caught.value.message


def test_request_in_doubt_for_a_cloud_model_is_worth_a_retry() -> None:
    model = presence(on_edge=False, ready_devices=0)
    with pytest.raises(ShoalError) as caught:
        plan_tiers("m", model, ruling=closed("Nobody knows."), pinned_to_device=False)
    assert caught.value.http_status == 503
    assert caught.value.retry_after_ms > 0


@pytest.mark.parametrize(("on_edge", "expected"), [(True, ("edge", "cloud")), (False, ("cloud",))])
def test_own_node_serves_what_must_stay_local(on_edge: bool, expected: tuple[str, ...]) -> None:
    own = presence(on_edge=on_edge, on_own_node=True)
    assert tiers(own, "local_only") == expected


def test_own_node_is_not_asked_in_doubt_nor_past_a_named_device() -> None:
    own = presence(on_own_node=True)
    doubtful = closed("It cannot be known.")
    assert plan_tiers("m", own, ruling=doubtful, pinned_to_device=False).tiers == ("edge",)
    assert tiers(own, "local_only", pinned=True) == ("edge",)
