"""A real agent process, with the test's engine or with the product's."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_ENGINE = Path(__file__).with_name("agent_engine.py")

# The agent with an engine that needs no model.
STUB_MAIN = f"""
import sys
from agent.app import main
from agent.rpc.engine_process import engine_command
def command(spec):
    return [sys.executable, {str(_ENGINE)!r}, *engine_command(spec)[3:]]
sys.exit(main(sys.argv[1:], command))
"""


class AgentProcess:
    """Starts `agent.app` and reads its stage lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.stages: list[dict[str, Any]] = []

    @classmethod
    async def start(cls, arguments: Sequence[str], *, real_engine: bool = False) -> AgentProcess:
        program = ["-m", "agent.app"] if real_engine else ["-c", STUB_MAIN]
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                *program,
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                # Off unless a test asks for it: its default port is one for the whole machine.
                env=os.environ | {"SHOAL_LOCAL_API": "off"},
            )
        )

    async def until(self, stage: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """The next stage line of this name."""
        if self._process.stdout is None:
            raise RuntimeError("no stdout")
        async with asyncio.timeout(timeout_s):
            while line := await self._process.stdout.readline():
                said = json.loads(line)
                self.stages.append(said)
                if said["stage"] == stage:
                    return dict(said)
        raise EOFError(f"the agent ended before {stage}: {self.stages}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def wait(self, timeout_s: float = 20.0) -> int:
        async with asyncio.timeout(timeout_s):
            await self._process.communicate()
            return await self._process.wait()

    async def stop(self) -> None:
        """End it in good order, so that it leaves nothing behind; kill it if it does not."""
        if self._process.returncode is None:
            self._process.terminate()
        try:
            await self.wait(15)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it with SIGKILL, as a crash does."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()
