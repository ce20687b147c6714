"""Names of ARM cores: MIDR implementer and part (Linux arch/arm64/include/asm/cputype.h)."""

from __future__ import annotations

_PARTS = {
    (0x41, 0xC07): "Cortex-A7",
    (0x41, 0xD03): "Cortex-A53",
    (0x41, 0xD04): "Cortex-A35",
    (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD41): "Cortex-A78",
    (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD44): "Cortex-X1",
    (0x41, 0xD46): "Cortex-A510",
    (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD48): "Cortex-X2",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4B): "Cortex-A78C",
    (0x41, 0xD4D): "Cortex-A715",
    (0x41, 0xD4E): "Cortex-X3",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD80): "Cortex-A520",
    (0x41, 0xD81): "Cortex-A720",
    (0x41, 0xD82): "Cortex-X4",
    (0x48, 0xD01): "TaiShan v110",
    (0x48, 0xD02): "TaiShan v120",
    (0x4E, 0x003): "Denver 2",
    (0x4E, 0x004): "Carmel",
    (0x51, 0x001): "Oryon",
    (0x51, 0x802): "Kryo 3XX Gold",
    (0x51, 0x803): "Kryo 3XX Silver",
    (0x51, 0x804): "Kryo 4XX Gold",
    (0x51, 0x805): "Kryo 4XX Silver",
    (0x61, 0x022): "Icestorm",
    (0x61, 0x023): "Firestorm",
    (0xC0, 0xAC3): "Ampere-1",
    (0xC0, 0xAC4): "Ampere-1a",
}
_ARM = 0x41


def core_name(implementer: str, part: str) -> str:
    """The core's name, or its numbers as they were seen when it has none here."""
    try:
        known = _PARTS.get((int(implementer or "0x41", 16), int(part, 16)))
    except ValueError:
        known = None
    if known:
        return known
    return f"part {part}" if implementer in ("", hex(_ARM)) else f"{implementer} part {part}"
