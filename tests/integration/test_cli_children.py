"""Children of the supervisor, as real processes."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from shoal.cli.children import Launch, RunningChild, StartError, start_child
from shoal.cli.processes import is_alive
from shoal.home import Home

READY = 'print(\'{"stage": "ready", "port": 7}\', flush=True)'
SLEEP = "import time; time.sleep(120)"


async def start(tmp_path: Path, code: str, *, grace_s: float = 10) -> RunningChild:
    home = Home(tmp_path)
    home.make_private_dirs()
    launch = Launch("child", "agent", (sys.executable, "-c", code), grace_s)
    return await start_child(home, "fleet", launch)


def has(child: RunningChild, stage: str) -> bool:
    return any(each["stage"] == stage for each in child.new_stages())


async def test_stage_lines_are_read_and_other_output_is_passed_over(tmp_path: Path) -> None:
    child = await start(tmp_path, f"print('[1, 2]'); print('noise'); {READY}; {SLEEP}")
    seen: list[dict[str, object]] = []

    def done() -> bool:
        seen.extend(child.new_stages())
        return bool(seen)

    await child.until(done, limit_s=30)
    assert seen == [{"stage": "ready", "port": 7}]
    assert child.new_stages() == []
    await child.stop()


async def test_child_that_ends_first_is_reported_with_its_last_words(tmp_path: Path) -> None:
    child = await start(tmp_path, "import sys; sys.exit('no model file')")
    with pytest.raises(StartError, match=r"child ended with exit status 1: no model file") as end:
        await child.until(lambda: has(child, "ready"), limit_s=30)
    assert end.value.exit_status == 1


async def test_stage_said_just_before_the_end_still_counts(tmp_path: Path) -> None:
    child = await start(tmp_path, READY)
    await child.wait()
    await child.until(lambda: has(child, "ready"), limit_s=30)


async def test_silent_child_is_given_up_in_time(tmp_path: Path) -> None:
    child = await start(tmp_path, SLEEP)
    with pytest.raises(StartError, match="was not ready within"):
        await child.until(lambda: has(child, "ready"), limit_s=0.2)
    await child.stop()


async def test_signal_is_named(tmp_path: Path) -> None:
    child = await start(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "ended with signal SIGKILL" in await child.describe_end()


async def test_stop_kills_the_whole_family_of_a_stubborn_child(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"subprocess.Popen([sys.executable, '-c', '{SLEEP}']); {READY}; {SLEEP}"
    )
    child = await start(tmp_path, code, grace_s=0.2)
    await child.until(lambda: has(child, "ready"), limit_s=30)
    (grandchild,) = psutil.Process(child.process_id.pid).children()
    await child.stop()
    deadline = time.monotonic() + 10
    while is_alive(grandchild) and time.monotonic() < deadline:
        pass
    assert not is_alive(grandchild)
