"""docs/exit-codes.md against the code."""

import re
from enum import IntEnum
from pathlib import Path

import pytest

from agent.session.errors import ExitCode as AgentExitCode
from shoal.cli.exit_codes import ExitCode

DOCUMENT = (Path(__file__).parents[2] / "docs" / "exit-codes.md").read_text()


@pytest.mark.parametrize(
    ("heading", "codes"), [("## `shoal`", ExitCode), ("## The agent", AgentExitCode)]
)
def test_every_exit_code_is_documented(heading: str, codes: type[IntEnum]) -> None:
    section = DOCUMENT.split(heading)[1].split("\n## ")[0]
    documented = {int(number): name for number, name in re.findall(r"\| (\d+) \| `(\w+)`", section)}
    assert documented == {code.value: code.name for code in codes}
