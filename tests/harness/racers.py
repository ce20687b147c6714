"""Devices that race for one join token: the agent's own enrolment, many at once in a process.

    python -m tests.harness.racers URL FOLDER NAME NAME ...

Reads the token from stdin, says `ready`, waits for another line, then all enrol. Prints one
JSON object: by name 0 and the device's id, or the agent's exit code and its words.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from agent.rpc.enrol import JoinRequest, enrol
from agent.rpc.identity import IdentityStore
from agent.session.errors import AgentError
from agent.session.join_token import JoinToken


async def _race(url: str, folder: Path, token: JoinToken, names: list[str]) -> None:
    async def join(name: str) -> tuple[int, str]:
        try:
            identity = await enrol(JoinRequest(url, token, name), IdentityStore(folder / name))
        except AgentError as error:
            return int(error.exit_code), error.message
        return 0, identity.device_id

    results = await asyncio.gather(*map(join, names))
    print(json.dumps(dict(zip(names, results, strict=True))))


def main() -> None:
    """Command line."""
    url, folder, *names = sys.argv[1:]
    token = JoinToken.parse(sys.stdin.readline())
    print("ready", flush=True)
    sys.stdin.readline()
    asyncio.run(_race(url, Path(folder), token, names))


if __name__ == "__main__":
    main()
