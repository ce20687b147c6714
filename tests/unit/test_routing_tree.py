import pytest

from orchestrator.routing.tree import branch_text, class_order, tier_for

ARM_FIRST = ("arm_cpu", "npu", "gpu", "x86_cpu")
NPU_FIRST = ("npu", "gpu", "arm_cpu", "x86_cpu")
GPU_FIRST = ("gpu", "npu", "arm_cpu", "x86_cpu")


@pytest.mark.parametrize("tpot_slo_ms", [None, 1.0, 50.0, 50.0001, 500.0])
@pytest.mark.parametrize("num_parameters", [0, 1, 135_000_000, 999_999_999, 1_000_000_000])
def test_at_most_1b_prefers_arm_whatever_the_slo(num_parameters, tpot_slo_ms):
    assert class_order(num_parameters, tpot_slo_ms) == ARM_FIRST


@pytest.mark.parametrize("num_parameters", [1_000_000_001, 3_000_000_000, 6_999_999_999])
@pytest.mark.parametrize(
    ("tpot_slo_ms", "order"),
    [
        (0.0, NPU_FIRST),
        (49.9999, NPU_FIRST),
        (50.0, NPU_FIRST),
        (50.0001, GPU_FIRST),
        (1000.0, GPU_FIRST),
        (None, GPU_FIRST),
    ],
)
def test_between_1b_and_7b_the_latency_requirement_decides(num_parameters, tpot_slo_ms, order):
    assert class_order(num_parameters, tpot_slo_ms) == order


@pytest.mark.parametrize(
    ("num_parameters", "tier"),
    [
        (1, "edge"),
        (1_000_000_000, "edge"),
        (1_000_000_001, "edge"),
        (6_999_999_999, "edge"),
        (7_000_000_000, "cloud"),
        (7_000_000_001, "cloud"),
        (70_000_000_000, "cloud"),
    ],
)
def test_7b_and_above_goes_to_the_cloud(num_parameters, tier):
    assert tier_for(num_parameters) == tier


@pytest.mark.parametrize(("tpot_slo_ms", "order"), [(50.0, NPU_FIRST), (None, GPU_FIRST)])
def test_7b_has_an_edge_order_for_fleets_without_a_cloud(tpot_slo_ms, order):
    assert class_order(7_000_000_000, tpot_slo_ms) == order


def test_branch_text_names_the_branch():
    assert branch_text(10**9, 10.0) == "at most 1B parameters"
    assert branch_text(2 * 10**9, 50.0) == "1B to 7B parameters and 50 ms per token required"
    assert branch_text(2 * 10**9, 80.0) == "1B to 7B parameters and 80 ms per token suffices"
    assert branch_text(2 * 10**9, None) == "1B to 7B parameters and no latency per token required"
    assert branch_text(7 * 10**9, None).startswith("7B parameters or more")
