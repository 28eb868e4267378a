"""Framing: every form of server-sent events that upstreams send, in every dialect that uses them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import streamglot
from agents.turns import Call, Turn
from agents.wires import streamed as wire
from agents.wires import whole as whole_body
from gateway.dialect_clients import CLIENT_DIALECTS, asked, in_turn
from gateway.running import Running
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, byte_by_byte, streamed, unfinished, whole
from recordings import Recording, recordings
from split_checks import every_cut
from streamglot import Event, KeepAlive, StreamEnd, StreamError, collect

SSE = [recording for recording in recordings() if recording.body.lstrip().startswith((b"data:", b"event:", b":"))]
SSE_DIALECTS = sorted({recording.dialect for recording in SSE})
WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
ERROR = {"error": {"message": "the model is on fire", "type": "server_error", "code": 500}}


def _frames(body: bytes) -> list[list[bytes]]:
    """The lines of each event of a recording."""
    return [frame.split(b"\n") for frame in body.replace(b"\r\n", b"\n").split(b"\n\n") if frame.strip()]


def _joined(frames: list[list[bytes]]) -> bytes:
    return b"".join(b"\n".join(lines) + b"\n\n" for lines in frames)


def _each_frame(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[bytes], bytes]:
    return lambda body: _joined([change(lines) for lines in _frames(body)])


def _several_data_lines(lines: list[bytes]) -> list[bytes]:
    """Breaks each object behind its first brace and before its last one."""
    objects = {line: line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {")}
    broken = {line: [b"data: {", b"data: " + value[1:-1], b"data: }"] for line, value in objects.items()}
    return [part for line in lines for part in broken.get(line, [line])]


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "cr": lambda body: _joined(_frames(body)).replace(b"\n", b"\r"),
    "crlf": lambda body: _joined(_frames(body)).replace(b"\n", b"\r\n"),
    "mixed_ends": lambda body: _joined(_frames(body)).replace(b"\n\n", b"\r\n\n"),
    "no_space": lambda body: re.sub(rb"(?m)^(data|event): ", rb"\1:", body),
    "data_before_event": _each_frame(lambda lines: sorted(lines, key=lambda line: not line.startswith(b"data"))),
    "several_data_lines": _each_frame(_several_data_lines),
    "byte_order_mark": lambda body: b"\xef\xbb\xbf" + body,
    "comments": lambda body: b": first\n\n" + _joined([[b": within", *lines, b": within"] for lines in _frames(body)]),
    "ids_and_retries": lambda body: (
        b"retry: 5\n\nid: 0\n\n" + _joined([[b"id: 7", *lines, b"retry: 9"] for lines in _frames(body)])
    ),
    "events_of_ids_alone": lambda body: b"".join(b"id: 1\n\nretry: 2\n\n" + _joined([lines]) for lines in _frames(body)),
    "no_last_blank_line": lambda body: body.rstrip(b"\n"),
}


def _without_keep_alives(events: list[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, KeepAlive)]


@pytest.mark.parametrize("dialect", SSE_DIALECTS)
def test_every_form_of_server_sent_events_is_read_alike(dialect: str) -> None:
    """praxis#739 and eventsource-parser#17: parsers that know one line end, one order of fields or one space only."""
    for recording in SSE:
        if recording.dialect == dialect and not _cut_inside_a_frame(recording):
            for form, change in FORMS.items():
                found = every_cut(lambda: streamglot.reader(dialect), change(recording.body), cuts=1)
                assert _without_keep_alives(found) == _without_keep_alives(recording.expected()), (form, recording.name)


def _cut_inside_a_frame(recording: Recording) -> bool:
    return not recording.body.endswith(b"\n\n")


ODD_TEXT = "日本語の文。한국어 🎈 a\u2028b\u2029c\u0085d\u000be\u000cf"


def _odd(dialect: str) -> bytes:
    """A stream whose JSON has its characters as they are, not as escapes."""
    turn = Turn(reasoning=ODD_TEXT, text=ODD_TEXT, calls=[Call("call_1", "weather", {"city": ODD_TEXT})], signature="c2ln")
    body = b"".join(wire(dialect, turn, "m")).decode()
    return re.sub(r"(?<!\\)(?:\\u(?!00[0-7])[0-9a-f]{4})+", lambda found: str(json.loads(f'"{found[0]}"')), body).encode()


@pytest.mark.parametrize("dialect", WIRES)
def test_characters_are_whole_however_the_network_cuts_them(dialect: str) -> None:
    """claude-code-router#1672: a read that ended inside a character destroyed it. Lines that are split at U+2028 or U+0085, as
    Python's splitlines does, break the JSON."""
    response = collect(every_cut(lambda: streamglot.reader(dialect), _odd(dialect)))
    assert response.choices[0].text == ODD_TEXT
    assert json.loads(_calls(response)[0][1]) == {"city": ODD_TEXT}


def _calls(response: Any) -> list[tuple[str, str]]:
    return [(part.name, part.arguments) for part in response.choices[0].parts if hasattr(part, "arguments")]


@pytest.mark.parametrize(("via", "client"), in_turn(WIRES, CLIENT_DIALECTS))
def test_characters_are_whole_through_the_gateway(gateway: Running, upstream: HostileUpstream, via: str, client: str) -> None:
    """claude-code-router#1672, with one byte in each chunk."""
    name = f"odd-characters-{via}"
    upstream.scripts[name] = streamed(
        *byte_by_byte(_odd(via)), media_type="application/x-ndjson" if via == "ollama" else "text/event-stream"
    )
    found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}", True, ("weather",))
    assert found.error is None
    assert found.text == ODD_TEXT
    if client != "openai_completions":
        assert found.calls == [("weather", {"city": ODD_TEXT})]
        assert found.reasoning == ODD_TEXT


# --- errors inside of a 200


ERROR_LINES = {
    "unknown_field": b"error: " + json.dumps(ERROR).encode() + b"\n\n",
    "unknown_field_without_a_wrapper": b"error: " + json.dumps(ERROR["error"]).encode() + b"\n\n",
    "bare_json": json.dumps(ERROR).encode() + b"\n",
    "bare_json_without_a_line_end": json.dumps(ERROR).encode(),
    "data": b"data: " + json.dumps(ERROR).encode() + b"\n\n",
    "event_named_error": b"event: error\ndata: " + json.dumps(ERROR).encode() + b"\n\n",
}


def _begun(dialect: str, words: str = "Hello") -> bytes:
    """The pieces of a stream up to the first words, without the end."""
    pieces = wire(dialect, Turn(text=words + "?"), "m")
    place = next(number for number, piece in enumerate(pieces) if b"He" in piece)
    return b"".join(pieces[: place + 1])


@pytest.mark.parametrize("via", [name for name in WIRES if name != "ollama"])
@pytest.mark.parametrize("begun", [True, False], ids=["after_words", "at_once"])
def test_an_error_line_inside_a_success_is_the_upstream_error(
    gateway: Running, upstream: HostileUpstream, via: str, begun: bool
) -> None:
    """A 200 whose stream ends with an error in a field that the standard does not know, or in a bare line."""
    for form, client in in_turn(ERROR_LINES, CLIENT_DIALECTS):
        name = f"error-line-{via}-{form}-{begun}"
        upstream.scripts[name] = unfinished((_begun(via) if begun else b"") + ERROR_LINES[form])
        found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}")
        assert found.error is not None
        assert "the model is on fire" in found.error, (client, found)
        assert found.status == (200 if begun else 500)
        assert found.text == ("He" if begun else "")


# --- bodies in place of streams


@pytest.mark.parametrize(("via", "client"), in_turn(WIRES, CLIENT_DIALECTS))
def test_an_object_in_place_of_a_stream_is_the_answer(gateway: Running, upstream: HostileUpstream, via: str, client: str) -> None:
    """A 200 with application/json for a request that asked for a stream."""
    name = f"object-{via}"
    turn = Turn(text="Hello", calls=[Call("call_1", "weather", {"city": "Paris"})])
    upstream.scripts[name] = whole(whole_body(via, turn, "m"))
    found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}", True, ("weather",))
    assert (found.error, found.text) == (None, "Hello")
    if client != "openai_completions":
        assert found.calls == [("weather", {"city": "Paris"})]


@pytest.mark.parametrize("via", WIRES)
@pytest.mark.parametrize("media_type", ["application/json", "text/event-stream"])
def test_an_error_object_in_place_of_a_stream_is_that_error(
    gateway: Running, upstream: HostileUpstream, via: str, media_type: str
) -> None:
    name = f"error-object-{via}-{media_type.partition('/')[0]}"
    upstream.scripts[name] = whole(ERROR, media_type=media_type)
    for client in CLIENT_DIALECTS:
        found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}")
        assert found.status == 500
        assert "the model is on fire" in (found.error or "")


# --- [DONE]


DONES = {
    "missing": b"",
    "plain": b"data: [DONE]\n\n",
    "quoted": b'data: "[DONE]"\n\n',
    "without_a_space": b"data:[DONE]\n\n",
    "without_its_blank_line": b"data: [DONE]",
    "twice": b"data: [DONE]\n\ndata: [DONE]\n\n",
    "named": b"event: done\ndata: [DONE]\n\n",
    "before_a_comment": b"data: [DONE]\n\n: bye\n\n",
    "before_data": b'data: [DONE]\n\ndata: {"ghost": true}\n\n',
}


@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic", "gemini", "openai_completions", "cohere"])
def test_done_is_neither_required_nor_an_obstacle(dialect: str) -> None:
    """Cerebras, Writer, Perplexity and others leave ``[DONE]`` out; others quote it, or send more behind it."""
    good = [one for one in SSE if one.dialect == dialect and isinstance(one.expected()[-1], StreamEnd)]
    assert good
    for recording in good:
        frames = [lines for lines in _frames(recording.body) if b"[DONE]" not in b"".join(lines)]
        for form, done in DONES.items():
            found = every_cut(lambda: streamglot.reader(dialect), _joined(frames) + done, cuts=1)
            assert _without_keep_alives(found) == _without_keep_alives(recording.expected()), (form, recording.name)


def test_done_alone_does_not_finish_other_dialects() -> None:
    """A mark of another dialect is not the end of an answer that its own dialect has not finished."""
    for dialect in ("openai_responses", "anthropic", "gemini"):
        box = streamglot.reader(dialect)
        events = [*box.feed(_begun(dialect) + b"data: [DONE]\n\n"), *box.close()]
        assert isinstance(events[-1], StreamError), dialect


# --- keep-alives


KEEP_ALIVES = {
    "openrouter": b": OPENROUTER PROCESSING\n\n",
    "empty_comment": b":\n\n",
    "ping_with_data": b'event: ping\ndata: {"type": "ping"}\n\n',
    "ping_with_an_empty_object": b"event: ping\ndata: {}\n\n",
    "keepalive": b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 3}\n\n',
    "ping_without_data": b"event: ping\n\n",
    "data_without_value": b"data:\n\n",
}
NAMED_EVENTS = ("openai_responses", "anthropic")
"""The dialects whose events have names, in which upstreams send ``ping`` and ``keepalive``."""


@pytest.mark.parametrize("dialect", SSE_DIALECTS)
def test_keep_alives_of_every_form_change_nothing(dialect: str) -> None:
    forms = [form for form in KEEP_ALIVES if dialect in NAMED_EVENTS or b"{" not in KEEP_ALIVES[form]]
    good = [one for one in SSE if one.dialect == dialect and isinstance(one.expected()[-1], StreamEnd)]
    for recording in good:
        frames = [_joined([lines]) for lines in _frames(recording.body)]
        for form in forms:
            body = b"".join(KEEP_ALIVES[form] + frame for frame in frames)
            found = every_cut(lambda: streamglot.reader(dialect), body, cuts=1)
            assert _without_keep_alives(found) == _without_keep_alives(recording.expected()), (form, recording.name)
            if form in ("openrouter", "ping_with_data") or (form == "keepalive" and dialect == "openai_responses"):
                assert KeepAlive in map(type, found)


@pytest.mark.parametrize("via", WIRES)
def test_white_space_while_the_model_works_is_skipped(gateway: Running, upstream: HostileUpstream, via: str) -> None:
    """DeepSeek and OpenRouter send blank lines for minutes before an answer that is not streamed."""
    name = f"blank-lines-{via}"
    blank = b"\n         \n" * 500
    turn = Turn(text="Hello")
    for body in (whole_body(via, turn, "m"), b"".join(wire(via, turn, "m"))):
        upstream.scripts[name] = streamed(*([blank] * 3), body, media_type="application/json")
        for client in CLIENT_DIALECTS:
            found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}")
            assert (found.error, found.text) == (None, "Hello"), client
