from __future__ import annotations

from pathlib import Path

import pytest

from agent.hardware.report import detect
from tests.harness import device_trees as trees


def test_raspberry_pi_5_is_an_arm_cpu_with_dot_products(tmp_path: Path) -> None:
    found = detect(trees.plant(tmp_path, trees.RASPBERRY_PI_5), architecture="aarch64")
    assert found.device_class == "arm_cpu"
    assert not found.emulated
    assert found.cpu_model == "Cortex-A76"
    assert found.cores == 4
    assert {"asimd", "asimddp", "fphp"} <= set(found.cpu_features)
    assert found.memory_bytes == 8256480 * 1024
    assert found.labels["board"] == "Raspberry Pi 5 Model B Rev 1.0"
    assert found.os == "Debian GNU/Linux 12 (bookworm)"
    assert found.tdp_w == 10.0
    assert found.labels["tdp"] == "estimated"
    assert found.power_meters == ()
    assert found.power_source == ""


def test_jetson_gpu_is_reported_and_not_claimed_while_no_engine_serves_it(tmp_path: Path) -> None:
    found = detect(trees.plant(tmp_path, trees.JETSON_ORIN_NANO), architecture="aarch64")
    assert found.device_class == "arm_cpu"
    (gpu,) = found.accelerators
    assert (gpu.kind, gpu.vendor, gpu.served_by) == ("gpu", "nvidia", "")
    assert gpu.unified_memory
    assert gpu.memory_bytes == found.memory_bytes
    assert any("no engine serves it" in note for note in found.notes)
    assert found.power_meters == ("ina3221:VDD_IN",)


def test_rock_5b_has_mixed_cores_and_an_npu(tmp_path: Path) -> None:
    found = detect(trees.plant(tmp_path, trees.ROCK_5B), architecture="aarch64")
    assert found.cpu_model == "Cortex-A55 + Cortex-A76"
    assert found.cores == 8
    assert [(a.kind, a.vendor) for a in found.accelerators] == [("npu", "rockchip")]


def test_x86_server_meters_packages_only(tmp_path: Path) -> None:
    found = detect(trees.plant(tmp_path, trees.X86_SERVER), architecture="x86_64")
    assert found.device_class == "x86_cpu"
    assert found.cpu_model.startswith("Intel(R) Xeon(R)")
    assert "avx512_vnni" in found.cpu_features
    assert found.power_meters == ("rapl:package-0",)
    assert found.power_source == "mains"
    assert found.tdp_w == 75.0


def test_nvidia_card_is_found_without_its_tools(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER, trees.NVIDIA_CARD)
    (card,) = detect(root, architecture="x86_64").accelerators
    assert card.model == "NVIDIA GeForce RTX 3060"
    assert not card.unified_memory


def test_hailo_and_edge_tpu_nodes_are_npus(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.RASPBERRY_PI_5, {"dev/hailo0": "", "dev/apex_0": ""})
    found = detect(root, architecture="aarch64")
    assert [a.vendor for a in found.accelerators] == ["hailo", "google"]


def test_unknown_accelerator_becomes_a_note(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, {"sys/class/accel/accel0/dev": "261:0"})
    assert any("accel0" in note for note in detect(root, architecture="x86_64").notes)


@pytest.mark.parametrize("driver", ["intel_vpu", "amdxdna"])
def test_accel_subsystem_drivers_are_known(tmp_path: Path, driver: str) -> None:
    device = tmp_path / "sys/class/accel/accel0/device"
    device.mkdir(parents=True)
    (tmp_path / driver).mkdir()
    (device / "driver").symlink_to(tmp_path / driver)
    (npu,) = detect(tmp_path, architecture="x86_64").accelerators
    assert npu.kind == "npu"


def test_declared_class_that_differs_is_emulated(tmp_path: Path) -> None:
    root = trees.plant(tmp_path, trees.X86_SERVER)
    found = detect(root, declared_class="npu", architecture="x86_64")
    assert found.emulated
    assert (found.device_class, found.detected_class) == ("npu", "x86_cpu")
    assert found.tdp_w == 24.0
    assert not detect(root, declared_class="x86_cpu", architecture="x86_64").emulated


def test_empty_tree_reports_nothing_rather_than_zero(tmp_path: Path) -> None:
    found = detect(tmp_path, architecture="riscv64")
    assert found.device_class == ""
    assert found.tdp_w is None
    assert found.memory_bandwidth_gb_s is None
    assert any("riscv64" in note for note in found.notes)


def test_this_machine_can_be_detected() -> None:
    found = detect()
    assert found.cores >= 1
    assert found.memory_bytes > 0
