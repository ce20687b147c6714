"""GPUs: Jetson boards by their device tree, NVIDIA cards by their driver, others by DRM nodes.

Sources: NVIDIA's Jetson Linux and driver documentation (/proc/driver/nvidia), the kernel's
Documentation/gpu and Documentation/userspace-api/dma-buf (render nodes), the Vulkan loader's
interface document (ICD manifests).
"""

from __future__ import annotations

from pathlib import Path

from agent.hardware.accelerator import Accelerator, read_bound
from agent.hardware.files import list_dir, read_fields, read_int, read_strings, read_text
from agent.hardware.nvml import find_gpu_memories

# SoCs whose GPU runs CUDA: Jetson Nano and TX1, TX2, Xavier, Orin, Thor. Earlier Tegras
# (tegra20 to tegra124 in phones and consoles) are no device for models.
_CUDA_TEGRAS = ("tegra210", "tegra186", "tegra194", "tegra234", "tegra264")
# DRM drivers (drivers/gpu/drm): vendor, and whether the GPU has no memory of its own.
# None: a card or part of the CPU, which the driver's name does not tell.
_DRM = {
    "amdgpu": ("amd", None),
    "radeon": ("amd", None),
    "i915": ("intel", None),
    "xe": ("intel", None),
    "msm": ("qualcomm", True),
    "msm_dpu": ("qualcomm", True),
    "adreno": ("qualcomm", True),
    "panthor": ("arm", True),
    "panfrost": ("arm", True),
    "lima": ("arm", True),
    "mali": ("arm", True),
    "v3d": ("broadcom", True),
    "etnaviv": ("vivante", True),
    "powervr": ("imagination", True),
    "asahi": ("apple", True),
    "nouveau": ("nvidia", None),
}
# Drivers of DRM nodes that are reported by other means, or that draw and do not compute.
# fmt: off
_NOT_HERE = frozenset((
    "nvidia", "nvidia-drm", "tegra", "tegra-host1x", "nvgpu", "gk20a", "RKNPU", "rocket",
    "intel_vpu", "amdxdna", "rockchip-drm", "vc4-drm", "simple-framebuffer",
    "virtio-pci", "virtio_gpu", "vmwgfx", "vgem", "vkms", "ast", "mgag200", "bochs-drm",
))
# fmt: on
# Intel's integrated GPU sits in this slot since its first generation.
_INTEL_INTEGRATED_SLOT = "0000:00:02.0"
# Vulkan in software (Mesa's lavapipe), and layers.
_SOFTWARE_ICDS = ("lvp", "llvmpipe", "swrast", "vk_swiftshader")


def find_gpus(root: Path, memory_bytes: int) -> tuple[list[Accelerator], list[str]]:
    """The GPUs below `root`, and notes on those that were seen and not understood."""
    board = read_text(root / "proc/device-tree/model") or ""
    socs = [
        name.removeprefix("nvidia,")
        for name in read_strings(root / "proc/device-tree/compatible")
        if name.startswith("nvidia,tegra")
    ]
    if any(soc in _CUDA_TEGRAS for soc in socs) or "Jetson" in board:
        return [Accelerator("gpu", "nvidia", board, memory_bytes, unified_memory=True)], []
    found, notes = _render_nodes(root, memory_bytes)
    notes += [f"SoC {soc}: its GPU runs no CUDA that is known" for soc in socs]
    return _nvidia_cards(root) + found, notes


def vulkan_drivers(root: Path) -> tuple[str, ...]:
    """Names of the installed Vulkan drivers that need a GPU, by their manifests."""
    names = {
        manifest.name.removesuffix(".json").partition(".")[0].removesuffix("_icd")
        for folder in ("etc/vulkan/icd.d", "usr/share/vulkan/icd.d", "usr/local/share/vulkan/icd.d")
        for manifest in list_dir(root / folder)
        if manifest.name.endswith(".json")
    }
    return tuple(sorted(name for name in names if not name.startswith(_SOFTWARE_ICDS)))


def _nvidia_cards(root: Path) -> list[Accelerator]:
    """Discrete cards; memory by NVML where that is this machine's own, /proc tells none."""
    models = [
        fields.get("Model", "")
        for card in list_dir(root / "proc/driver/nvidia/gpus")
        if (fields := read_fields(card / "information"))
    ]
    memories = find_gpu_memories() if models and root == Path("/") else []
    if len(memories) != len(models):
        memories = [0] * len(models)
    return [
        Accelerator("gpu", "nvidia", model, memory)
        for model, memory in zip(models, memories, strict=True)
    ]


def _render_nodes(root: Path, memory_bytes: int) -> tuple[list[Accelerator], list[str]]:
    found: list[Accelerator] = []
    notes: list[str] = []
    for node in list_dir(root / "sys/class/drm"):
        if not node.name.startswith("renderD"):
            continue
        bound = read_bound(node / "device")
        if bound.driver in _NOT_HERE:
            continue
        if bound.driver not in _DRM:
            what = bound.pci_id or bound.compatible or "nothing else told"
            notes.append(
                f"GPU {node.name} with driver {bound.driver or 'unknown'} ({what}): not known"
            )
            continue
        vendor, unified = _DRM[bound.driver]
        if vendor == "intel":
            unified = bound.slot == _INTEL_INTEGRATED_SLOT
        own_bytes = read_int(node / "device/mem_info_vram_total") or 0  # amdgpu
        model = bound.compatible or f"{bound.driver} {bound.pci_id}".strip()
        found.append(
            Accelerator("gpu", vendor, model, memory_bytes if unified else own_bytes, bool(unified))
        )
    return found, notes
