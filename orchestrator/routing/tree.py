"""The decision tree of the design: model size and latency need -> preferred device class."""

from __future__ import annotations

from typing import Literal

from orchestrator.fleet.view import DeviceClass

Tier = Literal["edge", "cloud"]

# Bounds of the tree, in parameters: at most 1B is small, 7B and above is the cloud's.
SMALL_MAX_PARAMETERS = 1_000_000_000
CLOUD_MIN_PARAMETERS = 7_000_000_000
# A stated TPOT of at most this is a latency requirement.
LATENCY_TPOT_MS = 50.0

# x86 is last everywhere: its base power gives it the worst energy-delay product.
_SMALL = (DeviceClass.ARM_CPU, DeviceClass.NPU, DeviceClass.GPU, DeviceClass.X86_CPU)
_FAST = (DeviceClass.NPU, DeviceClass.GPU, DeviceClass.ARM_CPU, DeviceClass.X86_CPU)
_RELAXED = (DeviceClass.GPU, DeviceClass.NPU, DeviceClass.ARM_CPU, DeviceClass.X86_CPU)


def tier_for(num_parameters: int) -> Tier:
    """Where the tree wants a model of this size: 7B and above in the cloud."""
    return "cloud" if num_parameters >= CLOUD_MIN_PARAMETERS else "edge"


def class_order(num_parameters: int, tpot_slo_ms: float | None) -> tuple[DeviceClass, ...]:
    """Device classes for a model, preferred first, then the stated fallback order.

    - at most 1B parameters: arm_cpu, npu, gpu, x86_cpu
    - above 1B, TPOT of at most 50 ms required: npu, gpu, arm_cpu, x86_cpu
    - above 1B, no such requirement (or none stated): gpu, npu, arm_cpu, x86_cpu

    From 7B on `tier_for` says cloud; the order then holds only where no cloud is
    configured and an edge device really serves the model, which dispatch decides.
    """
    if num_parameters <= SMALL_MAX_PARAMETERS:
        return _SMALL
    if tpot_slo_ms is not None and tpot_slo_ms <= LATENCY_TPOT_MS:
        return _FAST
    return _RELAXED


def branch_text(num_parameters: int, tpot_slo_ms: float | None) -> str:
    """The branch taken, as half a sentence for the decision's reason."""
    if num_parameters <= SMALL_MAX_PARAMETERS:
        return "at most 1B parameters"
    size = "7B parameters or more" if tier_for(num_parameters) == "cloud" else "1B to 7B parameters"
    if tpot_slo_ms is not None and tpot_slo_ms <= LATENCY_TPOT_MS:
        return f"{size} and {tpot_slo_ms:g} ms per token required"
    if tpot_slo_ms is not None:
        return f"{size} and {tpot_slo_ms:g} ms per token suffices"
    return f"{size} and no latency per token required"
