"""Rows of a stream: cut, read, linked and paged."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from each import each
from inspected import of_pieces, unzipped
from recordings import Recording, recordings
from split_checks import every_cut
from streamglot import check, collect
from streamglot.dialects import DIALECTS
from streamglot.errors import RequestError
from streamglot.events import encode
from streamglot.inband import FORMATS, Format, parse_text
from streamglot.inspect.detection import reader_of
from streamglot.inspect.export import MAX_STRING_CHARS, curl, pytest_archive, shortened, shown_body
from streamglot.inspect.frames import MAX_ROW_CHARS, AwsCutter, cutter_for, readable
from streamglot.inspect.inspection import FOLDED, LOST, OWN, Inspection
from streamglot.inspect.paging import FIRST_ROWS
from streamglot.inspect.recording import RecordedPiece, begins_in_thinking, notation_of, read_source, recording_lines
from streamglot.inspect.waterfall import bars_of_facts, bars_of_marks
from streamglot.inspect.web_readers import ClientReader
from vocabulary import *

EVERY = recordings()
WRITERS = [one.name for one in DIALECTS.values() if one.has_writer]


def named(recording: Recording) -> str:
    return f"{recording.dialect}-{recording.name}"


@each(recording=EVERY)
def test_frames_joined_are_the_bytes_however_they_are_cut(recording: Recording) -> None:
    first = recording.body.lstrip()[:1]
    frames = every_cut(lambda: cutter_for(recording.dialect, first), recording.body)
    assert b"".join(frames) == recording.body


@pytest.mark.parametrize("lines", [b"a\r\n\r\nb\r\n\r\n", b"a\n\nb", b"a\r\rb\r\r", b"a\n\r\nb\n\n\n", b"\r\n\r", b"\n\n\n\n"])
def test_frames_of_any_line_end_are_cut_after_blank_lines(lines: bytes) -> None:
    assert b"".join(every_cut(lambda: cutter_for("openai_chat", b"d"), lines)) == lines


def test_a_binary_frame_with_an_impossible_length_is_shown_as_it_is() -> None:
    data = b"\x00\x00\x00\x01" + b"x" * 40
    assert every_cut(AwsCutter, data) == [data]
    assert readable(data).startswith("00 00 00 01")


@each(recording=EVERY)
def test_every_recording_is_recognised_and_gives_its_events(recording: Recording) -> None:
    source = read_source(recording.body)
    assert source.dialect == recording.dialect
    found = of_pieces(Inspection(source.dialect, "openai_chat"), source.pieces)
    assert found.rows["events"]["text"] == [encode(event).decode() for event in recording.expected()]
    links = found.rows["events"]["link"]
    assert links == sorted(links)
    assert all(0 <= link < len(found.rows["upstream"]["at"]) for link in links)


@pytest.mark.parametrize("client", WRITERS)
def test_a_stream_is_shown_as_every_dialect(client: str) -> None:
    recording = next(one for one in EVERY if named(one) == "anthropic-parallel_calls")
    found = of_pieces(Inspection("anthropic", client), read_source(recording.body).pieces)
    writer = DIALECTS[client].writer()
    written = b"".join(writer.feed([event]) for event in recording.expected()) + writer.close()
    assert "\n".join(found.rows["client"]["text"]).split() == written.decode().split()
    assert all(0 <= link < len(found.rows["events"]["at"]) for link in found.rows["client"]["link"])


def test_lost_and_folded_events_are_marked() -> None:
    recording = next(one for one in EVERY if named(one) == "cohere-cited")
    found = of_pieces(Inspection("cohere", "ollama"), read_source(recording.body).pieces)
    marks = dict(zip(found.kinds(), found.rows["events"]["mark"], strict=True))
    assert marks["citation"] & (LOST | FOLDED)
    assert found.head["lost"].get("Citation") or found.head["folded"].get("Citation")


def pieces_of(*steps: tuple[float, str, bytes]) -> list[RecordedPiece]:
    return [RecordedPiece(*step) for step in steps]


def chat(**delta: object) -> bytes:
    body = {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def lines(*events: Event) -> bytes:
    return b"\n".join(encode(event) for event in events)


def test_changes_of_a_stage_are_distinguished_from_upstream_events() -> None:
    asked = msgspec.json.encode({"dialect": "openai_chat", "upstream": "up", "model": "m"})
    pieces = pieces_of(
        (0.0, "ask", asked),
        (0.1, "up", chat(role="assistant", content="my key is ")),
        (0.2, "events", lines(StreamStart("c", "m"), TextStart(), TextDelta("my key is "))),
        (0.3, "down", b"data: 1\n\n"),
        (0.4, "up", chat(content="sk-123") + chat(content=" ok")),
        (0.5, "events", lines(TextDelta("[key]"), TextDelta(" ok"), ToolResult("call_1", "done"))),
        (0.6, "down", b"data: 2\n\ndata: 3\n\n"),
        (0.7, "events", lines(TextEnd(), StreamEnd())),
    )
    found = of_pieces(Inspection("openai_chat", "openai_chat", has_events=True, has_client=True), pieces)
    texts = found.rows["events"]["text"]
    own = [texts[row] for row, mark in enumerate(found.rows["events"]["mark"]) if mark & OWN]
    assert own[0] == '{"type":"text_delta","text":"[key]"}'
    assert found.rows["events"]["link"][texts.index(own[0])] == 1, "it stands in place of what the second frame said"
    assert '{"type":"tool_result","call_id":"call_1","content":"done"}' in own
    assert [one["text"] for one in found.removed if "sk-123" in one["text"]] == ['{"type":"text_delta","text":"sk-123"}']
    assert found.rows["events"]["link"][texts.index('{"type":"text_delta","text":" ok"}')] == 2
    assert found.rows["client"]["link"][0] == 2
    assert found.head["attempts"][0]["first_byte"] == 0.1
    assert found.head["gaps"][0]["begin"] == pytest.approx(0.1)


@pytest.mark.parametrize("include_usage", [True, False])
@pytest.mark.parametrize("writes", [1, 4])
def test_each_delta_is_linked_to_its_client_frame_however_the_frames_are_written(include_usage: bool, writes: int) -> None:
    """A fast upstream or a busy gateway gives many events in one write, together with the end of the stream."""
    words = ["The", " tide", " is", " high"]
    events: list[Event] = [StreamStart("c", "m"), TextStart(), *map(TextDelta, words), TextEnd(), Usage(3, 4), StreamEnd()]
    writer = DIALECTS["openai_chat"].writer(include_usage=include_usage)
    pieces: list[RecordedPiece] = []
    size = -(-len(events) // writes)
    for begin in range(0, len(events), size):
        some = events[begin : begin + size]
        last = writer.close if begin + size >= len(events) else bytes
        pieces += pieces_of((begin, "events", lines(*some)), (begin, "down", writer.feed(some) + last()))
    found = of_pieces(Inspection("openai_chat", "openai_chat", has_events=True, has_client=True), pieces)
    client = found.rows["client"]
    assert "[DONE]" in client["text"][-1]
    assert client["link"][-1] == len(events) - 1
    for row, event in enumerate(events):
        if isinstance(event, TextDelta):
            linked = [text for text, link in zip(client["text"], client["link"], strict=True) if link == row]
            assert [event.text in text for text in linked] == [True]


def test_attempts_are_read_apart() -> None:
    def asked(dialect: str) -> bytes:
        return msgspec.json.encode({"dialect": dialect, "upstream": dialect, "model": "m"})

    anthropic = next(one for one in EVERY if named(one) == "anthropic-text_cached")
    pieces = pieces_of(
        (0.0, "ask", asked("openai_chat")),
        (0.1, "up", chat(role="assistant")[:40]),
        (0.2, "ask2", asked("anthropic")),
        (0.3, "up2", anthropic.body),
        (0.4, "events", b"\n".join(encode(event) for event in anthropic.expected())),
    )
    found = of_pieces(Inspection("anthropic", "openai_chat", has_events=True), pieces)
    assert [attempt["dialect"] for attempt in found.head["attempts"]] == ["openai_chat", "anthropic"]
    assert set(found.rows["upstream"]["mark"]) == {1, 2}
    assert all(link >= 0 for link in found.rows["events"]["link"])


def test_bars_have_begin_end_and_events() -> None:
    recording = next(one for one in EVERY if named(one) == "anthropic-parallel_calls")
    found = of_pieces(Inspection("anthropic"), read_source(recording.body).pieces)
    calls = [bar for bar in found.bars if bar["kind"] == "call"]
    assert len(calls) == 2
    for bar in calls:
        assert bar["begin"] < bar["end"]
        assert found.kinds()[bar["first"]] == "tool_call_start"
        assert found.kinds()[bar["last"]] == "tool_call_end"


def test_bars_of_a_turn_without_events() -> None:
    marks = [(0.1, "TextStart"), (0.5, "TextEnd"), (0.5, "StepEnd"), (0.6, "ToolResult"), (0.7, "TextStart")]
    bars = bars_of_marks(marks, 0.0)
    assert [(bar.kind, bar.begin, bar.end, bar.step) for bar in bars] == [
        ("text", 0.1, 0.5, 0),
        ("result", 0.6, 0.6, 1),
        ("text", 0.7, 0.7, 1),
    ]
    failure = {"upstream": "a", "status": 500, "code": "x", "at": 0.1, "seconds": 0.2, "message": "no"}
    waits = {"waits": [{"kind": "judge", "label": "redact", "at": 0.0, "seconds": 1.0}], "failures": [failure]}
    assert [(bar.kind, bar.label) for bar in bars_of_facts(waits)] == [("judge", "redact"), ("failed", "a 500 x")]


def test_pages_are_joined_without_a_gap() -> None:
    body = chat(content="word ") * 20_000 + b"data: [DONE]\n\n"
    found = of_pieces(Inspection("openai_chat", "anthropic"), read_source(body).pieces)
    assert len(found.lines) > 3
    first = found.lines[0]["rows"]
    assert len(first["upstream"]["at"]) + len(first["events"]["at"]) <= 2 * FIRST_ROWS
    assert len(found.rows["upstream"]["at"]) == 20_001
    assert [bar["kind"] for bar in found.bars if bar["kind"] == "text"] == ["text"]


# --- notations


@each(row=[row for row in FORMATS.values() if not row.untouched and not row.only_declared])
def test_a_notation_is_found_by_what_it_reads(row: Format) -> None:
    example = row.example
    name = notation_of(example)
    read = parse_text(example, name, starts_in_reasoning=begins_in_thinking(example, FORMATS[name]))
    assert [type(event) for event in read] == [type(event) for event in parse_text(example, row)]


def test_prose_has_no_notation() -> None:
    for text in ("", "Hello, world.", "Use `a < b` and {braces}.", "An [example](https://example.org) of a list: [1, 2]"):
        assert notation_of(text) == "none"


def test_calls_inside_a_chat_stream_are_found_by_themselves() -> None:
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    body = b"".join(chat(content=piece) for piece in ("Let me look. ", call[:20], call[20:])) + b"data: [DONE]\n\n"
    source = read_source(body)
    found = of_pieces(Inspection(source.dialect, inband=source.inband, starts=source.starts), source.pieces)
    assert "tool_call_start" in found.kinds()
    assert [bar["label"] for bar in found.bars if bar["kind"] == "call"] == ["get_weather"]


# --- recordings


def test_a_recording_is_read_as_it_was_written() -> None:
    asked = msgspec.json.encode({"dialect": "anthropic", "upstream": "a", "model": "m", "inband": "hermes"})
    pieces = pieces_of((0.0, "ask", asked), (0.5, "up", b"event: ping\n\n"), (0.6, "up", b"\xff\xfe"), (0.7, "events", b"{}"))
    source = read_source(b"".join(recording_lines(pieces)))
    assert (source.pieces, source.dialect, source.inband) == (pieces, "anthropic", "hermes")
    assert source.timed
    assert source.has_events


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"  \n ", "nothing to look at"),
        (b"hello there", "cannot be recognised"),
        (b'{"direction":"up","at":-1,"text":"x"}', "at is between"),
        (b'{"direction":"up","at":1e999,"text":"x"}', "cannot be read|at is between"),
        (b'{"direction":"up","base64":"*"}', "line 1"),
        (b'{"direction":"up","text":"x"}\n{', "line 2"),
    ],
)
def test_unreadable_input_is_refused_with_a_reason(body: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_source(body)


def test_events_can_be_pasted_too() -> None:
    events: list[Event] = [
        StreamStart("a", "m"),
        ToolCallStart("c1", "f"),
        ToolCallDelta("{}"),
        ToolCallEnd(),
        StreamEnd("tool_calls"),
    ]
    source = read_source(b"".join(encode(event) + b"\n" for event in events))
    found = of_pieces(Inspection(source.dialect, "anthropic"), source.pieces)
    assert found.kinds() == ["stream_start", "tool_call_start", "tool_call_delta", "tool_call_end", "stream_end"]
    broken = read_source(encode(events[0]) + b"\nnonsense\n")
    assert of_pieces(Inspection(broken.dialect), broken.pieces).kinds() == ["stream_start", "stream_error"]


def test_a_line_of_a_recording_that_is_not_an_event_is_shown_as_an_error() -> None:
    lines = [encode(StreamStart("a", "m")), b"{}", b'{"type": "nonsense"}', b"\xff", b'{"type":' + b"[" * 100_000]
    pieces = [RecordedPiece(0.0, "events", line) for line in lines]
    found = of_pieces(Inspection("openai_chat", "anthropic", has_events=True), pieces)
    assert found.kinds() == ["stream_start", *["stream_error"] * 4]
    assert "is not an event" in found.events()[1]["message"]


def test_a_writer_that_gives_up_leaves_what_was_folded_before() -> None:
    events: list[Event] = [StreamStart("a", "m"), Usage(1, 1), TextDelta("outside of a block")]
    inspection = Inspection("events", "gemini")
    found = of_pieces(inspection, [RecordedPiece(0.0, "up", encode(event) + b"\n") for event in events])
    assert found.head["folded"] == {"Usage": 1}
    assert found.head["how_folded"]["Usage"]


@each(client=["agui", "vercel_ui"])
@each(recording=EVERY)
def test_streams_for_web_pages_are_read_back(recording: Recording, client: str) -> None:
    writer = DIALECTS[client].writer()
    body = writer.feed(recording.expected()) + writer.close()
    events = every_cut(ClientReader, body)
    check(events)
    assert _said(events) == _said(recording.expected())
    if b"delta" in body:
        source = read_source(body)
        assert (source.dialect, source.inband) == (client, read_source(recording.body).inband)


def _said(events: list[Event]) -> tuple[str, str, list[str], str]:
    """Text, reasoning, names of calls, and how it ended."""
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    calls = [event.name for event in events if isinstance(event, ToolCallStart)]
    last = events[-1]
    return text, thought, calls, last.reason if isinstance(last, StreamEnd) else type(last).__name__


def test_a_page_stream_that_breaks_off_or_is_not_json_ends_with_an_error() -> None:
    start = b'data: {"type":"RUN_STARTED","runId":"r"}\n\ndata: {"type":"TEXT_MESSAGE_CONTENT","delta":"hi"}\n\n'
    cut = every_cut(ClientReader, start)
    assert [type(event).__name__ for event in cut] == ["StreamStart", "TextStart", "TextDelta", "TextEnd", "StreamError"]
    assert type(every_cut(ClientReader, start + b"data: nonsense\n\n")[-1]) is StreamError
    odd = every_cut(ClientReader, b'data: []\n\ndata: {"type":7}\n\ndata: {"type":"abort"}\n\n')
    assert [type(event).__name__ for event in odd] == ["StreamStart", "StreamEnd"]


def test_a_test_file_passes(pytester_folder: Path) -> None:
    folder = pytester_folder
    for recording in (one for one in EVERY if one.name in ("parallel_calls", "text", "array")):
        for name, data in unzipped(pytest_archive(f"turn {recording.dialect}", read_source(recording.body))).items():
            (folder / name).write_bytes(data)
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    recorded = read_source(chat(content=call) + b"data: [DONE]\n\n")
    for name, data in unzipped(pytest_archive("in band", recorded)).items():
        (folder / name).write_bytes(data)
    assert pytest.main(["-q", "-p", "no:cacheprovider", str(folder)]) == 0


# --- hostile bytes


def test_control_characters_and_long_rows_are_made_harmless() -> None:
    assert readable(b"data: \x1b[31m\x00\xff\n\n") == "data: ␛[31m␀\ufffd"
    assert "\u202e" not in readable("data: \u202eabc\n\n".encode())
    long = readable(b"data: " + b"x" * 100_000)
    assert len(long) < MAX_ROW_CHARS + 100
    assert long.endswith("(100006 bytes in all)")


def test_long_texts_of_a_request_are_cut() -> None:
    cut = shortened({"a": ["x" * (MAX_STRING_CHARS + 1)]})
    assert cut["a"][0].endswith(f"({MAX_STRING_CHARS + 1} characters in all)")
    deep: list[object] = []
    for _ in range(1000):
        deep = [deep]
    assert "…" in msgspec.json.encode(shortened(deep)).decode()
    assert shown_body(b"\xff") == {"note": "1 bytes that are not JSON"}
    assert "too large" in shown_body(msgspec.json.encode(["y" * 3000] * 500))["note"]


def test_a_curl_command_quotes_what_a_shell_would_run() -> None:
    text = curl("http://h/$(id)", {"x": "a'b", "authorization": "Bearer $KEY", "y": "$(id)"}, b'{"a": "\'; rm -rf / #"}')
    assert "'http://h/$(id)'" in text
    assert '-H "authorization: Bearer $KEY"' in text
    assert "-H 'y: $(id)'" in text
    assert "'\"'\"'; rm -rf / #" in text


def test_a_citation_outside_of_a_block_is_shown() -> None:
    pieces = pieces_of((0.0, "events", lines(StreamStart(), TextDelta("loose"), Citation(url="u"), StreamEnd())))
    found = of_pieces(Inspection("openai_chat", "anthropic", has_events=True), pieces)
    assert len(found.kinds()) == 4


def test_saved_chunks_are_a_frame_each() -> None:
    """A JSON array of chunks, and a chunk a line, without any other sign of a stream."""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 7, "model": "m"}
    deltas = [({"role": "assistant", "content": "Hel"}, None), ({"content": "lo"}, None), ({}, "stop")]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} for delta, finish in deltas]
    for body in (json.dumps(chunks), json.dumps(chunks, indent=1), "\n".join(map(json.dumps, chunks)) + "\n"):
        source = read_source(body.encode())
        assert source.dialect == "openai_chat"
        assert b"".join(piece.data for piece in source.pieces) == body.encode()
        assert len(source.pieces) == 3
        reader = reader_of(source.dialect)
        assert reader is not None
        events = [event for piece in source.pieces for event in reader.feed(piece.data)] + reader.close()
        assert collect(events).choices[0].text == "Hello"
