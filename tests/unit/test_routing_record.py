import json

import pytest

from orchestrator.fleet.view import DeviceClass, DeviceId
from orchestrator.routing.decision import (
    Candidate,
    Decision,
    Prediction,
    Rejection,
    RejectionKind,
)
from orchestrator.routing.record import Actual, Attempt, DecisionRecord
from shoal.errors import Reason, ShoalError

PREDICTION = Prediction(120.5, 10.25, 3.5, True, 100)
CHOSEN = Candidate(DeviceId("d1"), "pi", DeviceClass.ARM_CPU, PREDICTION)
LOSER = Candidate(
    DeviceId("d2"),
    "{odd} näme",
    DeviceClass.GPU,
    None,
    Rejection(RejectionKind.FULL, "is full: {} requests", (20,)),
)
DECISION = Decision(
    request_id="r1",
    model="tiny",
    tier="edge",
    class_order=(DeviceClass.ARM_CPU, DeviceClass.GPU),
    ranked=(DeviceId("d1"),),
    candidates=(CHOSEN, LOSER),
    reason="pi: because",
    failure=None,
    decided_unix_ms=1000,
)


def full_record() -> DecisionRecord:
    actual = Actual(100, 20, 10, 1.0, 125.0, 11.0, joules=None)
    return (
        DecisionRecord(DECISION, tenant="acme")
        .with_attempt(Attempt(DeviceId("d2"), "gpu", 1000))
        .with_failed_attempt("device_lost")
        .with_attempt(Attempt(DeviceId("d1"), "pi", 1100))
        .ended("finished", 2000, actual)
    )


def test_record_follows_a_request_to_its_end():
    record = full_record()
    assert [attempt.failed for attempt in record.attempts] == ["device_lost", ""]
    assert record.outcome == "finished"
    assert record.decision.chosen == CHOSEN


def test_json_holds_every_candidate_with_its_numbers_and_reason():
    raw = json.loads(full_record().to_json())
    assert raw["candidates"][0]["prediction"]["ttft_ms"] == 120.5
    assert raw["candidates"][0]["rejected"] is None
    assert raw["candidates"][1]["rejected"] == "is full: 20 requests"
    assert raw["candidates"][1]["rejected_kind"] == "full"
    assert raw["actual"]["ttft_ms"] == 125.0


def test_json_reads_back_to_the_same_json():
    text = full_record().to_json()
    read = DecisionRecord.from_json(text)
    assert read.to_json() == text
    assert read.attempts == full_record().attempts
    assert read.actual == full_record().actual
    assert read.decision.candidates[0] == CHOSEN
    assert read.decision.candidates[1].rejected == LOSER.rejected


def test_failure_reads_back():
    failure = ShoalError(Reason.OVERLOADED, "full {}", param="model", retry_after_ms=640)
    decision = Decision("r", "m", "edge", (), (), (), "full {}", failure, 1)
    read = DecisionRecord.from_json(DecisionRecord(decision).to_json()).decision.failure
    assert (read.reason, read.message, read.param, read.retry_after_ms) == (
        Reason.OVERLOADED,
        "full {}",
        "model",
        640,
    )


def test_failed_attempt_without_attempts_changes_nothing():
    record = DecisionRecord(DECISION)
    assert record.with_failed_attempt("x") is record


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"request_id": 1}'])
def test_text_that_is_no_record_raises(text):
    with pytest.raises((ValueError, KeyError, TypeError)):
        DecisionRecord.from_json(text)


def test_drafted_sequences_are_recorded_as_such() -> None:
    told = {"mode": "speculative", "tokens_by_tier": {"edge": 12, "cloud": 8}}
    actual = Actual(100, 20, 10, 1.0, 125.0, 11.0, joules=None, speculative=told)
    raw = json.loads(DecisionRecord(DECISION).ended("finished", 2000, actual).to_json())
    assert raw["mode"] == "speculative"
    assert raw["tokens_by_tier"]["cloud"] == {"prompt": 100, "completion": 8}
