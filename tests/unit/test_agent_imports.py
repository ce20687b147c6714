from __future__ import annotations

import subprocess
import sys


def test_agent_loads_no_engine_no_ray_and_no_command_line() -> None:
    heavy = ("llama_cpp", "ray", "typer", "numpy", "redis", "httpx")
    code = f"import agent.app, sys; print(*[m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
