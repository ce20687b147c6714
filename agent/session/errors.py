"""Why an agent gives up, and with which exit code."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Stable exit codes of `python -m agent.app`; service files and the CLI rely on them."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    UNREACHABLE = 10
    TOKEN_EXPIRED = 11
    TOKEN_USED = 12
    TOKEN_FOREIGN = 13
    IMPOSTOR_CA = 14
    NAME_TAKEN = 15
    ENROLMENT_REFUSED = 16
    IDENTITY_UNUSABLE = 17
    REVOKED = 20
    REPLACED = 21
    PROTOCOL = 22
    UNKNOWN_DEVICE = 23
    ALREADY_RUNNING = 30
    MODEL_FILE = 31
    RESTART = 40


class AgentError(Exception):
    """The agent cannot go on; the message names the cause and the remedy."""

    def __init__(self, exit_code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message
