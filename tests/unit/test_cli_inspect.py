"""What `shoal devices` says of a device."""

from __future__ import annotations

import pytest
from rich.console import Console

from orchestrator.gateway.devices import _device
from shoal.cli.device_show import rows_of
from shoal.cli.exit_codes import CliError, ExitCode
from shoal.cli.inspect import _device_table, find_device
from shoal.v1 import device_pb2, engine_pb2, fleet_pb2


def line_of(**more: object) -> str:
    device = {"id": "1", "name": "pi", "state": "READY", "class": "arm_cpu", "models": [], **more}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_device_table([device]))
    return captured.get().splitlines()[-1]


def test_clock_that_is_off_is_shown_and_a_good_one_is_not() -> None:
    assert "READY, clock 240 s behind" in line_of(clock_skew_ms=-240_000)
    assert "READY, clock 12 s ahead" in line_of(clock_skew_ms=12_000)
    assert "clock" not in line_of(clock_skew_ms=900)


def test_suspected_model_is_shown_with_the_reason() -> None:
    models = [
        {"name": "a", "state": "READY", "condition": "suspect: no token for 3.2 s, expected 0.4 s"},
        {"name": "b", "state": "READY", "condition": ""},
        {"name": "c", "state": "LOADING", "condition": ""},
    ]
    device = {"id": "1", "name": "pi", "state": "READY", "class": "arm_cpu", "models": models}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(_device_table([device]))
    line = captured.get().splitlines()[-1]
    assert "a (suspect: no token for 3.2 s, expected 0.4 s), b, c (loading)" in line


NOW_S = 1_800_000_000


def shown(**more: object) -> list[tuple[str, str]]:
    """What the gateway tells of a device, as `shoal devices show` puts it."""
    status = fleet_pb2.DeviceStatus(device_id="1", name="pi", state="READY", **more)  # type: ignore[arg-type]
    return list(rows_of(_device(status), NOW_S))


def test_one_device_is_shown_with_all_that_it_told() -> None:
    capabilities = device_pb2.CapabilityReport(
        device_class="npu", emulated=True, detected_class="arm_cpu", architecture="aarch64",
        os="Debian 12", hostname="hall", cpu_model="Cortex-A76", cores=4,
        cpu_features=["neon", "dotprod"], memory_bytes=8_000_000_000, memory_bandwidth_gb_s=12.34,
        power_source="battery", power_meters=["ina3221:VDD_IN"], tdp_w=12,
        labels={"board": "Rock 5B", "batteries": "BAT0", "thermal_zones": "cpu-thermal",
                "tdp": "estimated", "calibrated/a": "A.Q4_0.gguf, 2 threads, 4 slots"},
        notes=["accelerator accel0 with driver galaxy: not known"],
    )  # fmt: skip
    capabilities.accelerators.add(
        kind="npu", vendor="rockchip", model="RKNPU", memory_bytes=8_000_000_000,
        unified_memory=True,
    )  # fmt: skip
    load = device_pb2.DeviceLoad(
        cpu_percent=40, memory_available_bytes=3_000_000_000, memory_total_bytes=8_000_000_000,
        temperature_c=71, power_w=6.5, conditions=["throttled"],
    )  # fmt: skip
    model = engine_pb2.ModelReport(
        name="a", file="A.Q4_0.gguf", quantisation="Q4_0", state=engine_pb2.MODEL_STATE_READY,
        slots=2, context_tokens=2048, kv_type="f16", prefill_tokens_per_s=301.2,
        decode_tokens_per_s=50, decode_batch_tokens_per_s=[50, 80], fingerprint="abc" * 20,
        caches_blocks=True, condition="suspect: no token for 3.2 s",
    )  # fmt: skip
    broken = engine_pb2.ModelReport(
        name="b", state=engine_pb2.MODEL_STATE_FAILED, failure="killed by SIGILL"
    )
    rows = shown(
        capabilities=capabilities, load=load, models=[model, broken], hub_id="hub-2", epoch=7,
        agent_version="0.2.0", protocol=2, last_seen_unix_ms=(NOW_S - 5) * 1000,
        certificate_expires_unix_ms=(NOW_S + 72_000) * 1000, clock_skew_ms=-40_000,
    )  # fmt: skip
    values = dict(rows)
    assert values["class"] == "npu (emulated; the hardware is arm_cpu)"
    assert values["last seen"] == "2027-01-15 07:59:55 UTC (5 s ago), clock 40 s behind"
    assert values["hub"] == "hub-2, epoch 7"
    assert values["agent"] == "0.2.0, protocol 2"
    assert values["certificate"].startswith("expires 2027-01-16 04:00:00 UTC (in 20 h)")
    assert values["board"] == "Rock 5B"
    assert values["instruction sets"] == "neon dotprod"
    assert values["memory"] == "8.0 GB, 12.3 GB/s measured"
    assert values["power"] == "battery, battery BAT0, 12 W at most (estimated), now 6.5 W measured"
    assert values["meters"] == "ina3221:VDD_IN"
    assert values["load"] == "CPU 40 %, 3.0 GB of memory available, 71 °C"
    assert values["accelerator"] == "NPU rockchip RKNPU, 8.0 GB unified, not served"
    assert values["condition"] == "throttled"
    assert values["calibrated"] == "a: A.Q4_0.gguf, 2 threads, 4 slots"
    assert values["note"] == "accelerator accel0 with driver galaxy: not known"
    assert ("model", "a (suspect: no token for 3.2 s)") in rows
    assert ("", "A.Q4_0.gguf, Q4_0, 2 slots of 2048 tokens, KV in f16") in rows
    assert ("", "prefill 301, decode 50, 80 tokens/s with 1 to 2 sequences at once") in rows
    assert ("", "fingerprint abcabcabcabcabca, prompts are cached") in rows
    assert ("model", "b: failed killed by SIGILL") in rows


def test_of_a_device_that_is_away_only_what_is_known_is_shown() -> None:
    capabilities = device_pb2.CapabilityReport(device_class="arm_cpu")
    assert shown(capabilities=capabilities) == [
        ("class", "arm_cpu"), ("id", "1"), ("running", "0"),
    ]  # fmt: skip


def test_unknown_name_is_answered_with_the_names_like_it() -> None:
    devices = [{"id": str(number), "name": f"hall-{number}"} for number in range(2)]
    assert find_device(devices, "hall-1") is devices[1]
    assert find_device(devices, "0") is devices[0]
    with pytest.raises(CliError) as caught:
        find_device(devices, "hal-1")
    assert caught.value.code is ExitCode.NOT_FOUND
    assert "hall-1" in caught.value.remedy
    with pytest.raises(CliError) as caught:
        find_device(devices, "xyz")
    assert caught.value.remedy == "All are shown by `shoal devices list`."
