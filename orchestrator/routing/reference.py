"""The article's reference device of each class: what to assume before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.fleet.view import DeviceClass

# The figures below are for Llama-3.1-8B at sequence length 1024.
REFERENCE_PARAMETERS = 8_030_000_000

# Prefill over decode speed of one sequence where only decode is known. Measured on
# CPUs with SmolLM2-135M: 4.7 (Q4_1) to 9 (Q8_0); accelerators are higher.
PREFILL_OVER_DECODE = 5.0


@dataclass(frozen=True, slots=True)
class ReferenceDevice:
    """A class's representative. Its tokens/J equal tokens/s over TDP: it runs at full TDP."""

    decode_tokens_per_s: float
    tdp_w: float
    tokens_per_j: float
    bandwidth_gb_s: float


REFERENCE = {
    DeviceClass.X86_CPU: ReferenceDevice(4.2, 75.0, 0.056, 76.0),
    DeviceClass.ARM_CPU: ReferenceDevice(5.7, 10.0, 0.57, 102.0),
    DeviceClass.GPU: ReferenceDevice(32.8, 20.0, 1.64, 102.0),
    DeviceClass.NPU: ReferenceDevice(55.6, 24.0, 2.32, 102.0),
}


def decode_tokens_per_s(device_class: DeviceClass, num_parameters: int) -> float:
    """Decode speed of a class's representative, scaled by size: decode is bound by bandwidth."""
    scale = REFERENCE_PARAMETERS / max(num_parameters, 1_000_000)
    return REFERENCE[device_class].decode_tokens_per_s * scale
