"""The loaded llama.cpp library as a whole: its log, its abort, its version."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from importlib import metadata
from typing import NoReturn

import llama_cpp.llama_cpp as llama
import structlog
from llama_cpp._ggml import libggml

log = structlog.get_logger()

# ggml_log_level: 3 is a warning, 4 an error; 1 is debug, 5 continues the last line.
_WARNING, _ERROR, _CONTINUED = 3, 4, 5
# Exit codes of the engine process, beside 0.
EXIT_MODEL_UNUSABLE = 65  # EX_DATAERR
EXIT_FATAL = 70  # EX_SOFTWARE


def fatal(reason: str, code: int) -> NoReturn:
    """End the process at once; the reason is the last line on stderr."""
    sys.stderr.write(f"shoal engine: {' '.join(reason.split())}\n")
    sys.stderr.flush()
    os._exit(code)


class LibraryLog:
    """What llama.cpp says: errors kept for exit messages, the rest for the report."""

    def __init__(self) -> None:
        self.recent_errors: deque[str] = deque(maxlen=5)
        self.load_lines: list[str] = []
        self._keeps_lines = True
        self._last_level = 0

    def take(self, level: int, text: str) -> None:
        """Record one line; warnings and errors are logged."""
        level = self._last_level if level == _CONTINUED else level
        self._last_level = level
        line = text.strip()
        if not line or line == ".":
            return
        if level >= _ERROR:
            self.recent_errors.append(line)
            log.warning("llama_error", text=line)
        elif level == _WARNING:
            log.info("llama_warning", text=line)
        if self._keeps_lines:
            self.load_lines.append(line)

    def stop_keeping_lines(self) -> None:
        """Loading is over; nothing more is kept for the report."""
        self._keeps_lines = False


# Callbacks must outlive the library's use of them.
_callbacks: list[object] = []


def open_library() -> LibraryLog:
    """Initialise llama.cpp for this process.

    Effects: its log goes through structlog, and a failed assertion inside it ends
    the process with the assertion as the last line on stderr.
    """
    library_log = LibraryLog()

    def on_log(level: int, text: bytes, _user_data: object) -> None:
        library_log.take(level, text.decode(errors="replace"))

    def on_abort(message: bytes) -> None:
        fatal(f"llama.cpp aborted: {message.decode(errors='replace')}", EXIT_FATAL)

    log_callback = llama.llama_log_callback(on_log)
    abort_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(on_abort)
    _callbacks.extend((log_callback, abort_callback))
    llama.llama_log_set(log_callback, ctypes.c_void_p(0))
    libggml.ggml_set_abort_callback.restype = ctypes.c_void_p
    libggml.ggml_set_abort_callback(abort_callback)
    llama.llama_backend_init()
    return library_log


def library_version() -> str:
    """Version of the Python package, which pins llama.cpp's own."""
    return metadata.version("llama-cpp-python")


# include/llama.h: LLAMA_STATE_SEQ_VERSION of the pinned release.
STATE_SEQ_VERSION = 3


def system_features() -> list[str]:
    """Instruction sets and kernels the library was built with, e.g. ["AVX2", "REPACK"]."""
    text = llama.llama_print_system_info().decode()
    features = []
    for entry in text.split("|"):
        name, _, value = entry.rpartition(":")[2].partition("=")
        if value.strip() not in ("", "0"):
            features.append(name.strip())
    return features
