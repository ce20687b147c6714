import json
from dataclasses import fields, replace

import pytest

from orchestrator.config import HubConfig
from orchestrator.fleet.view import DeviceClass
from orchestrator.queueing.waiting_queue import QueueLimits
from orchestrator.request import Slo
from orchestrator.simulator.fleet_file import DeviceKind, FleetSpec, article_fleet
from orchestrator.simulator.hub_queue import TICK_MS, WAITING_SHARE
from orchestrator.simulator.policies import Policy
from orchestrator.simulator.report import summary
from orchestrator.simulator.run import Simulation
from orchestrator.simulator.study import Study, run_study
from orchestrator.simulator.workload import Job, SimModel

MODEL = SimModel("m", 1_000_000_000)
# 10 ms a token alone, 1 ms a prompt token, 10 W when busy.
KIND = DeviceKind(
    name="one",
    device_class=DeviceClass.GPU,
    count=1,
    decode_tokens_per_s=100.0,
    prefill_tokens_per_s=1000.0,
    busy_power_w=10.0,
    idle_power_w=1.0,
    reference_parameters=MODEL.num_parameters,
    slots=2,
    batch_cost=0.5,
    speed_spread=0.0,
)


def job(arrival_ms=0.0, prompt_tokens=100, completion_tokens=11, slo=None, model=MODEL):
    return Job(arrival_ms, model, prompt_tokens, completion_tokens, slo or Slo())


def run(*jobs, kinds=(KIND,), policy=Policy.SHOAL_LATENCY, seed=1, **fleet):
    models = {each.model.name: each.model for each in jobs}
    return Simulation(FleetSpec(tuple(kinds), **fleet), models, policy, seed).run(jobs)


def test_one_request_takes_its_prefill_and_its_steps():
    (ended,) = run(job()).ended
    assert ended.ttft_ms == pytest.approx(100)
    assert ended.tpot_ms == pytest.approx(10)
    assert ended.latency_ms == pytest.approx(200)
    assert ended.joules == pytest.approx(10 * 0.2)


def test_two_sequences_share_the_batch():
    first, second = run(job(prompt_tokens=1), job(prompt_tokens=1)).ended
    # 15 ms a step for both; the second prompt takes 1 ms.
    assert first.tpot_ms == pytest.approx(15, rel=0.05)
    assert second.tpot_ms == pytest.approx(15, rel=0.05)


def test_third_request_waits_for_a_slot():
    ended = run(*(job(prompt_tokens=1) for _ in range(3))).ended
    assert [each.ttft_ms > 100 for each in ended] == [False, False, True]


def test_prompts_hold_up_the_sequences_that_decode():
    alone = run(job(completion_tokens=50)).ended[0]
    both = run(job(completion_tokens=50), job(150.0, prompt_tokens=1_000)).ended
    disturbed = next(each for each in both if each.job.arrival_ms == 0)
    assert disturbed.tpot_ms > 2 * alone.tpot_ms


def test_two_models_share_the_device():
    other = SimModel("n", MODEL.num_parameters)
    first, second = run(job(), job(model=other)).ended
    assert first.latency_ms == pytest.approx(400, rel=0.01)
    assert second.latency_ms == pytest.approx(400, rel=0.01)


def test_request_that_finds_no_place_is_refused_by_who_has_no_queue():
    kind = replace(KIND, slots=1, max_waiting=1)
    jobs = [job() for _ in range(4)]
    ended = run(*jobs, kinds=[kind], policy=Policy.LEAST_LOADED).ended
    assert sorted(each.failed for each in ended) == ["", "", "refused", "refused"]
    waited = run(*jobs, kinds=[kind])
    assert [each.failed for each in waited.ended] == [""] * 4
    assert waited.num_waited == 2


def test_who_cannot_be_served_in_time_is_refused_by_the_hubs_queue():
    kind = replace(KIND, slots=1)
    slo = Slo(ttft_ms=1_000.0)
    ended = run(*(job(completion_tokens=101, slo=slo) for _ in range(6)), kinds=[kind]).ended
    # One is served, one waits on the device; 1.1 s each.
    assert sum(each.failed == "refused" for each in ended) == 4


def last_first_tokens(*jobs):
    """Jobs in the order of their first tokens, of a device with one slot."""
    ended = run(*jobs, kinds=[replace(KIND, slots=1)]).ended
    in_order = sorted(ended, key=lambda each: each.job.arrival_ms + each.ttft_ms)
    return [each.job for each in in_order]


def test_the_urgent_go_first_among_those_who_wait():
    # The first two are on the device when the others come.
    before = [job(float(n)) for n in range(2)]
    relaxed, urgent = job(2.0), replace(job(3.0), priority=50)
    assert last_first_tokens(*before, relaxed, urgent)[2:] == [urgent, relaxed]


def test_a_tenants_flood_does_not_put_back_anothers_request():
    flood = [replace(job(float(n)), tenant="flood") for n in range(8)]
    other = replace(job(8.0), tenant="other")
    assert last_first_tokens(*flood, other).index(other) <= 3


def test_a_short_prompt_is_computed_before_a_long_ones_rest():
    long, short = job(0.0, prompt_tokens=4_000), job(500.0, prompt_tokens=300)
    ended = {each.job: each for each in run(long, short).ended}
    # Three chunks of four are the short one's: 300 tokens at 0.75 tokens/ms.
    assert ended[short].ttft_ms == pytest.approx(400, rel=0.05)
    # One chunk and then a step for the short one's answer in turn.
    assert 4_300 <= ended[long].ttft_ms <= 4_600


def test_the_hub_simulated_is_the_one_that_is_configured_by_default():
    hub = {each.name: each.default for each in fields(HubConfig)}
    limits = QueueLimits()
    assert (hub["tick_ms"], hub["device_waiting_share"]) == (TICK_MS, WAITING_SHARE)
    assert limits.max_requests == hub["max_queued"]
    assert limits.max_prompt_bytes == hub["max_queued_prompt_bytes"]
    assert limits.max_wait_ms == hub["max_queue_wait_ms"]


@pytest.mark.parametrize("policy", list(Policy))
def test_requests_are_charged_exactly_the_busy_energy(policy):
    fleet = article_fleet(2)
    study = Study(fleet, policies=(policy,), num_requests=400, seed=3)
    result = Simulation(fleet, study.models, policy, 3).run(study.workload())
    spent = sum(device.kind.busy_power_w * device.busy_ms / 1000.0 for device in result.devices)
    assert len(result.ended) == 400
    assert sum(each.joules for each in result.ended) == pytest.approx(spent)
    assert all(device.num_held == 0 for device in result.devices)
    assert all(each.latency_ms >= each.ttft_ms > 0 for each in result.ended if not each.failed)


def test_same_seed_gives_the_same_document():
    study = Study(article_fleet(2), num_requests=300, seed=5)
    assert json.dumps(run_study(study)) == json.dumps(run_study(study))
    assert run_study(study) != run_study(replace(study, seed=6))


def test_round_robin_gives_each_device_its_turn():
    kinds = [replace(KIND, count=4)]
    result = run(*(job(n * 1000.0) for n in range(8)), kinds=kinds, policy=Policy.ROUND_ROBIN)
    assert {round(device.busy_ms) for device in result.devices} == {400}


def test_least_loaded_goes_to_the_idle_device():
    kinds = [replace(KIND, count=4)]
    jobs = [job(float(n), prompt_tokens=1_000) for n in range(4)]
    result = run(*jobs, kinds=kinds, policy=Policy.LEAST_LOADED)
    assert all(device.busy_ms > 0 for device in result.devices)


def test_shoal_keeps_to_the_device_that_meets_the_slo():
    slow = replace(KIND, name="slow", decode_tokens_per_s=10.0)
    jobs = [job(n * 1000.0, slo=Slo(tpot_ms=50.0)) for n in range(10)]
    result = run(*jobs, kinds=[KIND, slow])
    assert summary(result)["slo_attainment"] == 1.0


def test_router_learns_which_device_is_slower_than_it_says():
    fleet = replace(KIND, count=2, slots=8)
    jobs = [job(n * 400.0, completion_tokens=30) for n in range(60)]
    models = {MODEL.name: MODEL}
    simulation = Simulation(FleetSpec((fleet,)), models, Policy.SHOAL_LATENCY, 1)
    liar, honest = simulation._devices.values()
    liar.factor = 5.0
    result = simulation.run(jobs)
    late = [each for each in result.ended if each.job.arrival_ms > 12_000]
    assert sum(each.tpot_ms > 40 for each in late) < len(late) / 10
    assert honest.busy_ms > 0


def test_lost_devices_come_back_and_every_request_ends():
    jobs = [job(n * 200.0, prompt_tokens=300) for n in range(300)]
    kinds = [replace(KIND, count=4)]
    result = run(*jobs, kinds=kinds, failures_per_device_hour=200.0, outage_s=5.0)
    assert result.num_failures > 3
    assert len(result.ended) == 300
    assert {each.failed for each in result.ended} <= {"", "device_lost"}
    assert sum(not each.failed for each in result.ended) > 280


def test_too_short_a_study_says_so():
    document = run_study(Study(article_fleet(100), num_requests=50))
    assert any("never reached its stated load" in note for note in document["notes"])
