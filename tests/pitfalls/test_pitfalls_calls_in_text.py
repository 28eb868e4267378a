"""Calls and thinking inside the text, as clients of the gateway get them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import Understood, asked, body_of, in_turn, path_of
from gateway.raw import raw
from gateway.running import Running, running
from gateway.scenarios import DONE, END, chunk, lines, message, text_chunk
from gateway.upstream import HostileUpstream, Until, sse, streamed, unfinished
from inband.notations import CALLS, PROSE
from streamglot.inband import FORMATS
from streamglot.inband.engines import WrittenCall

CLIENTS = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "agui", "vercel_ui")
FEW = ("openai_chat", "openai_responses", "anthropic")
TOOLS = ("weather", "time", "ping")
NOTATIONS = sorted(name for name, row in FORMATS.items() if row.engines)
PARIS, ROME = WrittenCall("weather", '{"city": "Paris"}'), WrittenCall("weather", '{"city": "Rome"}')
BOTH = [("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})]


@pytest.fixture(scope="module")
def notations(upstream: HostileUpstream) -> Iterator[Running]:
    """A gateway with an upstream for each notation."""
    chat = upstreams_at(upstream.url, breaker={"failures": 1_000_000})["work"]
    with running({"upstreams": {name: {**chat, "inband": name} for name in [*NOTATIONS, "auto"]}}) as started:
        yield started


def spoken(text: str, size: int = 1, finish: str = "stop") -> bytes:
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    return sse(*map(text_chunk, pieces), chunk({}, finish), DONE)


def read_by(
    gateway: Running, upstream: HostileUpstream, name: str, via: str, body: bytes, client: str, **more: Any
) -> Understood:
    upstream.scripts[name] = streamed(body)
    return asked(gateway, client, f"{via}/{name}", tools=TOOLS, **more)


def moved(found: Understood, client: str) -> str:
    """The text, with what a dialect folds into thinking because text must not follow a call."""
    return found.text + found.reasoning if client == "anthropic" else found.text


# --- thinking

THOUGHTS = {
    "tags_in_pieces": (["<thi", "nk>Hm", ".</th", "ink>", "Hello"], "Hm.", "Hello"),
    "tag_and_text_in_one_chunk": (["<think>Hm.</think>Hello"], "Hm.", "Hello"),
    "tag_at_the_end_of_a_chunk": (["Well: <think>", "Hm.", "</think> Hello"], "Hm.", "Well:  Hello"),
    "tag_at_the_beginning_of_a_chunk": (["<think>Hm.", "</think>Hello"], "Hm.", "Hello"),
    "never_closed": (["<think>", "Hm. And"], "Hm. And", ""),
    "never_opened": (["</think>", "Hello"], "", "Hello"),
    "two_thoughts": (["<think>One.</think>Hello<think>", "Two.</think> world"], "One.Two.", "Hello world"),
    "in_a_fence": (["So:\n```\n<think>no", "</think>\n```\nDone."], "", "So:\n```\n<think>no</think>\n```\nDone."),
    "half_a_tag_at_the_end": (["1 < 2 <thi"], "", "1 < 2 <thi"),
    "no_tag_at_all": (["<b>bold</b> <thinker>"], "", "<b>bold</b> <thinker>"),
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_thinking_is_found_wherever_its_tags_are_cut(notations: Running, upstream: HostileUpstream, name: str) -> None:
    """pydantic-ai#3007, #7865: a tag counted only if it was exactly one chunk, and the chunk that held it was dropped."""
    pieces, reasoning, text = THOUGHTS[name]
    bodies = (sse(*map(text_chunk, pieces), END, DONE), spoken("".join(pieces)), spoken("".join(pieces), 10_000))
    for body, client in in_turn(bodies, CLIENTS):
        found = read_by(notations, upstream, f"thought-{name}", "hermes", body, client)
        assert (found.error, found.calls, found.reasoning, found.text) == (None, [], reasoning, text), (client, body)


@pytest.mark.parametrize("client", FEW)
def test_thinking_that_the_template_opened_is_found(notations: Running, upstream: HostileUpstream, client: str) -> None:
    """The prompt ends with the opening tag, so that the answer begins inside of the thinking and only closes it."""
    body = sse(*map(text_chunk, ("Hm", ".</th", "ink>", "Hello")), END, DONE)
    found = read_by(notations, upstream, "DeepSeek-R1-Distill-opened", "deepseek_r1_tools", body, client)
    assert (found.reasoning, found.text) == ("Hm.", "Hello")


@pytest.mark.parametrize("client", FEW)
def test_thinking_in_the_text_of_other_wires_is_found(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    """The same tags over another wire: an Ollama server that does not know the model."""
    body = lines(*(message(content=piece) for piece in ("<thi", "nk>Hm.</thi", "nk>Hel", "lo")), message(True))
    upstream.scripts["thinking-ollama"] = streamed(body, media_type="application/x-ndjson")
    found = asked(gateway, client, "box/thinking-ollama", tools=TOOLS)
    assert (found.reasoning, found.text) == ("Hm.", "Hello")


# --- calls


@pytest.mark.parametrize("name", NOTATIONS)
def test_both_calls_and_the_text_around_them_arrive_without_markup(
    notations: Running, upstream: HostileUpstream, name: str
) -> None:
    """The second call, or the text after a call, was lost elsewhere; half a tag stood in the text."""
    row = FORMATS[name]
    closer = row.think.closers[0] if row.think.starts else ""
    before = PROSE.get(name, ("{}\n",))[0].format("I look.")
    text = closer + before + CALLS.get(name, "{}").format(row.write([PARIS, ROME]))
    for size, client in in_turn((1, 7, 10_000), FEW):
        found = read_by(notations, upstream, f"both-{name}-{size}", name, spoken(text, size), client)
        assert (found.error, found.calls) == (None, BOTH), (size, client)
        assert (found.text + found.reasoning).strip() == "I look.", (size, client)
        assert found.finish in ("tool_calls", None)


@pytest.mark.parametrize("client", CLIENTS)
def test_text_between_and_after_calls_is_kept(notations: Running, upstream: HostileUpstream, client: str) -> None:
    one, two = (f'<tool_call>{{"name": "weather", "arguments": {{"city": "{city}"}}}}</tool_call>' for city in ("Paris", "Rome"))
    for size in (1, 10_000):
        body = spoken(f"First. {one} Between. {two} Behind.", size)
        found = read_by(notations, upstream, f"between-{size}", "hermes", body, client)
        assert found.calls == BOTH
        for word in ("First.", "Between.", "Behind."):
            assert word in moved(found, client)


TAGS = ("<b>bold</b>", "<weather_report>x</weather_report>", "<search><query>x</query></search>", "<div>")


@pytest.mark.parametrize("via", ["tool_tags", "hermes", "minicpm5", "qwen3_coder"])
def test_only_a_declared_tool_becomes_a_call(notations: Running, upstream: HostileUpstream, via: str) -> None:
    """Elsewhere every tag became a tool, ``<b>`` and ``<think>`` among them."""
    for tag, client in in_turn(TAGS, CLIENTS):
        body = spoken(f"</think>So: {tag} it is." if FORMATS[via].think.starts else f"So: {tag} it is.", 3)
        found = read_by(notations, upstream, f"tag-{via}-{tag[1:4]}", via, body, client)
        assert (found.error, found.calls, found.text) == (None, [], f"So: {tag} it is."), client


BROKEN = {
    "tool_tags": "<weather><city>Paris</weather>",
    "hermes": "<tool_call>no json</tool_call>",
    "generic_json": '{"name": "weather", "arguments": ',
    "pythonic": '[weather(city="Paris"',
}


@pytest.mark.parametrize("via", BROKEN)
def test_broken_markup_is_text_and_never_a_call_without_arguments(
    notations: Running, upstream: HostileUpstream, via: str
) -> None:
    text = f"I look. {BROKEN[via]}"
    for size, client in in_turn((1, 10_000), CLIENTS):
        found = read_by(notations, upstream, f"broken-{via}-{size}", via, spoken(text, size), client)
        assert (found.calls, found.text) == ([], text), (size, client)


@pytest.mark.parametrize("client", CLIENTS)
def test_held_text_is_not_lost_when_the_stream_breaks(notations: Running, upstream: HostileUpstream, client: str) -> None:
    """The whole answer was lost elsewhere when the end marker never came."""
    upstream.scripts["held-and-cut"] = unfinished(sse(*map(text_chunk, ("I look. ", "<tool_", "ca"))))
    found = asked(notations, client, "hermes/held-and-cut", tools=TOOLS)
    assert found.error is not None
    assert found.text == "I look. <tool_ca"
    assert found.calls == []


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama"])
def test_text_leaves_before_the_turn_has_ended(notations: Running, upstream: HostileUpstream, client: str) -> None:
    """Elsewhere everything was held until the end of the turn, because it might still have become a call."""
    go_on = threading.Event()
    name = f"flows-{client}"
    upstream.scripts[name] = streamed(sse(text_chunk("I look at")), Until(go_on), sse(text_chunk(" it."), END, DONE))
    with raw(notations.port) as connection:
        connection.post(path_of(client, f"hermes/{name}"), body_of(client, f"hermes/{name}", True, TOOLS))
        before = connection.read_until(b"I look")
        go_on.set()
        assert b"I look" in before
        assert b" it." in connection.read_until(b" it.")


SMALL_MODEL = {
    "fenced": '```json\n{"name": "weather", "arguments": {"city": "Paris"}}\n```',
    "doubled_braces": '{{"name": "weather", "arguments": {{"city": "Paris"}}}}',
    "bare": '{"name": "weather", "arguments": {"city": "Paris"}}',
    "in_tags": '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
}


@pytest.mark.parametrize("form", SMALL_MODEL)
def test_a_small_model_that_writes_json_is_understood(notations: Running, upstream: HostileUpstream, form: str) -> None:
    """Qwen2.5-Coder 1.5B writes its calls as fenced JSON; llama.cpp recovered none of six."""
    name = f"Qwen2.5-Coder-1.5B-Instruct-{form}"
    for size, client in in_turn((1, 5, 10_000), CLIENTS[:-1]):  # the last declares no tools in its request
        found = read_by(notations, upstream, name, "auto", spoken(SMALL_MODEL[form], size), client)
        assert (found.calls, found.text.strip()) == ([("weather", {"city": "Paris"})], ""), (size, client)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_tool_that_the_thinking_mentions_is_not_called(notations: Running, upstream: HostileUpstream, client: str) -> None:
    """Elsewhere tools ran because the model wrote about them while it was thinking."""
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    found = read_by(notations, upstream, "thought-call-tags", "hermes", spoken(f"<think>Or {call}?</think>No.", 4), client)
    assert (found.calls, found.text, found.reasoning) == ([], "No.", f"Or {call}?")
    field = sse(chunk({"reasoning_content": f"Or {call}?"}), text_chunk("No."), END, DONE)
    found = read_by(notations, upstream, "thought-call-field", "hermes", field, client)
    assert (found.calls, found.text, found.reasoning) == ([], "No.", f"Or {call}?")
