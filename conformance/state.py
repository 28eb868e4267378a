"""Opaque state of every recorded stream, to a client and back: ``python -m conformance.state CORPUS [--verbose]``.

Each answer is read as one of an upstream with a person's name for it, written for a client, and returned by the client as its own
kind of history. The request that the upstream then gets must have the same items, fields and places as one that is built from the
answer itself. Clients differ in what they return, and the store may help or not (``Trip``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import streamglot
from streamglot import Unsupported
from streamglot.dialects import DIALECTS
from streamglot.dialects.openai_chat.accumulate import accumulate_delta
from streamglot.messages import MediaPart, Message, Part, ReasoningPart, Request, Response, TextPart, ToolCallPart, ToolResultPart
from streamglot.store import restore_echoes

from .streams import DIALECTS as CORPUS_DIALECTS

Returns = Literal["everything", "documented", "packed"]
UPSTREAMS: Final = ("anthropic", "bedrock_converse", "cohere", "gemini", "ollama", "openai_chat", "openai_responses")
"""The dialects whose upstreams get state back."""
CLIENTS: Final = ("anthropic", "gemini", "ollama", "openai_chat", "openai_responses")
STATE: Final = frozenset(
    (
        *("signature", "data", "encrypted_content", "redactedContent", "thoughtSignature", "extra_content"),
        *("reasoning", "reasoning_content", "reasoning_details", "tool_plan"),
    )
)
"""The fields in which upstreams get opaque state or reasoning back."""
INCONSISTENT: Final = ("id-rotation", "openai-shell-container", "raw-cot-stream-openrou")
"""Recordings that give one item different ids or texts in different events."""
ACCEPTED: Final = {
    ("anthropic-advisor-tool", "openai_chat"): "the state is in a call that the provider ran, which the client does not get",
    ("pause-turn-web-search", "openai_chat"): "the client joins texts between which the provider ran calls",
    ("pause-turn-web-search", "ollama"): "the client joins texts between which the provider ran calls",
    ("object-streaming--c4eeaacd", "anthropic"): "the answer is white space, which the client does not get",
    ("object-streaming--b1ea7c4d", "anthropic"): "the answer is white space, which the client does not get",
}
"""Recordings and clients for which another outcome was decided, with the reason."""
MAKER: Final = "somewhere"
_CHOOSY: Final = ("anthropic", "openai_chat", "openai_responses")
"""Clients that are known to return some fields and not others."""
_ASKED: Final = "Go on."


class Trip(NamedTuple):
    """``returns``: what the client sends back. ``store``: the gateway has stored the answer."""

    client: str
    streamed: bool
    returns: Returns
    store: bool


# --- what clients keep of an answer


def chat_message(chunks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or ():
            if choice.get("index") == 0:
                accumulate_delta(message, choice.get("delta") or {})
    for call in message.get("tool_calls") or ():
        call.pop("index", None)
    return message


def anthropic_blocks(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    given: list[str] = []
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(dict(block))
                given.clear()
            case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": piece}}:
                given.append(piece)
            case {"type": "content_block_delta", "delta": {"type": "citations_delta", "citation": citation}}:
                blocks[-1].setdefault("citations", []).append(citation)
            case {"type": "content_block_delta", "delta": delta}:
                name = next(name for name in ("text", "thinking", "signature") if name in delta)
                blocks[-1][name] = blocks[-1].get(name, "") + delta[name]
            case {"type": "content_block_stop"} if "".join(given):
                blocks[-1]["input"] = json.loads("".join(given))
    return blocks


def ollama_message(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for line in lines:
        piece = line.get("message") or {}
        for name in ("content", "thinking"):
            if piece.get(name):
                message[name] = message.get(name, "") + piece[name]
        if piece.get("tool_calls"):
            message.setdefault("tool_calls", []).extend(piece["tool_calls"])
    return message


def frames(body: bytes) -> Iterator[dict[str, Any]]:
    for line in body.split(b"\n"):
        data = line.removeprefix(b"data: ")
        if data[:1] == b"{":
            yield json.loads(data)


# --- the way to the client and back


def history(trip: Trip, events: list[streamglot.Event], response: Response) -> dict[str, Any]:
    """The body of the client's next request."""
    if trip.streamed:
        return next_request(trip, b"".join(_written(trip.client, events)), {})
    return next_request(trip, b"", DIALECTS[trip.client].build_response(response))


def next_request(trip: Trip, stream: bytes, body: dict[str, Any]) -> dict[str, Any]:
    """The same after this answer: the bytes of a stream, or a whole body."""
    written = list(frames(stream))
    match trip.client:
        case "openai_chat":
            message = chat_message(written) if trip.streamed else body["choices"][0]["message"]
            return {"messages": [_user(), _returned_chat(message, trip.returns), *_chat_results(message), _user()]}
        case "anthropic":
            blocks = anthropic_blocks(written) if trip.streamed else body["content"]
            if trip.returns == "documented":
                blocks = [block for block in blocks if "sglot1." not in str(block)]
            results = [{"type": "tool_result", "tool_use_id": block["id"]} for block in blocks if block["type"] == "tool_use"]
            turns = [{"role": "assistant", "content": blocks}] if blocks else []
            return {"max_tokens": 9, "messages": [_user(), *turns, {"role": "user", "content": [*results, _text()]}]}
        case "ollama":
            message = ollama_message(written) if trip.streamed else body["message"]
            results = [{"role": "tool", "content": "", "tool_call_id": call["id"]} for call in message.get("tool_calls", ())]
            return {"messages": [_user(), message, *results, _user()]}
        case "openai_responses":
            last = next((event["response"] for event in reversed(written) if "response" in event), {}) if trip.streamed else body
            items = last["output"]
            results = [
                {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": ""}
                for item in items
                if item["type"] in ("function_call", "custom_tool_call")
            ]
            return {"input": [_user(), *(_returned_item(item, trip.returns) for item in items), *results, _user()]}
    chunks = written if trip.streamed else [body]
    contents = [
        candidate["content"] for chunk in chunks for candidate in chunk.get("candidates", ()) if not candidate.get("index")
    ]
    calls = [part["functionCall"] for content in contents for part in content["parts"] if "functionCall" in part]
    results = [{"functionResponse": {"id": call["id"], "name": call["name"], "response": {"output": ""}}} for call in calls]
    return {"contents": [_contents(_text_part()), *contents, _contents(*results, _text_part())]}


def _written(client: str, events: list[streamglot.Event]) -> Iterator[bytes]:
    writer = streamglot.writer(client)
    yield writer.feed(events)
    yield writer.close()


def _user() -> dict[str, Any]:
    return {"role": "user", "content": _ASKED}


def _text() -> dict[str, Any]:
    return {"type": "text", "text": _ASKED}


def _text_part() -> dict[str, Any]:
    return {"text": _ASKED}


def _contents(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def _returned_chat(message: dict[str, Any], returns: Returns) -> dict[str, Any]:
    dropped = {
        "everything": (),
        "documented": ("reasoning", "reasoning_details"),
        "packed": ("reasoning", "reasoning_content"),
    }[returns]
    return {name: value for name, value in message.items() if name not in dropped}


def _chat_results(message: dict[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or ()
    return [{"role": "tool", "tool_call_id": call["id"], "content": ""} for call in calls]


def _returned_item(item: dict[str, Any], returns: Returns) -> dict[str, Any]:
    """Some clients remove the status of a reasoning item before they return it."""
    if item["type"] == "reasoning" and returns == "documented":
        return {name: value for name, value in item.items() if name != "status"}
    return item


class Outcome(NamedTuple):
    """``wanted`` is what a request from the answer itself has; ``sent`` is what the client's request became."""

    wanted: list[Any]
    sent: list[Any]
    dropped: list[str]


def take(trip: Trip, dialect: str, body: bytes) -> Outcome | None:
    """One answer of an upstream of this dialect, on this trip. None for an answer that no client continues."""
    reader = streamglot.reader(dialect, provider=MAKER)
    answer = reader.feed(body) + reader.close()
    response = streamglot.collect(answer)
    parts = response.choices[0].parts if response.choices else []
    if response.error is not None or any(isinstance(part, ToolCallPart) and not part.complete for part in parts):
        return None
    asked = history(trip, answer, response)
    if len(next(iter(asked[name] for name in ("messages", "contents", "input") if name in asked))) < 3:
        return None
    wire, same = DIALECTS[dialect], trip.client == dialect
    request = DIALECTS[trip.client].parse_request(asked)
    request.model = "m"
    if trip.store:
        request = restore_echoes(request, [Message("assistant", parts)], provider=f"{dialect}@{MAKER}")
    if dialect != "gemini":
        parts = [part for part in parts if not isinstance(part, MediaPart)]
    try:
        sent = wire.build_request(request, provider=MAKER)
    except Unsupported:
        return None  # media of an answer, which no other dialect takes back
    wanted = model_turns(wire.build_request(_from_answer(parts if same else _expressible(parts)), provider=MAKER).body)
    if same and dialect == "openai_responses":
        wanted = [_as_sent(item) for item in _items(body)] or wanted
    return Outcome(wanted, model_turns(sent.body), sent.dropped)


def _expressible(parts: list[Part]) -> list[Part]:
    """The parts without those that clients of other dialects cannot have: media, and calls that the provider ran."""
    return [
        part
        for part in parts
        if not (isinstance(part, (MediaPart, ToolResultPart)) or (isinstance(part, ToolCallPart) and part.kind == "server"))
        and not (isinstance(part, ReasoningPart) and part.echo is not None and part.echo.data.get("next"))
    ]


def _items(body: bytes) -> list[dict[str, Any]]:
    """The items of a recorded response, as the upstream sent them."""
    return [frame["item"] for frame in frames(body) if frame.get("type") == "response.output_item.done"]


def _as_sent(item: dict[str, Any]) -> dict[str, Any]:
    """An item of an answer as an input: without log probabilities."""
    if item.get("type") != "message":
        return item
    parts = [{name: value for name, value in part.items() if name != "logprobs"} for part in item["content"]]
    return {**item, "content": parts}


def _from_answer(parts: list[Part]) -> Request:
    results: list[Part] = [
        ToolResultPart(part.call_id, [TextPart("")], name=part.name, kind=part.kind)
        for part in parts
        if isinstance(part, ToolCallPart) and part.kind != "server"
    ]
    asked: list[Part] = [TextPart(_ASKED)]
    tool = [Message("tool", results)] if results else []
    return Request("m", [Message("user", asked), Message("assistant", parts), *tool, Message("user", asked)])


def model_turns(body: dict[str, Any]) -> list[Any]:
    """The model's turns, or the items that are neither the user's nor results of the client's tools."""
    items = body.get("messages") or body.get("contents") or body.get("input") or []
    results = ("function_call_output", "custom_tool_call_output")
    return [item for item in items if item.get("role") not in ("user", "tool") and item.get("type") not in results]


def state_of(value: Any) -> list[tuple[str, Any]]:
    """The opaque state in a body, with its fields, in order."""
    found: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in STATE and inner and not (name == "data" and value.get("type") != "redacted_thinking"):
                found.append((name, inner))
            else:
                found += state_of(inner)
    elif isinstance(value, list):
        for inner in value:
            found += state_of(inner)
    return found


def fault(trip: Trip, dialect: str, outcome: Outcome) -> str:
    """What is wrong with an outcome; empty if nothing is."""
    wanted, sent = state_of(outcome.wanted), state_of(outcome.sent)
    exact = trip.store or (trip.returns != "documented" and trip.client != "ollama") or trip.client == "openai_responses"
    if trip.client == dialect and (exact or dialect == "ollama"):
        return "" if _covers(outcome.sent, outcome.wanted) else f"sent {outcome.sent}, not {outcome.wanted}"
    if exact:
        return "" if sent == wanted else f"sent {sent}, not {wanted}"
    plain = {"reasoning", "reasoning_content"}
    invented = (
        [] if trip.client == dialect else [name for name, value in sent if (name, value) not in wanted and name not in plain]
    )
    if invented:
        return f"sent {invented}, which the upstream did not write"
    if trip.client == dialect == "openai_chat":
        fields = [name for name, _ in sent if name in plain]
        return "" if len(fields) < 2 else f"sent {fields}, where the client returned one field"
    if wanted and not sent and trip.client != "anthropic" and "messages.reasoning" not in outcome.dropped:
        thought = any(name in plain or name == "signature" for name, _ in wanted)
        return f"dropped {outcome.dropped}, without the reasoning" if thought and trip.client == "openai_chat" else ""
    return ""


def _covers(sent: Any, wanted: Any) -> bool:
    """Whether both are the same. A client of the same dialect may return blocks that have no event."""
    if isinstance(sent, list) and isinstance(wanted, list) and sent != wanted:
        both = [_blocks(value) for value in (sent, wanted)]
        rest = iter(both[0])
        return all(any(block == other for other in rest) for block in both[1])
    return bool(sent == wanted)


def _words(item: dict[str, Any]) -> bool:
    """Whether an item has anything to return: a message without text has not."""
    return item["type"] != "message" or any(part.get("text") or part.get("refusal") for part in item["content"])


def _blocks(turns: list[Any]) -> list[Any]:
    found: list[Any] = []
    for turn in turns:
        if "type" in turn:
            if turn.get("content") != [] and _words(turn):
                refused = "refusal" in str(turn.get("content"))  # a refusal has no place for the id of its item
                left_out = ("status", "role", "id") if refused else ("status", "role")
                found.append({name: value for name, value in turn.items() if name not in left_out and value != ""})
            continue
        content = turn.get("content") if "content" in turn else turn.get("parts")
        found += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return found


def trips() -> Iterator[Trip]:
    for client in CLIENTS:
        kinds: tuple[Returns, ...] = ("everything", "documented", "packed") if client in _CHOOSY else ("everything",)
        for returns in kinds:
            for streamed in (False, True):
                for store in (False, True):
                    yield Trip(client, streamed, returns, store)


def main() -> int:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("corpus", type=Path)
    options = arguments.parse_args()
    root = options.corpus / "streams"
    taken, wrong = 0, 0
    for row in map(json.loads, (root / "index.open.jsonl").open()):
        dialect = CORPUS_DIALECTS.get(row["dialect"])
        if dialect not in UPSTREAMS or any(name in row["file"] for name in INCONSISTENT):
            continue
        body = (root / row["file"]).read_bytes()
        for trip in trips():
            outcome = take(trip, dialect, body)
            taken += outcome is not None
            if outcome is None or any(name in row["file"] and client == trip.client for name, client in ACCEPTED):
                continue
            found = fault(trip, dialect, outcome)
            if found:
                wrong += 1
                print(f"{row['file']}: {trip}: {found}")
    print(f"state: {taken} trips, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
