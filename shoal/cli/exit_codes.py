"""Exit codes of `shoal`; stable, and described in docs/exit-codes.md."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Why a command ended. Values are never reused for another meaning."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    PORT_IN_USE = 4
    START_FAILED = 5
    UNREACHABLE = 6
    NOT_ALLOWED = 7
    NOT_FOUND = 8
    REFUSED = 9
    BUSY = 10
    DOCTOR_FOUND = 11
    STOP_INCOMPLETE = 12
    ALREADY_RUNNING = 13
    INTERRUPTED = 130


class CliError(Exception):
    """A command that cannot go on: what is wrong, what to do, and the exit code."""

    def __init__(self, code: ExitCode, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
