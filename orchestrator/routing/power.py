"""The power that energy is predicted with, in W."""

from __future__ import annotations

from orchestrator.fleet.view import DeviceView


def reference_power_w(device: DeviceView) -> float | None:
    """The power that learned joules are a multiple of: one that does not move with load."""
    return device.power_w if device.tdp_w is None else device.tdp_w


def busy_power_w(device: DeviceView, occupancy: int) -> tuple[float | None, bool]:
    """Power while generating (None: nothing known), and whether it is an estimate.

    A meter read on an idle device does not tell the power under load: the TDP is the
    better guess then. The article's tokens/J are tokens/s over TDP for every class, so
    a utilisation of 1 is assumed.
    """
    if device.power_w is None:
        return device.tdp_w, True
    if not device.power_estimated and occupancy > 0:
        return device.power_w, False
    return device.power_w if device.tdp_w is None else device.tdp_w, True
