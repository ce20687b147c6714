"""200 hostile model files, and templates: each ends, with a name, in a child of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.engine.template import ChatTemplate, TemplateError, TemplateSource
from shoal.errors import ShoalError
from shoal.gguf import GgufFault
from tests.harness.hostile_gguf import FAMILIES, HOSTILE_TEMPLATES, hostile_files
from tests.harness.hostile_trial import LIMIT_S, Zygote
from tests.harness.tiny_llama_model import write_tiny_llama_model

NUM_FILES = 200
# Those that try to get out, and some that do not end; `bench.hostile_files` tries all.
TEMPLATES = [
    template
    for number, template in enumerate(HOSTILE_TEMPLATES)
    if "{mark}" in template or "7 * 7" in template or number % 8 == 0
]


@pytest.fixture(scope="module")
def zygote() -> Zygote:
    return Zygote()


def test_valid_file_is_computed_with(zygote: Zygote, tmp_path: Path) -> None:
    trial = zygote.try_file(write_tiny_llama_model(tmp_path / "Valid.F32.gguf"))
    assert (trial.stage, trial.words) == ("serves", "4 tokens")


def test_every_hostile_file_ends_with_a_name_and_in_time(zygote: Zygote, tmp_path: Path) -> None:
    valid = write_tiny_llama_model(tmp_path / "Valid.F32.gguf").read_bytes()
    path = tmp_path / "Hostile.F32.gguf"
    families, stages = set(), set()
    for hostile in hostile_files(valid, NUM_FILES, seed=20):
        path.write_bytes(hostile.content)
        trial = zygote.try_file(path)
        families.add(hostile.family)
        stages.add(trial.stage)
        assert trial.stage != "timeout", hostile.family
        assert trial.words, hostile.family
        assert trial.seconds < 2 * LIMIT_S
        if trial.stage == "scan":
            GgufFault(trial.words)
    assert len(families) == len(FAMILIES)
    assert {"scan", "serves"} <= stages


async def test_no_hostile_template_gets_out_of_its_process(tmp_path: Path) -> None:
    mark = tmp_path / "escaped"
    ends: list[str] = []
    refusals: list[str] = []
    for template in TEMPLATES:
        chat = ChatTemplate(TemplateSource(template.replace("{mark}", str(mark)), limit_s=0.3))
        try:
            await chat.start()
            ends.append(await chat.render([{"role": "user", "content": "{{ 7 * 7 }}"}]))
        except (TemplateError, ShoalError) as error:
            refusals.append(str(error))
        finally:
            await chat.close()
    assert not mark.exists()
    assert all(refusals)
    assert len(ends) + len(refusals) == len(TEMPLATES)
    # What a user writes is never taken for a template.
    assert "{{ 7 * 7 }}{{ 7 * 7 }}" in ends
    assert not any("root:" in text or "49" in text for text in ends)
