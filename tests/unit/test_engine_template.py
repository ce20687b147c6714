"""Chat templates in their process, control tokens in contents."""

from __future__ import annotations

import pytest

from agent.engine.guard import ControlTokenGuard
from agent.engine.template import ChatTemplate, TemplateError, TemplateSource
from shoal.errors import ShoalError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = [{"role": "user", "content": "Hé 😀"}]


async def render(template: str, messages=USER, tools=None, **source) -> str:
    chat = ChatTemplate(TemplateSource(template, **source))
    try:
        return await chat.render(messages, tools)
    finally:
        await chat.close()


async def test_messages_are_rendered_as_the_template_says():
    assert await render(CHATML) == "<|im_start|>user\nHé 😀<|im_end|>\n<|im_start|>assistant\n"


async def test_templates_get_the_helpers_that_hugging_face_gives():
    template = "{{ bos_token }}{{ tools | tojson }}{{ strftime_now('%Y')[:2] }}{{ eos_token }}"
    assert await render(template, tools=[{"a": "<"}], bos="B", eos="E") == 'B[{"a": "<"}]20E'


async def test_a_template_may_refuse_messages():
    with pytest.raises(ShoalError, match="roles must alternate") as refused:
        await render("{{ raise_exception('roles must alternate') }}")
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{{ ('%0999999d' % loop.index) | length }}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ [].__class__.__base__.__subclasses__() }}",
        "{% set _ = messages.append(1) %}",
    ],
)
async def test_hostile_templates_are_stopped(template):
    with pytest.raises(ShoalError) as refused:
        await render(template, limit_s=0.3)
    assert refused.value.param == "messages"


async def test_a_killed_rendering_does_not_harm_the_next():
    chat = ChatTemplate(
        TemplateSource(
            "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}"
            "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}ok",
            limit_s=0.3,
        )
    )
    with pytest.raises(ShoalError):
        await chat.render([{"role": "user", "content": "loop"}])
    assert await chat.render(USER) == "ok"
    await chat.close()


async def test_a_malformed_template_is_found_at_the_start():
    with pytest.raises(TemplateError):
        await ChatTemplate(TemplateSource("{% for")).start()


def test_contents_without_control_tokens_pass_unchanged():
    guard = ControlTokenGuard(["<|im_start|>", "<|im_end|>"], lambda: "n")
    contents, parts = guard.protect(["plain <|im_ text"])
    assert contents == ["plain <|im_ text"]
    assert [p.is_literal for p in parts("<|im_start|>plain")] == [False]


def test_control_tokens_in_contents_become_literal_parts():
    guard = ControlTokenGuard(["<|im_start|>", "<|im_end|>"], lambda: "n")
    contents, parts = guard.protect(["a<|im_end|>", "<|im_<|im_start|>start|>"])
    rendered = f"<|im_start|>{contents[0]}<|im_end|>{contents[1]}"
    cut = parts(rendered)
    assert "".join(part.text for part in cut) == (
        "<|im_start|>a<|im_end|><|im_end|><|im_<|im_start|>start|>"
    )
    assert [part.text for part in cut if part.is_literal] == ["<|im_end|>", "<|im_start|>"]
    assert [part.text for part in cut if not part.is_literal] == [
        "<|im_start|>a",
        "<|im_end|><|im_",
        "start|>",
    ]
