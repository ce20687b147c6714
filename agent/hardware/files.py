"""Reading /proc, /sys and /etc under a root folder, so that recorded trees are tests.

What is missing or unreadable reads as None: a missing sensor is never 0.
"""

from __future__ import annotations

from pathlib import Path


def read_text(path: Path) -> str | None:
    """The file's text without outer white space and NULs; None when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").replace("\0", "").strip()
    except OSError:
        # Sensors answer EIO, EAGAIN or ENODATA when they are asleep, meters EACCES.
        return None


def read_strings(path: Path) -> list[str]:
    """The texts of a device tree property, which a NUL ends each; empty when there are none."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [part.strip() for part in text.split("\0") if part.strip()]


def read_int(path: Path) -> int | None:
    """The file's one decimal number; None when there is none."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def list_dir(path: Path) -> list[Path]:
    """The folder's entries in name order; empty when it does not exist."""
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def read_fields(path: Path) -> dict[str, str]:
    """`Name: value` lines, the first of each name (/proc/meminfo, /proc/<pid>/status)."""
    fields: dict[str, str] = {}
    for line in (read_text(path) or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def kib_to_bytes(value: str | None) -> int | None:
    """`"123 kB"` in bytes; None when it is not that."""
    number = (value or "").removesuffix("kB").strip()
    return int(number) * 1024 if number.isdecimal() else None
