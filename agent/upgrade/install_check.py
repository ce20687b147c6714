"""The options of the install script, checked before it changes anything.

Run from the wheel itself (`python -m agent.upgrade.install_check`), before there is an
environment: the standard library only. Prints `problem:` and `remedy:` lines on stderr;
exits 1 when there is one. What passes here is written into agent.args, where a wrong value
would keep the agent from starting, now and at every later run.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agent.companion.settings import CompanionError, read_companions
from agent.hardware.report import DEVICE_CLASSES
from agent.session.errors import AgentError
from agent.session.local_address import local_address
from shoal.device_names import DEVICE_NAME_RULE, may_name_a_device
from shoal.gguf import GgufError, read_header
from shoal.model_names import catalogue_name

Problems = Iterator[tuple[str, str]]


def name_problems(name: str) -> Problems:
    """Whether the hub will take the device's name."""
    if not may_name_a_device(name):
        yield f"--name {name}: {DEVICE_NAME_RULE}", "pass another --name"


def number_problems(option: str, text: str) -> Problems:
    """Whether `text`, empty where the option was not given, is a whole number above 0."""
    # More digits than any memory has room for; int() has no bound of its own.
    if text and re.fullmatch(r"0*[1-9][0-9]{0,8}", text) is None:
        yield (
            f"{option} {text} is not a whole number above 0",
            f"pass one, or {option} auto: fitted to the memory",
        )


def class_problems(text: str) -> Problems:
    """Whether the fleet has such a class of devices."""
    if text and text not in DEVICE_CLASSES:
        yield (
            f"--class {text} is no device class",
            f"one of {', '.join(DEVICE_CLASSES)}, or auto: as detected",
        )


def local_api_problems(text: str) -> Problems:
    """Whether the agent can take this for the address of its own API."""
    try:
        local_address(text, key=True)
    except AgentError as error:
        yield error.message, "the default is --local-api 127.0.0.1:8431"


def companion_problems(argument: str) -> Problems:
    """Whether the description of a companion server can be read and is whole."""
    try:
        read_companions(argument)
    except CompanionError as error:
        yield str(error), "docs/companion.md; without companions: --companion none"


def model_problems(argument: str, served: Sequence[str], fetched: Path) -> Problems:
    """Whether there is such a model: a sound file, or a name that the fleet can give.

    `served`: the files in the fleet's list. `fetched`: where models lie that the agent was
    given by the fleet.
    """
    path = Path(argument)
    if path.is_file():
        try:
            read_header(path)
        except (GgufError, OSError) as error:
            yield f"--model {argument} is no model that can be served: {error}", "a sound GGUF file"
        return
    names = sorted({catalogue_name(file) for file in served})
    here = {known for file in fetched.glob("*.gguf") for known in (file.stem, catalogue_name(file))}
    if argument not in here.union(names):
        yield (
            f"--model {argument} is neither a file nor a model that the fleet hands out",
            f"a GGUF file on this machine, or one of: {', '.join(names) or 'none'}",
        )


def problems(given: argparse.Namespace) -> Problems:
    """All that is wrong with the options, each with its remedy."""
    yield from name_problems(given.name)
    for option, text in (("--slots", given.slots), ("--context", given.context)):
        yield from number_problems(option, text)
    yield from class_problems(given.device_class)
    yield from local_api_problems(given.local_api)
    for argument in _lines(given.companions):
        yield from companion_problems(argument)
    for argument in _lines(given.models):
        yield from model_problems(argument, _lines(given.served), given.fetched)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def main() -> int:
    """Check and report; several values of one option come a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    add: Callable[..., object] = parser.add_argument
    add("--class", dest="device_class", default="")
    add("--fetched", type=Path, required=True)
    for option in ("name", "slots", "context", "local-api", "companions", "models", "served"):
        add(f"--{option}", default="")
    found = list(problems(parser.parse_args()))
    for text, remedy in found:
        print(f"problem: {text}\n remedy: {remedy}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
