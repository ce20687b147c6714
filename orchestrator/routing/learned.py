"""What outcomes taught of one device and model."""

from __future__ import annotations

from orchestrator.fleet.view import DeviceView, ServedModel
from orchestrator.routing.learning import LearnedRatio


class Learned:
    """What is known of one device and model; `device` and `model` as last predicted with."""

    __slots__ = ("decode", "device", "joules", "joules_estimated", "model", "prefill")

    def __init__(self, device: DeviceView, model: ServedModel) -> None:
        self.prefill = LearnedRatio()
        self.decode = LearnedRatio()
        self.joules = LearnedRatio()
        self.joules_estimated = True
        self.device = device
        self.model = model
