"""One engine child process: command line, output, death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LONGEST_LINE_BYTES = 2000
_NUM_LAST_LINES = 20
# An engine's exit code for a model that it can never serve (agent/llama/serve.py).
_EXIT_MODEL_UNUSABLE = 65


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to load and how; None leaves a choice to the engine."""

    name: str
    file: Path
    socket: Path
    slots: int | None = None
    context_tokens: int | None = None
    threads: int | None = None
    kv_type: str | None = None
    # Folder for KV blocks of all models, and the file with the way to shared ones.
    kv_dir: Path | None = None
    kv_shared: Path | None = None
    # The owner's word on sharing: arguments for the engine, as they were given.
    kv_sharing: tuple[str, ...] = ()
    # Folder of the device's certificate, which verifiers want to see.
    identity_dir: Path | None = None
    extra_arguments: tuple[str, ...] = ()
    measure: bool = True
    # Hex hash of a file that the hub ordered; empty: the owner's own.
    sha256: str = ""
    # `--companion`'s argument: another server serves the model, and there is no file.
    companion: str = ""
    # It may be started, or come back, at any time: never given up.
    patient: bool = False


def engine_command(spec: EngineSpec) -> list[str]:
    """The command line of the engine process, or of the companion in its place."""
    if spec.companion:
        return _companion_command(spec)
    command = [sys.executable, "-m", "agent.llama.serve", "--socket", str(spec.socket)]
    command += ["--model", str(spec.file), "--name", spec.name]
    for option, value in (
        ("--slots", spec.slots),
        ("--context", spec.context_tokens),
        ("--threads", spec.threads),
        ("--kv-type", spec.kv_type),
        ("--kv-dir", spec.kv_dir),
        ("--kv-shared", spec.kv_shared),
        ("--identity", spec.identity_dir),
    ):
        if value is not None:
            command += [option, str(value)]
    if not spec.measure:
        command.append("--no-measure")
    return [*command, *spec.kv_sharing, *spec.extra_arguments]


def _companion_command(spec: EngineSpec) -> list[str]:
    command = [sys.executable, "-m", "agent.companion.serve", "--socket", str(spec.socket)]
    command += ["--companion", spec.companion, "--name", spec.name]
    return command if spec.measure else [*command, "--no-measure"]


class EngineProcess:
    """A running child; its stderr goes on to ours, and its last words are kept."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._echo = asyncio.create_task(self._echo_stderr())

    @classmethod
    async def spawn(cls, command: Sequence[str], socket: Path) -> EngineProcess:
        """Start the child in a session of its own; OSError when it cannot be started.

        Its own session: Ctrl-C in a terminal reaches the agent only, which then
        says goodbye before the engines end. The child ends by itself when we die.
        """
        socket.unlink(missing_ok=True)  # noqa: ASYNC240 - one local unlink takes microseconds
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LONGEST_LINE_BYTES,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def says_hopeless(self) -> bool:
        """Whether the child ended because its model can never be served."""
        return self._process.returncode == _EXIT_MODEL_UNUSABLE

    async def wait(self) -> str:
        """Wait for the end and return the reason: the signal's name or the last stderr line."""
        code = await self._process.wait()
        await asyncio.wait([self._echo], timeout=1.0)
        last_line = self._last_lines[-1] if self._last_lines else ""
        if code < 0:
            return f"killed by {_signal_name(-code)}"
        return last_line or f"exit code {code}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a child that is gone is no error."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _echo_stderr(self) -> None:
        stream = self._process.stderr
        if stream is None:
            return
        while chunk := await _read_line(stream):
            with contextlib.suppress(OSError):  # our own reader is gone: keep the child's flowing
                os.write(sys.stderr.fileno(), chunk)
            line = chunk.decode(errors="replace").strip()
            if line:
                self._last_lines.append(line[:_LONGEST_LINE_BYTES])


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or part of one that is longer than the limit; empty at the end."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.read(max(1, error.consumed))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
