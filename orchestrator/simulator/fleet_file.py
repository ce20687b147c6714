"""The fleet to simulate: kinds of device with their speeds and power, from TOML or JSON."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.fleet.view import DeviceClass
from orchestrator.routing.reference import REFERENCE, REFERENCE_PARAMETERS
from orchestrator.simulator.errors import InputError

_Spec = TypeVar("_Spec", "DeviceKind", "FleetSpec")


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """One kind of device. Speeds are for `reference_parameters`, and scale with 1/size.

    `batch_cost`: how much longer a decode step takes for each further sequence, as a
    share of a step of one. `speed_spread`: standard deviation of the log of a device's
    true speed round the stated one, which the router is not told.
    """

    name: str
    device_class: DeviceClass
    count: int
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    busy_power_w: float
    idle_power_w: float
    reference_parameters: int = REFERENCE_PARAMETERS
    slots: int = 8
    max_waiting: int = 16
    batch_cost: float = 0.1
    speed_spread: float = 0.05
    # Models it serves; empty: all of the workload.
    models: tuple[str, ...] = ()

    def step_ms(self, num_parameters: int, num_sequences: int) -> float:
        """Stated duration of one decode step over a batch."""
        alone_ms = 1000.0 / self.decode_tokens_per_s * num_parameters / self.reference_parameters
        return alone_ms * (1 + self.batch_cost * (max(1, num_sequences) - 1))

    def prefill_ms(self, num_parameters: int, num_tokens: float) -> float:
        """Stated duration of a prompt's processing."""
        scale = num_parameters / self.reference_parameters
        return 1000.0 * num_tokens / self.prefill_tokens_per_s * scale


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """A fleet. `failures_per_device_hour`: how often a device's stream breaks, at random."""

    kinds: tuple[DeviceKind, ...]
    failures_per_device_hour: float = 0.0
    outage_s: float = 60.0
    source: str = ""

    @property
    def num_devices(self) -> int:
        """Devices of all kinds."""
        return sum(kind.count for kind in self.kinds)

    def scaled_to(self, num_devices: int) -> FleetSpec:
        """The same mix with this many devices; each kind keeps at least one."""
        before = self.num_devices
        kinds = [
            replace(kind, count=max(1, kind.count * num_devices // before)) for kind in self.kinds
        ]
        rest = num_devices - sum(kind.count for kind in kinds)
        kinds[0] = replace(kinds[0], count=max(1, kinds[0].count + rest))
        return replace(self, kinds=tuple(kinds))


# Decode speed and busy power (TDP) are the article's (A), for Llama-3.1-8B at sequence
# length 1024. The rest are planning assumptions: power when idle, the gain by batching
# (CPUs run out of arithmetic early), and prefill over decode speed (5 was measured on
# CPUs; accelerators have more arithmetic to each byte read, 20 is assumed).
_ASSUMED = {
    DeviceClass.NPU: ("raiderchip", 20.0, 6.0, 0.1),
    DeviceClass.GPU: ("orin-nano", 20.0, 5.0, 0.1),
    DeviceClass.ARM_CPU: ("cortex-a78ae", 5.0, 2.5, 0.4),
    DeviceClass.X86_CPU: ("i5-12400", 5.0, 20.0, 0.4),
}
ARTICLE_SOURCE = (
    "article's four device classes; decode speed and TDP are the article's planning inputs (A),"
    " idle power, batching gain and prefill speed are assumptions"
)


def article_fleet(num_each: int = 10) -> FleetSpec:
    """The article's four device classes, `num_each` devices of each."""
    kinds = []
    for device_class, (name, prefill_over_decode, idle_w, batch_cost) in _ASSUMED.items():
        reference = REFERENCE[device_class]
        kinds.append(
            DeviceKind(
                name=name,
                device_class=device_class,
                count=num_each,
                decode_tokens_per_s=reference.decode_tokens_per_s,
                prefill_tokens_per_s=reference.decode_tokens_per_s * prefill_over_decode,
                busy_power_w=reference.tdp_w,
                idle_power_w=idle_w,
                batch_cost=batch_cost,
            )
        )
    return FleetSpec(tuple(kinds), source=ARTICLE_SOURCE)


def load_fleet(path: Path) -> FleetSpec:
    """Read a fleet file: `[[kind]]` tables (TOML) or a `kind` list (JSON).

    Raises InputError that names the field that is wrong.
    """
    try:
        text = path.read_text()
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} is not valid {path.suffix[1:] or 'TOML'}: {error}") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("kind"), list) or not raw["kind"]:
        raise InputError(f"{path}: a fleet needs at least one [[kind]]")
    general = {key: value for key, value in raw.items() if key != "kind"}
    kinds = tuple(_kind(each, f"{path}: kind {i + 1}") for i, each in enumerate(raw["kind"]))
    return _build(FleetSpec, {"source": path.name, **general, "kinds": kinds}, str(path))


def _kind(raw: Any, where: str) -> DeviceKind:
    if not isinstance(raw, dict):
        raise InputError(f"{where}: must be a table")
    values = dict(raw)
    try:
        values["device_class"] = DeviceClass(values.pop("class"))
    except (KeyError, ValueError) as error:
        raise InputError(f"{where}: `class` must be one of {', '.join(DeviceClass)}") from error
    values["models"] = tuple(values.get("models", ()))
    kind = _build(DeviceKind, values, where)
    numbers = (kind.decode_tokens_per_s, kind.prefill_tokens_per_s, kind.count, kind.slots)
    if not all(isinstance(number, int | float) and number > 0 for number in numbers):
        raise InputError(f"{where}: `count`, `slots` and speeds must be numbers above 0")
    return kind


def _build(kind: type[_Spec], values: dict[str, Any], where: str) -> _Spec:
    unknown = values.keys() - {field.name for field in fields(kind)}
    if unknown:
        raise InputError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    try:
        return kind(**values)
    except TypeError as error:
        raise InputError(
            f"{where}: {str(error).removeprefix(kind.__name__ + '.__init__() ')}"
        ) from error
