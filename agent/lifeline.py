"""Child processes that end with whoever started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(expected: int | None, number: signal.Signals = signal.SIGKILL) -> int:
    """Have the kernel send `number` to this process when its parent's thread ends.

    Returns the parent's id; raises ProcessLookupError when it was to be `expected`, or
    whoever it was, and is gone already.
    """
    parent = expected or os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        raise ProcessLookupError("the parent process is gone")
    return parent
