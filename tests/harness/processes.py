"""What other processes are, of which some end while one looks."""

from __future__ import annotations

import psutil


def command_line(process: psutil.Process) -> str:
    """The process's arguments; empty when it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # a zombie is one too
        return ""
