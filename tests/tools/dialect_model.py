"""A scripted model on a real socket that speaks any upstream dialect, natively or with its calls in the text."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

from gateway.upstream import Cut, HostileUpstream, Seen, whole
from gateway.upstream import Script as Steps
from streamglot import DIALECTS, Upstream
from streamglot.events import Event, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart, Usage
from streamglot.framing.aws_eventstream import frame
from tools.scripted import call as call_events

Call = tuple[str, str]
"""Name and arguments."""
Turn = list[Call] | str
"""One turn of a model: calls, or a text; empty if it closes the connection."""
Script = Callable[[int, str], Turn]
"""From the number of the request, beginning with 0, and its body as text, to the turn."""

NATIVE = ("openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "cohere", "bedrock_converse", "bedrock_invoke")
IN_TEXT = ("openai_chat", "openai_completions", "qwen_web")
WIRES = [*NATIVE, *(f"{name}:text" for name in IN_TEXT)]
"""Every upstream dialect; those with ``:text`` have no tools of their own."""
PREFIX = {"openai_chat": "/v1", "openai_responses": "/v1", "openai_completions": "/v1", "gemini": "/v1beta"}
MODELS = {"bedrock_invoke": "anthropic.claude-sonnet-4"}
"""The names of models whose body depends on them."""


def events_of_turn(turn: Turn, number: int) -> list[Event]:
    if isinstance(turn, str):
        return [StreamStart("r", "m"), TextStart(), TextDelta(turn), TextEnd(), Usage(20, 4), StreamEnd("end")]
    calls = [event for place, (name, given) in enumerate(turn) for event in call_events(f"call_{number}_{place}", name, given)]
    return [StreamStart("r", "m"), *calls, Usage(10, 5), StreamEnd("tool_calls")]


def with_tools_as_text(turn: Turn) -> str:
    """Calls as a model writes them that has no tools."""
    if isinstance(turn, str):
        return turn
    calls = (f'<tool_call>\n{{"name": "{name}", "arguments": {given}}}\n</tool_call>' for name, given in turn)
    return "\n".join(calls)


def encoded(wire: str, turn: Turn, number: int) -> tuple[bytes, str]:
    """The body of an answer, and its media type."""
    name, _, in_text = wire.partition(":")
    if in_text:
        turn = with_tools_as_text(turn)
    if name == "cohere":
        return b"".join(_sse(_cohere(turn, number))), "text/event-stream"
    if name == "qwen_web":
        delta = {"role": "assistant", "content": turn, "phase": "answer", "status": "typing"}
        done = {"role": "assistant", "content": "", "phase": "answer", "status": "finished"}
        return b"".join(_sse([{"choices": [{"delta": delta}]}, {"choices": [{"delta": done}]}])), "text/event-stream"
    if name == "bedrock_converse":
        frames = (frame(json.dumps(data).encode(), _headers(kind)) for kind, data in _converse(turn, number))
        return b"".join(frames), "application/vnd.amazon.eventstream"
    if name == "bedrock_invoke":
        lines = (line for line in _written("anthropic", turn, number).split(b"\n") if line.startswith(b"data: "))
        chunks = (json.dumps({"bytes": base64.b64encode(line[6:]).decode()}).encode() for line in lines)
        return b"".join(frame(chunk, _headers("chunk")) for chunk in chunks), "application/vnd.amazon.eventstream"
    return _written(name, turn, number), DIALECTS[name].media_type


def _written(name: str, turn: Turn, number: int) -> bytes:
    writer = DIALECTS[name].writer(include_usage=True)
    return writer.feed(events_of_turn(turn, number)) + writer.close()


def _headers(kind: str) -> dict[str, str]:
    return {":event-type": kind, ":message-type": "event", ":content-type": "application/json"}


def _sse(objects: Any) -> Iterator[bytes]:
    return (b"data: " + json.dumps(one).encode() + b"\n\n" for one in objects)


def _cohere(turn: Turn, number: int) -> Iterator[dict[str, Any]]:
    yield {"type": "message-start", "id": "r", "delta": {"message": {"role": "assistant", "content": [], "tool_calls": []}}}
    if isinstance(turn, str):
        yield {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}}
        yield {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": turn}}}}
        yield {"type": "content-end", "index": 0}
    else:
        for place, (name, given) in enumerate(turn):
            function = {"name": name, "arguments": given}
            made = {"id": f"call_{number}_{place}", "type": "function", "function": function}
            yield {"type": "tool-call-start", "index": place, "delta": {"message": {"tool_calls": made}}}
            yield {"type": "tool-call-end", "index": place}
    reason = "COMPLETE" if isinstance(turn, str) else "TOOL_CALL"
    usage = {"tokens": {"input_tokens": 10, "output_tokens": 5}}
    yield {"type": "message-end", "delta": {"finish_reason": reason, "usage": usage}}


def _converse(turn: Turn, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "messageStart", {"role": "assistant"}
    blocks = [("", turn)] if isinstance(turn, str) else turn
    for place, (name, content) in enumerate(blocks):
        at = {"contentBlockIndex": place}
        if name:
            yield "contentBlockStart", {**at, "start": {"toolUse": {"toolUseId": f"call_{number}_{place}", "name": name}}}
        yield "contentBlockDelta", {**at, "delta": {"toolUse": {"input": content}} if name else {"text": content}}
        yield "contentBlockStop", at
    yield "messageStop", {"stopReason": "end_turn" if isinstance(turn, str) else "tool_use"}
    yield "metadata", {"usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}}


class DialectModel(HostileUpstream):
    """Answers every request by the script that it ``plays``, which a test may change; then the count of requests begins anew."""

    def __init__(self, wire: str, script: Script) -> None:
        super().__init__()
        self.wire = wire
        self.texts: list[str] = []
        self.plays(script)
        self.start()

    def plays(self, script: Script) -> None:
        self._turn_of = script
        self.texts = []

    def script_for(self, seen: Seen) -> Steps:
        if seen.path == "/api/v2/chats/new":  # a web chat is made before it is asked
            return whole(b'{"success": true, "data": {"id": "chat"}}')
        number, asked = len(self.texts), seen.raw.decode()
        self.texts.append(asked)
        turn = self._turn_of(number, asked)
        if not turn:
            return [Cut()]
        body, media_type = encoded(self.wire, turn, number)
        return whole(body, media_type=media_type)

    def upstream(self) -> Upstream:
        name, _, in_text = self.wire.partition(":")
        return Upstream(
            name="scripted",
            dialect=name,
            base_url=self.url + PREFIX.get(name, ""),
            models={"m": MODELS.get(name, "m")},
            attempts=1,
            tools="prompt" if in_text else "native",
            inband="hermes" if in_text else "auto",
        )

    def close(self) -> None:
        self.stop()
