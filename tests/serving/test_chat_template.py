"""Chat templates render as Jinja does, the same in every process, and say no in one way."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jinja2.ext
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trieway.serving.chat_template import (
    RENDERER_VERSION,
    SOURCE_CHARS_MAX,
    ChatTemplate,
    TemplateInvalid,
    render_prompt,
    template_digest,
)
from trieway.serving.errors import BadRequest
from trieway.serving.peek import Peeked, peek
from trieway.serving.sandbox import Generation
from trieway.serving.schema import parse_chat

from .templates import ALL, ALTERNATING, CHATML, DATED_TOOLS

NOW = 1_767_225_599.9  # the last second of 2025, UTC
HELLO = [{"role": "user", "content": "Hello"}]


@cache
def plain(source: str) -> jinja2.Template:
    """Plain Jinja, set up as the chat-template convention says."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    at = datetime.datetime.fromtimestamp(int(NOW), datetime.UTC)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.globals |= {"raise_exception": refuse, "strftime_now": at.strftime}
    return environment.from_string(source)


def reference(source: str, messages: list[dict[str, Any]], **extra: Any) -> str:
    variables = {"tools": None, "documents": None, "add_generation_prompt": True, **extra}
    return plain(source).render(messages=messages, bos_token="<s>", eos_token="</s>", **variables)


@cache
def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>")


def ours(source: str, messages: list[dict[str, Any]], **extra: Any) -> str:
    return compiled(source).render(messages, now=NOW, extra=extra)


words = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40)
roles = st.sampled_from(["system", "user", "assistant", "tool", "skip", "stop"])
chats = st.lists(st.fixed_dictionaries({"role": roles, "content": words}), min_size=1, max_size=6)


@pytest.mark.parametrize("name", ["chatml", "dated_tools", "loop_controls"])
@given(messages=chats)
@settings(deadline=None, max_examples=60)
def test_the_text_is_what_plain_jinja_gives(name: str, messages: list[dict[str, Any]]) -> None:
    assert ours(ALL[name], messages) == reference(ALL[name], messages)


@given(texts=st.lists(words, min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_generation_blocks_and_alternation(texts: list[str]) -> None:
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
    assert ours(ALTERNATING, messages) == reference(ALTERNATING, messages)


def test_tools_a_date_and_tool_calls() -> None:
    tools = [{"type": "function", "function": {"name": "weather", "description": "é <b>", "parameters": {"x": [1]}}}]
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    messages = [
        {"role": "system", "content": "  Be brief. "},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    text = ours(DATED_TOOLS, messages, tools=tools)
    assert text == reference(DATED_TOOLS, messages, tools=tools)
    assert text.startswith("<s><|start|>system<|end|>")
    assert "Today is 31 Dec 2025" in text
    assert '"parameters": {"city": "Zürich"}' in text
    assert "<b>" in text, "tojson is plain JSON"
    assert "1 calls: WEATHER" in text


def test_the_packaged_style_template() -> None:
    assert ours(CHATML, HELLO) == (
        "<|im_start|>system\nYou are a careful assistant<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    without = ChatTemplate(CHATML).render(HELLO, now=NOW, add_generation_prompt=False)
    assert without.endswith("Hello<|im_end|>\n")


@pytest.mark.model
def test_the_packaged_model_s_own_template(smollm2_dir: Path) -> None:
    source = json.loads((smollm2_dir / "tokenizer_config.json").read_text())["chat_template"]
    messages = [{"role": ("user", "assistant")[at % 2], "content": f"<b>{at}</b>\n é 你好 "} for at in range(5)]
    assert ours(source, messages) == reference(source, messages)
    assert ours(source, messages).endswith("<|im_start|>assistant\n")


def test_the_clock_is_whole_seconds_in_utc_and_seen_in_the_source() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}")
    assert template.reads_clock
    assert ChatTemplate(DATED_TOOLS).reads_clock
    assert not ChatTemplate(CHATML).reads_clock
    assert template.render(HELLO, now=NOW) == "2025-12-31 23:59:59" == template.render(HELLO, now=int(NOW))


@pytest.mark.parametrize("pattern", ["'%100000d'", "'%_5d'", "'%'", "5", "'x' * 300"])
def test_the_clock_refuses_other_patterns(pattern: str) -> None:
    with pytest.raises(BadRequest, match="strftime_now"):
        ChatTemplate("{{ strftime_now(" + pattern + ") }}").render(HELLO, now=NOW)


def test_processes_agree_whatever_their_time_zone_locale_and_hash_seed() -> None:
    program = (
        "import sys, json; from trieway.serving.chat_template import ChatTemplate;"
        "source, messages, tools = json.load(sys.stdin);"
        "template = ChatTemplate(source, '<s>', '</s>');"
        "print(json.dumps(template.render(messages, now=1767225599.9, extra={'tools': tools})))"
    )
    messages = [{"role": "user", "content": "naïve 你好 🙂"}]
    tools = [{"b": 1, "a": {"z": None, "y": [True, 1.5]}}]
    texts = set()
    for zone, seed, locale in (("Asia/Tokyo", "1", "C"), ("America/New_York", "2", "C.UTF-8")):
        run = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps([DATED_TOOLS, messages, tools]),
            env={**os.environ, "TZ": zone, "PYTHONHASHSEED": seed, "LC_ALL": locale},
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(json.loads(run.stdout))
    assert texts == {ours(DATED_TOOLS, messages, tools=tools)}


def test_a_template_may_refuse_messages() -> None:
    with pytest.raises(BadRequest, match="Roles must alternate") as caught:
        ours(ALTERNATING, [{"role": "assistant", "content": "hi"}])
    assert caught.value.param == "messages"
    assert caught.value.code == "chat_template_error"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.nothing.more }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ messages['x'] + 1 }}",
        "{% include 'other' %}",
        "{{ undefined_function() }}",
        "{{ [1][9] + 1 }}",
        "{{ '\\ud800' }}",
        "{{ messages|nonesuch }}",
        "{{ raise_exception(messages) }}",
    ],
)
def test_a_template_that_fails_refuses_the_request(source: str) -> None:
    try:
        template = ChatTemplate(source)
    except TemplateInvalid:
        return
    with pytest.raises(BadRequest) as caught:
        template.render(HELLO, now=NOW)
    assert len(caught.value.message) <= 500
    assert ChatTemplate("{{ messages[0].content }}").render(HELLO, now=NOW) == "Hello", "the next one works"


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ 'open", "{% endif %}", "{{ %text }}", "{{ x | %add(1) }}", "{% from x import y"]
)
def test_a_template_that_does_not_parse(source: str) -> None:
    with pytest.raises(TemplateInvalid, match="chat template"):
        ChatTemplate(source)


def test_a_template_too_long_or_too_deep() -> None:
    with pytest.raises(TemplateInvalid, match="more than"):
        ChatTemplate("x" * (SOURCE_CHARS_MAX + 1))
    with pytest.raises(TemplateInvalid):
        ChatTemplate("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")
    with pytest.raises(TemplateInvalid):
        ChatTemplate("{% if 1 %}" * 3000 + "{% endif %}" * 3000)


def test_extra_variables_reach_the_template_but_reserved_ones_do_not() -> None:
    template = ChatTemplate("{{ enable_thinking }}{{ tools }}{{ add_generation_prompt }}")
    extra = {"enable_thinking": False, "tools": [], "add_generation_prompt": False}
    assert template.render(HELLO, now=NOW, extra=extra) == "False[]False"
    for name in ("messages", "bos_token", "eos_token", "raise_exception", "strftime_now"):
        with pytest.raises(BadRequest) as caught:
            template.render(HELLO, now=NOW, extra={name: "x"})
        assert caught.value.param == "chat_template_kwargs"


def test_rendering_changes_no_message() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"], "audio": None}]
    before = json.dumps(messages)
    prompt = render_prompt(Peeked(messages=messages), ChatTemplate(CHATML), NOW)
    assert "user\na\nb<|im_end|>" in prompt
    assert json.dumps(messages) == before


bodies = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries(
                {
                    "role": st.sampled_from(["system", "user", "assistant"]),
                    "content": st.none()
                    | words
                    | st.lists(words | st.fixed_dictionaries({"type": st.just("text"), "text": words}), max_size=3),
                },
                optional={"name": words, "refusal": st.none(), "unknown": words, "tool_calls": st.just([])},
            ),
            min_size=1,
            max_size=5,
        )
    },
    optional={
        "add_generation_prompt": st.booleans() | st.none(),
        "chat_template_kwargs": st.just({"date_string": "d"}),
    },
)


@given(body=bodies, ascii_json=st.booleans())
@settings(deadline=None, max_examples=150)
def test_router_and_worker_get_equal_bytes_from_one_body(body: dict[str, Any], ascii_json: bool) -> None:
    raw = json.dumps(body, ensure_ascii=ascii_json).encode()
    for source in (CHATML, DATED_TOOLS):
        template = compiled(source)
        assert render_prompt(peek(raw, "chat"), template, NOW) == render_prompt(parse_chat(raw), template, NOW)


def test_digests_name_sources() -> None:
    assert ChatTemplate(CHATML).digest == template_digest(CHATML) != template_digest(CHATML + " ")
    assert template_digest(None) != template_digest("")
    assert RENDERER_VERSION.startswith("1-jinja3.")


def test_a_shared_beginning_renders_to_a_shared_beginning() -> None:
    first = [{"role": "system", "content": "S" * 300}, {"role": "user", "content": "one"}]
    longer = [*first, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    text = ours(CHATML, first)
    assert ours(CHATML, longer).startswith(text + "two")
