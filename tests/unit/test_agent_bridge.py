from __future__ import annotations

import pytest

from agent.hardware.account import EnergyAccount
from agent.hardware.energy import Meters
from agent.rpc.bridge import Bridge
from agent.rpc.charging import Charging
from agent.session.requests import RequestLedger
from shoal.v1 import engine_pb2
from shoal.v1 import inference_pb2 as pb


class RecordingEngine:
    """A seam double: takes commands, in a given state."""

    def __init__(self, state: engine_pb2.ModelState = engine_pb2.MODEL_STATE_READY) -> None:
        self.report = engine_pb2.ModelReport(name="m", state=state)
        self.commands: list[pb.InferenceCommand] = []

    def send(self, command: pb.InferenceCommand) -> bool:
        if self.report.state != engine_pb2.MODEL_STATE_READY:
            return False
        self.commands.append(command)
        return True


class Setup:
    def __init__(self, engine: RecordingEngine) -> None:
        self.engine = engine
        self.ledger = RequestLedger()
        self.sent: list[pb.InferenceFrame] = []
        self.now_s = 0.0
        self.account = EnergyAccount(Meters(), estimated_w=10.0)
        charging = Charging(self.account, lambda: self.now_s)
        self.bridge = Bridge(self.ledger, {"m": engine}.get, self.sent.append, charging)

    def submit(self, request_id: str, model: str = "m") -> None:
        request = pb.GenerateRequest(request_id=request_id, model=model)
        self.bridge.take_command(pb.InferenceCommand(submit=request))

    @property
    def failed(self) -> pb.Failed:
        return self.sent[-1].updates[0].failed


@pytest.fixture
def setup() -> Setup:
    return Setup(RecordingEngine())


def frame(*request_ids: str, **parts: object) -> pb.InferenceFrame:
    updates = [pb.SequenceUpdate(request_id=r, **parts) for r in request_ids]  # type: ignore[arg-type]
    return pb.InferenceFrame(updates=updates)


def test_frame_of_running_requests_is_forwarded_as_the_same_object(setup: Setup) -> None:
    setup.submit("a")
    setup.submit("b")
    step = frame("a", "b", delta=pb.Delta(text="x"))
    setup.bridge.take_frame(step)
    assert setup.sent[-1] is step


def test_update_without_a_reader_is_left_out(setup: Setup) -> None:
    setup.submit("a")
    setup.bridge.take_frame(frame("a", "gone", delta=pb.Delta(text="x")))
    assert [u.request_id for u in setup.sent[-1].updates] == ["a"]
    setup.bridge.take_frame(frame("gone", delta=pb.Delta(text="x")))
    assert len(setup.sent) == 1


def test_terminal_update_is_forwarded_and_ends_the_request(setup: Setup) -> None:
    setup.submit("a")
    setup.bridge.take_frame(frame("a", finished=pb.Finished()))
    assert setup.sent[-1].updates[0].HasField("finished")
    assert len(setup.ledger) == 0


def test_cancel_reaches_the_engine_once(setup: Setup) -> None:
    setup.submit("a")
    cancel = pb.InferenceCommand(cancel=pb.CancelRequest(request_id="a"))
    setup.bridge.take_command(cancel)
    setup.bridge.take_command(cancel)
    assert [c.WhichOneof("command") for c in setup.engine.commands] == ["submit", "cancel"]


def test_lost_hub_cancels_all_in_the_engine(setup: Setup) -> None:
    setup.submit("a")
    setup.submit("b")
    setup.bridge.cancel_all()
    assert {c.cancel.request_id for c in setup.engine.commands[2:]} == {"a", "b"}
    assert len(setup.ledger) == 0


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (engine_pb2.MODEL_STATE_LOADING, pb.FAILURE_REASON_OVERLOADED),
        (engine_pb2.MODEL_STATE_RESTARTING, pb.FAILURE_REASON_ENGINE_CRASHED),
        (engine_pb2.MODEL_STATE_FAILED, pb.FAILURE_REASON_ENGINE_CRASHED),
    ],
)
def test_engine_that_does_not_serve_sends_the_request_elsewhere(
    state: engine_pb2.ModelState, reason: pb.FailureReason
) -> None:
    setup = Setup(RecordingEngine(state))
    setup.submit("a")
    assert setup.failed.reason == reason
    assert len(setup.ledger) == 0


def test_unknown_model_is_named(setup: Setup) -> None:
    setup.submit("a", model="absent")
    assert setup.failed.reason == pb.FAILURE_REASON_MODEL_NOT_FOUND
    assert "absent" in setup.failed.message


def test_finished_request_goes_up_with_its_joules(setup: Setup) -> None:
    setup.submit("a")
    setup.now_s = 3.0
    timings = pb.Timings(compute_ms=2000, busy_ms=2500)
    setup.bridge.take_frame(frame("a", "gone", finished=pb.Finished(timings=timings)))
    sent = setup.sent[-1].updates[0].finished.timings
    assert sent.joules == pytest.approx(20.0)
    assert sent.joules_estimated


def test_joules_stay_absent_when_the_engine_tells_of_no_computing(setup: Setup) -> None:
    setup.submit("a")
    setup.bridge.take_frame(frame("a", finished=pb.Finished()))
    assert not setup.sent[-1].updates[0].finished.timings.HasField("joules")


def test_no_way_of_ending_leaves_a_request_in_the_account(setup: Setup) -> None:
    for name in "abcde":
        setup.submit(name)
    assert setup.account.num_open == 5
    setup.bridge.take_frame(frame("a", finished=pb.Finished()))
    setup.bridge.take_frame(frame("b", failed=pb.Failed()))
    cancel = pb.CancelRequest(request_id="c")
    setup.bridge.take_command(pb.InferenceCommand(cancel=cancel))
    assert setup.account.num_open == 2
    setup.bridge.fail_model("m", "it is gone")
    setup.submit("f")
    setup.bridge.cancel_all()
    assert setup.account.num_open == 0
    setup.engine.report.state = engine_pb2.MODEL_STATE_RESTARTING
    setup.submit("g")
    assert setup.account.num_open == 0
