"""Endings: what broke off is an error, what ended is not, and usage is counted once."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from agents.turns import Call, Turn
from agents.wires import streamed as wire
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, asked, body_of, in_turn, of_response, path_of
from gateway.raw import raw
from gateway.running import Running
from gateway.scenarios import DONE, END, anthropic, block, called, chunk, gemini, lines, message, responses, text_chunk
from gateway.upstream import UPSTREAM_NAMES, Hang, HostileUpstream, head, sse, streamed, unfinished, whole
from split_checks import every_cut
from streamglot import collect
from streamglot.dialects import dialect

WIRES = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama")
MEDIA = {"ollama": "application/x-ndjson"}
TEXT_ONLY = ("openai_completions",)
NO_USAGE = ("agui", "vercel_ui")


def media(via: str) -> str:
    return MEDIA.get(via, "text/event-stream")


# --- streams that break off


PLACES = ("behind_text", "inside_a_call", "before_the_end", "inside_a_frame")


def _cuts(via: str) -> dict[str, bytes]:
    """A stream of reasoning, text and a call, cut behind some of its frames."""
    turn = Turn(text="Let me look.", calls=[Call("call_1", "weather", {"city": "Paris", "days": 3})])
    pieces = wire(via, turn, "m")
    ends = [place for place, piece in enumerate(pieces) if b"ook." in piece]
    behind_text = b"".join(pieces[: ends[0] + 1])
    before_end = b"".join(pieces[:-1]) if via not in ("openai_chat",) else b"".join(pieces[:-3])
    inside_call = next((place for place, piece in enumerate(pieces) if b"Par" in piece), len(pieces) - 2)
    return {
        "behind_text": behind_text,
        "inside_a_call": b"".join(pieces[:inside_call]) if via not in ("gemini", "ollama") else behind_text,
        "before_the_end": before_end,
        "inside_a_frame": b"".join(pieces[: ends[0] + 1]) + pieces[ends[0] + 1][:25],
    }


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("via", WIRES)
def test_a_stream_without_its_end_is_an_error_and_keeps_what_came(
    gateway: Running, upstream: HostileUpstream, via: str, place: str
) -> None:
    """litellm#40260, #42085: a connection that closed cleanly counted as success, even inside the arguments of a call."""
    body = _cuts(via)[place]
    half = WIRES.index(via) + PLACES.index(place)  # the clients of an even and of an odd number take turns
    for script, client in in_turn(
        (unfinished(body, media_type=media(via)), streamed(body, media_type=media(via))), CLIENT_DIALECTS[half % 2 :: 2]
    ):
        name = f"cut-{via}-{place}"
        upstream.scripts[name] = script
        found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}", True, ("weather",))
        assert found.error, (client, found)
        assert (found.status, found.text) == (200, "Let me look."), (client, found)
        if place != "before_the_end":
            assert found.calls == [], (client, found)
        if client not in STREAMS_ONLY:
            refused = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}", False, ("weather",))
            assert refused.status >= 500, (client, refused)
            assert refused.error


EMPTY: dict[str, tuple[str, bytes]] = {
    "no_bytes": ("openai_chat", b""),
    "role_only": ("openai_chat", sse(chunk({"role": "assistant", "content": ""}))),
    "role_and_done": ("openai_chat", sse(chunk({"role": "assistant"}), DONE)),
    "usage_only": ("openai_chat", sse({"id": "c", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 0}}, DONE)),
    "message_start_only": ("anthropic", anthropic()),
    "ping_only": ("anthropic", b'event: ping\ndata: {"type": "ping"}\n\n'),
    "created_only": ("openai_responses", responses()),
    "no_candidates": ("gemini", sse({"usageMetadata": {"promptTokenCount": 1, "totalTokenCount": 1}})),
    "no_candidate_ended": ("gemini", sse(gemini({"text": ""}))),
    "not_done": ("ollama", lines(message())),
    "blank_lines": ("ollama", b"\n\n"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_failed_upstream_is_not_an_empty_answer(gateway: Running, upstream: HostileUpstream, name: str) -> None:
    """litellm#32086, #33222, #6629: a failure became an empty and well-formed answer with status 200."""
    via, body = EMPTY[name]
    upstream.scripts[f"empty-{name}"] = streamed(body, media_type=media(via))
    for client in CLIENT_DIALECTS:
        for stream in (True, False) if client not in STREAMS_ONLY else (True,):
            found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/empty-{name}", stream)
            assert found.error, (client, stream, found)
            assert found.status == 502, (client, stream, found)


@pytest.mark.parametrize("via", WIRES)
def test_a_refusal_of_the_upstream_is_a_status(gateway: Running, upstream: HostileUpstream, via: str) -> None:
    for status, client in in_turn((400, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503, 529), CLIENT_DIALECTS):
        name = f"refusal-{via}-{status}"
        upstream.scripts[name] = whole({"error": {"message": "not today", "type": "some_error"}}, status)
        found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}")
        assert found.status >= 400
        assert "not today" in (found.error or "")


# --- streams that end well


@pytest.mark.parametrize("via", WIRES)
def test_each_dialect_ends_by_its_own_mark(gateway: Running, upstream: HostileUpstream, via: str) -> None:
    """llmgateway#1901: good streams were reported as broken because they had no ``[DONE]``."""
    pieces = [piece for piece in wire(via, Turn(text="Hello"), "m") if b"[DONE]" not in piece]
    upstream.scripts[f"own-end-{via}"] = unfinished(*pieces, media_type=media(via))
    for client in CLIENT_DIALECTS:
        found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/own-end-{via}")
        assert (found.error, found.text) == (None, "Hello"), client


PARTS: dict[str, dict[str, Any]] = {
    "role": {"role": "assistant"},
    "text": {"content": "Hello"},
    "call": {"tool_calls": [called(0, "call_1", "weather", '{"city":"Paris"}')]},
    "reasoning": {"reasoning_content": "Hm."},
}


COMBINATIONS = [some for size in (1, 2, 3, 4) for some in combinations(PARTS, size) if some != ("role",)]


@pytest.mark.parametrize("finish", ["with", "after", "before"])
def test_parts_and_the_finish_come_in_any_combination(gateway: Running, upstream: HostileUpstream, finish: str) -> None:
    """Text in the finish chunk, or behind it, was dropped; role, text, call and finish may stand in one chunk."""
    for parts, client in in_turn(COMBINATIONS, WIRES):
        check_combination(gateway, upstream, finish, parts, client)


def check_combination(gateway: Running, upstream: HostileUpstream, finish: str, parts: tuple[str, ...], client: str) -> None:
    delta = {name: value for part in parts for name, value in PARTS[part].items()}
    chunks = {
        "with": [chunk(delta, "stop")],
        "after": [chunk(delta), END],
        "before": [chunk({}, "stop"), chunk(delta)],
    }[finish]
    name = f"combined-{'-'.join(parts)}-{finish}"
    upstream.scripts[name] = streamed(sse(*chunks, DONE))
    read = of_response(collect(every_cut(lambda: dialect("openai_chat").reader(), sse(*chunks, DONE), cuts=1)), 200)
    for found in (read, *(asked(gateway, client, f"work/{name}", stream, ("weather",)) for stream in (True, False))):
        assert found.error is None, name
        assert found.text == ("Hello" if "text" in parts else ""), name
        assert found.calls == ([("weather", {"city": "Paris"})] if "call" in parts else []), name
        assert found.reasoning == ("Hm." if "reasoning" in parts else ""), name
        assert found.finish == ("tool_calls" if "call" in parts else "end"), name


OTHER_COMBINATIONS: dict[str, tuple[str, bytes]] = {
    "gemini_text_and_call_in_the_finish": (
        "gemini",
        sse(
            gemini(
                {"text": "Hello"}, {"functionCall": {"name": "weather", "args": {"city": "Paris"}}}, finish="STOP", counts=True
            )
        ),
    ),
    "gemini_parts_behind_the_finish": (
        "gemini",
        sse(
            gemini({"text": "Hel"}, finish="STOP"),
            gemini({"text": "lo"}, {"functionCall": {"name": "weather", "args": {"city": "Paris"}}}, finish="STOP"),
        ),
    ),
    "ollama_all_on_the_last_line": (
        "ollama",
        lines(message(True, content="Hello", tool_calls=[{"function": {"name": "weather", "arguments": {"city": "Paris"}}}])),
    ),
}


@pytest.mark.parametrize("name", OTHER_COMBINATIONS)
def test_parts_and_the_finish_are_combined_in_other_dialects_too(gateway: Running, upstream: HostileUpstream, name: str) -> None:
    via, body = OTHER_COMBINATIONS[name]
    upstream.scripts[name] = streamed(body, media_type=media(via))
    for client in ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "agui", "vercel_ui"):
        found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/{name}", True, ("weather",))
        assert (found.error, found.text, found.calls) == (None, "Hello", [("weather", {"city": "Paris"})]), client


# --- usage


def _chat_usage(**more: Any) -> dict[str, Any]:
    return {
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "total_tokens": 110,
        "prompt_tokens_details": {"cached_tokens": 80},
        "completion_tokens_details": {"reasoning_tokens": 4},
        **more,
    }


def _messages_usage(start: dict[str, Any], end: dict[str, Any]) -> bytes:
    about: dict[str, Any] = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
    text = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello"})
    events = [
        ("message_start", {"message": {**about, "usage": start}}),
        *text,
        ("message_delta", {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": end}),
        ("message_stop", {}),
    ]
    return b"".join(f"event: {kind}\n".encode() + sse({"type": kind, **body}) for kind, body in events)


def _completed(usage: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    item = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
    }
    about = {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [item]}
    return "response.completed", {"response": {**about, "usage": usage}}


GEMINI_USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 80,
    "candidatesTokenCount": 6,
    "thoughtsTokenCount": 4,
    "totalTokenCount": 110,
}
USAGES: dict[str, tuple[str, bytes]] = {
    "chat_behind_the_finish": (
        "openai_chat",
        sse(text_chunk("Hello"), END, {"id": "c1", "choices": [], "usage": _chat_usage()}, DONE),
    ),
    "chat_in_the_finish": ("openai_chat", sse(text_chunk("Hello"), {**END, "usage": _chat_usage()}, DONE)),
    "chat_in_every_chunk": (
        "openai_chat",
        sse(
            {**text_chunk("Hel"), "usage": _chat_usage(completion_tokens=5)},
            {**text_chunk("lo"), "usage": _chat_usage()},
            {**END, "usage": _chat_usage()},
            {"id": "c1", "choices": [], "usage": _chat_usage()},
            DONE,
        ),
    ),
    "chat_null_later": (
        "openai_chat",
        sse(
            {**text_chunk("Hello"), "usage": _chat_usage()},
            {**END, "usage": None},
            {"id": "c1", "choices": [], "usage": None},
            DONE,
        ),
    ),
    "chat_less_later": (
        "openai_chat",
        sse({**text_chunk("Hello"), "usage": _chat_usage()}, {**END, "usage": {"completion_tokens": 10}}, DONE),
    ),
    "chat_in_the_choice_first": (
        "openai_chat",
        sse({"id": "c1", "choices": [], "usage": _chat_usage()}, text_chunk("Hello"), END, DONE),
    ),
    "messages_cached": (
        "anthropic",
        _messages_usage(
            {"input_tokens": 20, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 0, "output_tokens": 1},
            {"output_tokens": 10},
        ),
    ),
    "messages_said_twice": (
        "anthropic",
        _messages_usage(
            {"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 1},
            {"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 10},
        ),
    ),
    "messages_only_at_the_end": (
        "anthropic",
        _messages_usage(
            {"input_tokens": 0, "output_tokens": 0}, {"input_tokens": 20, "cache_read_input_tokens": 80, "output_tokens": 10}
        ),
    ),
    "responses_cached": (
        "openai_responses",
        responses(
            _completed(
                {
                    "input_tokens": 100,
                    "input_tokens_details": {"cached_tokens": 80},
                    "output_tokens": 10,
                    "output_tokens_details": {"reasoning_tokens": 4},
                    "total_tokens": 110,
                }
            )
        ),
    ),
    "gemini_in_every_chunk": (
        "gemini",
        sse(
            {**gemini({"text": "Hel"}), "usageMetadata": {"promptTokenCount": 100, "totalTokenCount": 100}},
            {**gemini({"text": "lo"}), "usageMetadata": GEMINI_USAGE},
            {**gemini({"text": ""}, finish="STOP"), "usageMetadata": GEMINI_USAGE},
        ),
    ),
    "gemini_none_later": (
        "gemini",
        sse({**gemini({"text": "Hello"}), "usageMetadata": GEMINI_USAGE}, gemini({"text": ""}, finish="STOP")),
    ),
}


@pytest.mark.parametrize("name", USAGES)
def test_usage_is_counted_once_with_its_cached_part(gateway: Running, upstream: HostileUpstream, name: str) -> None:
    """Usage counted twice where a cache was used, lost where a later chunk has none, or sent only behind the finish."""
    via, body = USAGES[name]
    upstream.scripts[f"usage-{name}"] = streamed(body)
    for client in CLIENT_DIALECTS:
        if client in NO_USAGE:
            continue
        for stream in (True, False):
            found = asked(gateway, client, f"{UPSTREAM_NAMES[via]}/usage-{name}", stream)
            assert found.text == "Hello"
            assert found.usage is not None, (client, stream)
            assert found.usage[:2] == (100, 10), (client, stream, found)
            assert client == "ollama" or found.usage[2] == 80, (client, stream, found)


# --- clients that hang up


@pytest.mark.parametrize(
    ("via", "client"), in_turn(WIRES, ("openai_responses", "gemini", "agui", "vercel_ui", "openai_completions"))
)
def test_a_client_that_disconnects_releases_the_upstream(
    gateway: Running, upstream: HostileUpstream, via: str, client: str
) -> None:
    """litellm#37140: the upstream ran on for a client that was gone."""
    name = f"gone-{via}-{client}"
    pieces = wire(via, Turn(text="Hello and goodbye"), "m")
    begun = next(place for place, piece in enumerate(pieces) if b"Hello" in piece)
    upstream.scripts[name] = [head(200, media(via), connection="close"), b"".join(pieces[: begun + 1]), Hang()]
    with raw(gateway.port) as one:
        one.post(
            path_of(client, f"{UPSTREAM_NAMES[via]}/{name}"),
            body_of(client, f"{UPSTREAM_NAMES[via]}/{name}"),
            {"x-request-id": name},
        )
        one.read_until(b"Hello")
        one.hang_up()
    upstream.wait_for(name, lambda seen: seen.closed)
    assert gateway.line(name)["ending"] == "client_gone"
