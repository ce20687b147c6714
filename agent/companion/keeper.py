"""Keeps one server process and all that it starts: `python -I -S keeper.py COMMAND...`.

Runs between the agent's side and the server, so that a server started by a shell script, or
whose starter is killed, never outlives it with the port in its hands. Standard library only.
Ends as the server ends: same exit code, or 128 + the signal's number.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

# A model server writes no state worth more time than this.
_GRACE_S = 3.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run the command in a session of its own until it, or whoever started us, ends."""
    parent = os.getppid()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    server: subprocess.Popen[bytes] | None = None
    try:
        # A server that goes into the background would be ended here: it must stay in front.
        server = subprocess.Popen(command, start_new_session=True)
        code = server.wait()
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        return 127
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if server is not None:
            _end_session(server)
    return code if code >= 0 else 128 - code


def _leave(_number: int, _frame: object) -> None:
    raise SystemExit(0)


def _end_session(server: subprocess.Popen[bytes]) -> None:
    """End the server and all that it started: politely, then for good."""
    for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, 1.0)):
        if not _signal(server.pid, number):
            return
        ends_s = time.monotonic() + patience_s
        while time.monotonic() < ends_s:
            server.poll()  # a dead leader counts as there until it is waited for
            if not _signal(server.pid, 0):
                return
            time.sleep(_POLL_S)


def _signal(group: int, number: int) -> bool:
    """Whether there was anything to signal; what changed its user is not ours to end."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
