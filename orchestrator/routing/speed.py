"""A served model's speed from its measured decode curve, or from its class's reference."""

from __future__ import annotations

from orchestrator.fleet.view import DeviceClass, ServedModel
from orchestrator.routing import reference


def decode_tokens_per_s(model: ServedModel, device_class: DeviceClass, num_sequences: int) -> float:
    """Total decode speed over `num_sequences` sequences in one batch.

    Between measured points (1, 2, 4, ... sequences) linear; past the last one flat:
    a batch that was not measured promises nothing more.
    """
    curve = model.decode_batch_tokens_per_s
    if not curve or curve[0] <= 0:
        if model.decode_tokens_per_s > 0:
            return model.decode_tokens_per_s
        return reference.decode_tokens_per_s(device_class, model.num_parameters)
    index = num_sequences.bit_length() - 1
    if index >= len(curve) - 1:
        return curve[-1]
    low_sequences = 1 << index
    low, high = curve[index], curve[index + 1]
    return low + (high - low) * (num_sequences - low_sequences) / low_sequences


def tpot_ms(model: ServedModel, device_class: DeviceClass, num_sequences: int) -> float:
    """Time per output token that each of `num_sequences` sequences sees."""
    num_sequences = max(num_sequences, 1)
    return 1000.0 * num_sequences / decode_tokens_per_s(model, device_class, num_sequences)


def prefill_tokens_per_s(model: ServedModel, device_class: DeviceClass) -> float:
    """Prompt speed of one sequence."""
    if model.prefill_tokens_per_s > 0:
        return model.prefill_tokens_per_s
    return reference.PREFILL_OVER_DECODE * decode_tokens_per_s(model, device_class, 1)
