"""Memory bandwidth, measured by copying in a short-lived child process."""

from __future__ import annotations

import subprocess
import sys

# Larger than the last-level cache of small devices; a big server cache flatters.
_BUFFER_BYTES = 32 * 1024 * 1024
_MEASURE_S = 0.2
_MAX_THREADS = 4

# ctypes.memmove drops the GIL, so threads copy side by side. A copy reads and
# writes each byte, hence the 2 (STREAM "copy" counts the same way).
_CHILD = """
import ctypes, sys, threading, time
size, seconds, threads = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
rates = [0.0] * threads
def copy(i):
    a, b = (ctypes.c_char * size)(), (ctypes.c_char * size)()
    ctypes.memset(a, 1, size); ctypes.memmove(b, a, size)
    gate.wait()
    n, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        ctypes.memmove(b, a, size); n += 1
    rates[i] = 2 * n * size / (time.perf_counter() - start)
gate = threading.Barrier(threads)
workers = [threading.Thread(target=copy, args=(i,)) for i in range(threads)]
[w.start() for w in workers]; [w.join() for w in workers]
print(sum(rates) / 1e9)
"""


def measure_bandwidth_gb_s(cores: int, available_bytes: int) -> float | None:
    """GB/s (10^9) read plus written by up to 4 threads; None when it could not be measured.

    Takes about 0.3 s and at most an eighth of `available_bytes`.
    """
    threads = max(1, min(cores, _MAX_THREADS))
    buffer_bytes = min(_BUFFER_BYTES, available_bytes // (8 * 2 * threads))
    if buffer_bytes < 1024 * 1024:
        return None
    command = [sys.executable, "-I", "-S", "-c", _CHILD]
    command += [str(buffer_bytes), str(_MEASURE_S), str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return round(float(done.stdout), 2)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
