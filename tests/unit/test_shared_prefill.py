"""Who computes a long prompt: the arithmetic, and what the hub makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceState, DeviceView, ServedModel
from orchestrator.hub import convert
from orchestrator.hub.session import GatewaySession
from orchestrator.routing.shared_prefill import MARGIN, Side, who_prefills
from shoal.cli.explain import prefill_line
from shoal.v1 import device_pb2, inference_pb2
from tests.harness.hub_core import HubCore, updates_of
from tests.harness.hub_rig import MODEL, delta, failed, finished, model_report

SLOW, FAST = DeviceId("slow"), DeviceId("fast")
LINK = 100e6
KV_BYTES = 20_000
CRASHED = inference_pb2.FAILURE_REASON_ENGINE_CRASHED


def side(name: str, prompt_ms: float, link: float = LINK) -> Side:
    model = ServedModel(
        MODEL, "f", 10**8, 8192, 4, 1000.0, 50.0, kv_bytes_per_token=KV_BYTES,
        block_space="a", shared_bytes_per_s=link,
    )  # fmt: skip
    device = DeviceView(
        DeviceId(name), name, DeviceClass.X86_CPU, DeviceState.READY, {MODEL: model}
    )
    return Side(device, model, prompt_ms)


def test_times_add_up() -> None:
    choice = who_prefills(side("slow", 10_000), [side("fast", 1_000)], 1025, 0)
    assert choice is not None
    assert choice.elsewhere
    blocks_ms = 1000 * 1024 * KV_BYTES / LINK
    assert choice.upload_ms == choice.fetch_ms == blocks_ms
    assert choice.rest_ms == pytest.approx(10_000 / 1025)
    assert choice.shared_ms == pytest.approx(1_000 + 2 * blocks_ms + 10_000 / 1025)


@pytest.mark.parametrize("share", [0.97, 1.03])
def test_other_device_must_win_by_the_margin(share: float) -> None:
    fast = [side("fast", 1_000)]
    first = who_prefills(side("slow", 1e6), fast, 1025, 1024 - 128)
    assert first is not None
    fixed_ms = first.shared_ms - first.rest_ms
    # local * margin-share == fixed + rest, solved for local
    rest = first.rest_ms / 1e6
    local_ms = share * fixed_ms * MARGIN / (1 - rest * MARGIN)
    choice = who_prefills(side("slow", local_ms), fast, 1025, 1024 - 128)
    assert choice is not None
    assert choice.elsewhere is (share > 1)


def test_slow_link_loses_and_the_best_of_several_is_named() -> None:
    crawling, near = side("crawling", 100, 1e6), side("near", 900)
    choice = who_prefills(side("slow", 8_000), [crawling, near], 2048, 0)
    assert choice is not None
    assert choice.device_name == "near"
    alone = who_prefills(side("slow", 8_000), [crawling], 2048, 0)
    assert alone is not None
    assert not alone.elsewhere


def test_nothing_to_fetch_is_no_question() -> None:
    assert who_prefills(side("slow", 9_000), [side("fast", 1)], 1025, 1024) is None
    assert who_prefills(side("slow", 9_000), [side("fast", 1)], 128, 0) is None
    assert who_prefills(side("slow", 9_000), [], 1025, 0) is None


class Pair:
    """A slow ARM device, which the tree prefers for a small model, and a fast x86 one."""

    def __init__(self, *, spaces: tuple[str, str] = ("a", "a")) -> None:
        self.core = HubCore(0)
        self.session = GatewaySession("g", 1_000)
        self._connect(SLOW, "arm_cpu", spaces[0], 200.0)
        self._connect(FAST, "x86_cpu", spaces[1], 4_000.0)

    def _connect(self, device_id: DeviceId, kind: str, space: str, speed: float) -> None:
        report = model_report(slots=4)
        report.block_space, report.kv_bytes_per_token = space, KV_BYTES
        report.prefill_tokens_per_s = speed
        report.num_parameters = 135_000_000
        report.load.counters["kv_shared_bytes_per_s"] = 1e9
        hello = device_pb2.Hello(models=[report])
        hello.capabilities.device_class = kind
        view = convert.device_view(device_id, device_id, DeviceState.READY, hello)
        self.core.lines.epochs[device_id] = 1
        self.core.views.put(replace(view, max_waiting=4))

    def submit(self, **hints: object) -> None:
        request = inference_pb2.GenerateRequest(
            request_id="a", model=MODEL, text="word " * 2_000, max_tokens=8,
            hints=inference_pb2.RoutingHints(**hints),  # type: ignore[arg-type]
        )  # fmt: skip
        self.core.placement.submit(self.session, request)

    def hear(self, device_id: DeviceId, *updates: inference_pb2.SequenceUpdate) -> None:
        frame = inference_pb2.InferenceFrame(updates=updates)
        self.core.placement.on_frame(device_id, 1, frame)

    def sent(self) -> list[tuple[DeviceId, str]]:
        return [
            (to, f"{'prefill ' if s.submit.prefill_only else ''}{s.submit.request_id}")
            if s.HasField("submit")
            else (to, f"cancel {s.cancel.request_id}")
            for to, s in self.core.lines.sent
        ]

    def figures(self) -> dict[str, object]:
        (record,) = self.core.records.kept
        return dict(record.shared_prefill or {})

    def reserved(self) -> int:
        return sum(self.core.views.in_flight(each) for each in (SLOW, FAST))


BEGUN = [(FAST, "prefill a.prefill")]
MOVED_ON = [*BEGUN, (SLOW, "a")]


async def test_fast_device_computes_the_prompt_and_the_slow_one_answers() -> None:
    pair = Pair()
    pair.submit()
    assert pair.sent() == BEGUN
    assert pair.reserved() == 2
    pair.hear(FAST, finished("a.prefill"))
    assert pair.sent() == MOVED_ON
    pair.hear(SLOW, delta("a", "x"), finished("a"))
    updates = await updates_of(pair.session)
    assert "fast computed its prompt" in updates[0].placed.reason
    assert {u.request_id for u in updates} == {"a"}
    figures = pair.figures()
    told = prefill_line({"shared_prefill": figures})
    assert told.startswith("prompt    asked of fast, finished after 0 ms: predicted ")
    assert (figures["outcome"], figures["device_name"]) == ("finished", "fast")
    assert pair.reserved() == 0


@pytest.mark.parametrize(
    ("fault", "outcome"),
    [("failed", "engine_crashed"), ("lost", "device_lost"), ("late", "late")],
)
async def test_request_goes_on_without_the_fast_device(fault: str, outcome: str) -> None:
    pair = Pair()
    pair.submit()
    if fault == "failed":
        pair.hear(FAST, failed("a.prefill", CRASHED))
    elif fault == "lost":
        pair.core.disconnect(FAST)
    else:
        pair.core.wait(60)
    assert (SLOW, "a") in pair.sent()
    pair.hear(SLOW, delta("a", "x"), finished("a"))
    assert pair.figures()["outcome"] == outcome
    assert pair.reserved() == 0


def test_cancelled_request_is_cancelled_where_its_prompt_is() -> None:
    pair = Pair()
    pair.submit()
    pair.core.placement.cancel(pair.session, "a")
    assert pair.sent()[1] == (FAST, "cancel a.prefill")
    assert (pair.reserved(), len(pair.core.placement.prefills)) == (0, 0)


@pytest.mark.parametrize(
    "hints",
    [
        {"privacy": inference_pb2.PRIVACY_LOCAL_ONLY},
        {"objective": inference_pb2.OBJECTIVE_ENERGY, "device_class": "arm_cpu"},
    ],
)
def test_what_must_stay_or_save_energy_is_computed_where_it_is_answered(
    hints: dict[str, object],
) -> None:
    pair = Pair()
    pair.submit(**hints)
    assert pair.sent() == [(SLOW, "a")]


@pytest.mark.parametrize("spaces", [("a", "b"), ("", ""), ("a", "")])
def test_blocks_that_the_other_cannot_use_are_not_computed(spaces: tuple[str, str]) -> None:
    pair = Pair(spaces=spaces)
    pair.submit()
    assert pair.sent() == [(SLOW, "a")]
