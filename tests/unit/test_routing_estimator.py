import math
import random
from dataclasses import replace

import pytest

from orchestrator.fleet.view import DeviceClass, DeviceId, DeviceState, DeviceView, ServedModel
from orchestrator.request import RouteRequest
from orchestrator.routing import reference, speed
from orchestrator.routing.estimator import MAX_STANDINGS, Estimator, Outcome
from orchestrator.routing.learning import LearnedQuotient, LearnedRatio
from orchestrator.routing.prefill_order import tokens_ahead

MODEL = ServedModel(
    name="tiny",
    fingerprint="f",
    num_parameters=135_000_000,
    context_tokens=2048,
    slots=4,
    prefill_tokens_per_s=1000.0,
    decode_tokens_per_s=100.0,
    decode_batch_tokens_per_s=(100.0, 160.0, 200.0),
)
REQUEST = RouteRequest("r", "t", "tiny", prompt_bytes=400, max_tokens=50)


def device(model: ServedModel = MODEL, **changes) -> DeviceView:
    view = DeviceView(
        device_id=DeviceId("d"),
        name="d",
        device_class=DeviceClass.X86_CPU,
        state=DeviceState.READY,
        models={model.name: model},
    )
    return replace(view, **changes)


def predict(estimator=None, model=MODEL, request=REQUEST, **changes):
    return (estimator or Estimator()).predict(request, device(model, **changes), model)


def outcome(**changes) -> Outcome:
    # As MODEL would measure at exactly its own figures: 100 ms of prefill, 10 ms a token.
    exact = Outcome(
        device_id=DeviceId("d"),
        model="tiny",
        prompt_bytes=400,
        prompt_tokens=100,
        cached_tokens=0,
        completion_tokens=50,
        queue_ms=0.0,
        ttft_ms=110.0,
        tpot_ms=10.0,
        mean_batch=1,
    )
    return replace(exact, **changes)


def test_prompts_of_a_burst_that_are_prefilled_in_turn_are_not_taken_for_slowness() -> None:
    # Eight at once: all hold a slot at once, and each waits for those before it.
    burst = [outcome(ttft_ms=100.0 * n + 110.0, ahead_tokens=100 * n) for n in range(8)]
    assert predict(taught(*burst)).ttft_ms == pytest.approx(predict().ttft_ms, rel=0.05)
    throttled = [
        outcome(ttft_ms=500.0 * n + 550.0, tpot_ms=50.0, ahead_tokens=100 * n) for n in range(8)
    ]
    assert predict(taught(*throttled)).ttft_ms == pytest.approx(550.0, rel=0.35)


def taught(*outcomes: Outcome) -> Estimator:
    estimator = Estimator()
    predict(estimator, tdp_w=10.0)
    for one in outcomes:
        estimator.observe(one)
    return estimator


def test_idle_device_needs_prefill_and_one_step_to_the_first_token():
    prediction = predict()
    assert prediction.prompt_tokens == 100
    assert prediction.ttft_ms == pytest.approx(100 + 10)
    assert prediction.tpot_ms == pytest.approx(10)


@pytest.mark.parametrize(
    ("in_flight", "tpot_ms"), [(0, 10.0), (1, 2 / 160), (2, 3 / 180), (3, 4 / 200), (9, 4 / 200)]
)
def test_tpot_follows_the_measured_curve_of_the_batch_it_would_join(in_flight, tpot_ms):
    expected = tpot_ms if tpot_ms > 1 else tpot_ms * 1000
    assert predict(in_flight={"tiny": in_flight}).tpot_ms == pytest.approx(expected)


def test_curve_is_flat_past_its_last_point():
    assert speed.decode_tokens_per_s(MODEL, DeviceClass.X86_CPU, 64) == 200.0


def test_prompts_ahead_delay_the_first_token():
    waiting = predict(in_flight_prefill_tokens={"tiny": 500}).ttft_ms
    assert waiting == pytest.approx(predict().ttft_ms + 500)


def test_taken_slots_add_the_wait_for_one_to_come_free():
    # 128 tokens expected of each, 20 ms a token, 4 slots: one comes free each 640 ms.
    full = predict(in_flight={"tiny": 4})
    busy = predict(in_flight={"tiny": 3})
    assert full.ttft_ms == pytest.approx(busy.ttft_ms + 640)
    assert predict(in_flight={"tiny": 6}).ttft_ms == pytest.approx(busy.ttft_ms + 3 * 640)


def test_newer_of_report_and_reservation_counts():
    reported = replace(MODEL, running=3)
    assert predict(model=reported).tpot_ms == predict(in_flight={"tiny": 3}).tpot_ms


def test_other_model_at_work_takes_its_share():
    other = replace(MODEL, name="other", running=1)
    models = {"tiny": MODEL, "other": other}
    assert predict(models=models).tpot_ms == pytest.approx(2 * predict().tpot_ms)


@pytest.mark.parametrize("device_class", list(DeviceClass))
def test_unmeasured_device_is_assumed_to_be_its_class_reference(device_class):
    unmeasured = replace(
        MODEL,
        num_parameters=reference.REFERENCE_PARAMETERS,
        prefill_tokens_per_s=0.0,
        decode_tokens_per_s=0.0,
        decode_batch_tokens_per_s=(),
    )
    expected = {"x86_cpu": 238.0, "arm_cpu": 175.0, "gpu": 30.5, "npu": 18.0}[device_class]
    assert speed.tpot_ms(unmeasured, device_class, 1) == pytest.approx(expected, rel=0.01)


def test_reference_energy_is_speed_over_tdp():
    for entry in reference.REFERENCE.values():
        assert entry.tokens_per_j == pytest.approx(
            entry.decode_tokens_per_s / entry.tdp_w, rel=0.01
        )


def test_single_speed_without_a_curve_promises_no_batching_gain():
    plain = replace(MODEL, decode_batch_tokens_per_s=())
    assert predict(model=plain, in_flight={"tiny": 1}).tpot_ms == pytest.approx(20)


def test_energy_is_unknown_without_power():
    prediction = predict()
    assert prediction.joules is None


def test_energy_from_tdp_is_an_estimate():
    prediction = predict(tdp_w=10.0)
    # 100 ms of prefill and 50 tokens of 10 ms at 10 W.
    assert prediction.joules == pytest.approx(6.0)
    assert prediction.joules_estimated


def test_energy_from_a_meter_under_load_is_measured_and_shared_by_the_batch():
    prediction = predict(power_w=8.0, power_estimated=False, tdp_w=10.0, in_flight={"tiny": 1})
    assert prediction.joules == pytest.approx(8.0 * (0.1 + 50 * 0.0125 / 2))
    assert not prediction.joules_estimated


def test_idle_meter_does_not_stand_for_power_under_load():
    assert predict(power_w=1.0, power_estimated=False, tdp_w=10.0).joules == pytest.approx(6.0)


def test_exact_outcomes_change_nothing():
    estimator = taught(*[outcome()] * 20)
    assert predict(estimator).tpot_ms == pytest.approx(10)
    assert predict(estimator).ttft_ms == pytest.approx(110, rel=0.01)


def test_predictions_converge_to_a_device_that_is_slower_than_it_measured():
    slow = outcome(tpot_ms=30.0, ttft_ms=330.0)
    estimator = taught(*[slow] * 15)
    assert predict(estimator).tpot_ms == pytest.approx(30, rel=0.1)
    assert predict(estimator).ttft_ms == pytest.approx(330, rel=0.1)


def test_throttling_by_five_is_noticed_within_eight_requests():
    estimator = taught(*[outcome()] * 50)
    for _ in range(8):
        estimator.observe(outcome(tpot_ms=50.0, ttft_ms=550.0))
    assert predict(estimator).tpot_ms > 35


def test_one_wild_outlier_moves_a_prediction_by_less_than_a_tenth():
    estimator = taught(*[outcome()] * 20)
    estimator.observe(outcome(tpot_ms=10_000.0, ttft_ms=1_000_000.0))
    assert predict(estimator).tpot_ms < 11
    assert predict(estimator).ttft_ms < 121


def test_queueing_is_not_mistaken_for_slow_prefill():
    estimator = taught(*[outcome(queue_ms=5000.0, ttft_ms=5110.0)] * 20)
    assert predict(estimator).ttft_ms == pytest.approx(110, rel=0.01)


def test_restored_prefix_is_not_mistaken_for_fast_prefill():
    estimator = taught(*[outcome(prompt_tokens=1100, cached_tokens=1000)] * 20)
    base = predict(estimator)
    assert base.ttft_ms - base.tpot_ms == pytest.approx(base.prompt_tokens, rel=0.02)


def test_batch_of_the_outcome_is_taken_into_account():
    estimator = taught(*[outcome(mean_batch=4, tpot_ms=20.0, ttft_ms=120.0)] * 20)
    assert predict(estimator).tpot_ms == pytest.approx(10)


def test_tokens_per_byte_and_output_length_are_learned_of_each_model():
    estimator = taught(*[outcome(prompt_bytes=400, prompt_tokens=200, completion_tokens=10)] * 120)
    assert estimator.prompt_tokens(REQUEST) == pytest.approx(200, rel=0.05)
    assert estimator.completion_tokens("tiny", None) == pytest.approx(10, rel=0.1)
    assert estimator.completion_tokens("tiny", 5) == 5
    assert estimator.prompt_tokens(replace(REQUEST, model="other")) == 100


def test_a_chats_framing_is_told_from_its_text():
    # 30 tokens of framing and five bytes a token.
    estimator = Estimator()
    for number in range(60):
        size = (100, 300, 1_000)[number % 3]
        estimator.observe(outcome(prompt_bytes=size, prompt_tokens=30 + size // 5))
    for size in (50, 4_000):
        asked = replace(REQUEST, prompt_bytes=size)
        assert estimator.prompt_tokens(asked) == pytest.approx(30 + size / 5, rel=0.1)


def test_prompts_of_one_length_say_nothing_of_framing():
    estimator = taught(*[outcome(prompt_bytes=400, prompt_tokens=100)] * 200)
    assert estimator.prompt_tokens(replace(REQUEST, prompt_bytes=4_000)) > 800


def test_tpot_is_learned_against_what_a_prediction_knew():
    # Placed on an idle device, it met three others later.
    estimator = taught(*[outcome(ahead_requests=0, mean_batch=4, tpot_ms=20.0)] * 20)
    assert predict(estimator).tpot_ms == pytest.approx(20, rel=0.1)


def test_sure_share_is_what_nearly_all_first_tokens_kept_to():
    estimator = Estimator()
    for number in range(15):
        assert estimator.sure_share("tiny") is None
        estimator.observe_ttft("tiny", 100.0 + number, 100.0)
    for number in range(100):
        estimator.observe_ttft("tiny", 400.0 if number % 10 == 0 else 90.0, 100.0)
    assert estimator.sure_share("tiny") == pytest.approx(0.25)
    assert estimator.sure_share("other") is None
    for _ in range(60):
        estimator.observe_ttft("tiny", 90.0, 100.0)
    # Sooner than predicted is no reason to promise less than the objective.
    assert estimator.sure_share("tiny") == 1.0


def test_tpot_is_predicted_as_most_meet_it_not_as_the_few_that_meet_long_prompts():
    slow = outcome(ahead_requests=0, tpot_ms=60.0)
    estimator = taught(*[outcome(ahead_requests=0), outcome(ahead_requests=0), slow] * 30)
    tpot_ms = predict(estimator).tpot_ms
    # The mean of the logarithms is 18 ms.
    assert 9 < tpot_ms < 14
    # All devices of the model alike: none goes first because of it.
    other = device(device_id=DeviceId("other"))
    ratio = estimator.predict(REQUEST, other, MODEL).tpot_ms / 10
    assert ratio < 0.9


def test_measured_joules_correct_the_estimate():
    estimator = taught(*[outcome(joules=3.0)] * 30)
    # The outcome's own 50 tokens: 6 J by TDP, 3 J measured.
    assert predict(estimator, tdp_w=10.0).joules == pytest.approx(3.0, rel=0.1)


def test_measured_joules_do_not_move_with_what_the_meter_shows_at_the_moment():
    estimator = taught(*[outcome(joules=3.0, joules_estimated=False)] * 30)
    for power_w, in_flight in ((2.0, {}), (8.0, {"tiny": 1})):
        metered = {"power_w": power_w, "power_estimated": False, "in_flight": in_flight}
        prediction = predict(estimator, tdp_w=10.0, **metered)
        assert prediction.joules < 3.5
        assert not prediction.joules_estimated


def test_another_file_under_the_same_name_starts_afresh():
    estimator = taught(*[outcome(tpot_ms=30.0)] * 15)
    assert predict(estimator, model=replace(MODEL, fingerprint="g")).tpot_ms == pytest.approx(10)


def test_forgotten_device_starts_afresh():
    estimator = taught(*[outcome(tpot_ms=30.0)] * 15)
    estimator.forget(DeviceId("d"))
    assert predict(estimator).tpot_ms == pytest.approx(10)


def test_what_is_kept_of_a_device_follows_the_view_and_what_is_learned():
    estimator, idle = Estimator(), device()
    expected = estimator.expect(REQUEST)
    first = estimator.look(idle, MODEL, 0)
    assert estimator.standings("tiny")[idle.device_id] is first
    # The router asks again when it finds that the view shows another value.
    busy = estimator.look(device(in_flight={"tiny": 2}), MODEL, 2)
    assert estimator.standings("tiny")[idle.device_id] is busy
    assert (busy.occupied, busy.free_slot, busy.takes) == (2, True, True)
    # What is learned later counts for what was looked at before.
    estimator.track(busy.device, MODEL)
    before = estimator.figures(expected, busy)[1]
    estimator.observe(outcome(tpot_ms=20.0))
    assert estimator.figures(expected, busy)[1] > 1.1 * before
    estimator.forget(idle.device_id)
    assert not estimator.standings("tiny")


def test_what_is_kept_of_devices_never_sent_anything_is_bounded():
    estimator = Estimator()
    for number in range(MAX_STANDINGS + 5):
        last = device(device_id=DeviceId(f"d{number}"))
        assert estimator.look(last, MODEL, 0).device is last
    assert len(estimator.standings("tiny")) == MAX_STANDINGS
    estimator.track(last, MODEL)
    assert estimator.standings("tiny").get(estimator.look(last, MODEL, 0).device.device_id)


def test_outcome_of_a_device_never_predicted_for_is_taken():
    estimator = Estimator()
    estimator.observe(outcome(prompt_tokens=200))
    assert estimator.prompt_tokens(REQUEST) > 100


@pytest.mark.parametrize("nothing", [0.0, -1.0, math.inf, math.nan])
def test_figures_that_say_nothing_are_ignored(nothing):
    ratio = LearnedRatio()
    ratio.observe(nothing, 1.0)
    ratio.observe(1.0, nothing)
    assert ratio.value == 1.0
    assert ratio.num_observations == 0
    quotient = LearnedQuotient(0.25, 100.0)
    quotient.observe(5.0, 0.0)
    assert quotient.value == 0.25


def test_noise_leaves_the_estimate_near_the_truth():
    rng = random.Random(7)
    ratio = LearnedRatio()
    for _ in range(500):
        ratio.observe(math.exp(rng.gauss(math.log(1.5), 0.15)), 1.0)
    assert ratio.value == pytest.approx(1.5, rel=0.15)


def test_random_outcomes_never_break_a_prediction():
    rng = random.Random(1)
    estimator = taught()
    for _ in range(2000):
        estimator.observe(
            outcome(
                prompt_tokens=rng.choice([0, 1, 5000]),
                cached_tokens=rng.choice([0, 1, 9000]),
                completion_tokens=rng.choice([0, 1, 2, 4000]),
                queue_ms=rng.choice([0.0, 1e6]),
                ttft_ms=rng.choice([0.0, 1e-3, 1e6]),
                tpot_ms=rng.choice([0.0, 1e-3, 1e6]),
                mean_batch=rng.choice([0, 1, 300]),
                joules=rng.choice([None, 0.0, 1e6]),
            )
        )
        prediction = predict(estimator, tdp_w=1.0)
        assert 0 < prediction.ttft_ms < math.inf
        assert 0 < prediction.tpot_ms < math.inf
        assert 0 < prediction.joules < math.inf


def test_long_prompts_ahead_hold_a_short_one_up_for_little() -> None:
    long_ahead = tokens_ahead(300, (6_000,), 6_000)
    assert long_ahead == 100
    assert tokens_ahead(6_000, (300, 200), 500) == 500
    # Of unknown length: taken to go first, as all are without any known.
    assert tokens_ahead(300, (6_000,), 6_400) == long_ahead + 400
    assert tokens_ahead(300, (), 700) == 700
