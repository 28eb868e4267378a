"""Reads GenerateContentResponse chunks: server-sent events, a streamed JSON array, or one JSON body.

The wire format has no end marker. The stream is complete when every candidate has a finish reason, or the prompt was blocked, and
the input has ended; an input that ends before that was truncated.

``PartialArgs`` converts arguments that arrive value by value, each with its JSON path, to JSON text while they stream:
``$.list[0].name = "Eg"``, ``$.list[0].name = "g"`` gives ``{"list":[{"name":"Eg``, then ``g``, then ``"}]}``. Paths normally
arrive in document order, and then every value is written at once. A path into a part that is closed already cannot be written in
its place: the top-level argument is then written again, complete, under the same key at the end. Every JSON parser in use takes
the last value of a repeated key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import isfinite
from typing import Final, Protocol, Unpack

import msgspec

from ...errors import ToolCallParseError, UpstreamProtocolError, excerpt
from ...events import BareEvent, Echo, Extra, Media, ReasoningStart, StopReason, StreamEnd, TextStart, ToolResult, Usage
from ...framing import Frame, Framing, JsonArray, JsonDepth
from ...json_types import JsonObject, JsonValue
from ...limits import DEFAULT_LIMITS, Limits
from ..common import upstream_errors
from ..common.blocks import Block, Blocks
from ..common.lenient import loads, string_in
from ..common.reader import Reader, ReaderOptions
from .parts import DIALECT, SIGNATURE, CitationReader
from .wire import (
    CANDIDATE_EXTRAS,
    MALFORMED_CALL,
    PART_MODIFIERS,
    UNSPECIFIED,
    Blob,
    Candidate,
    Chunk,
    FunctionCall,
    Part,
    PartialArg,
    camel_case,
    camel_keys,
    chunk_decoder,
    merge_usage,
    read_reason,
    read_time,
    read_usage,
)

# --- arguments that arrive value by value

Path = tuple[str | int, ...]
_STEP: Final = re.compile(r"""\.([^.\[\]'"\s]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
MAX_DEPTH: Final = 256
"""Maximum steps of one path: deeper arguments would overflow the clients' parsers."""
MAX_GAP: Final = 1000
"""Maximum empty places in a list: a single index must not create a list of millions."""


def parse_path(text: str) -> Path:
    """The keys and indexes of a JSON path. Only plain steps are allowed, because the path must name one place."""
    position, steps = (1 if text[:1] == "$" else 0), list[str | int]()
    while position < len(text) and len(steps) < MAX_DEPTH:
        found = _STEP.match(text, position)
        if found is None:
            break
        name, index, single, double = found.groups()
        quoted = single if single is not None else double
        steps.append(name if name is not None else int(index) if index is not None else _ESCAPE.sub(r"\1", quoted))
        position = found.end()
    if position < len(text) or not steps or isinstance(steps[0], int):
        raise UpstreamProtocolError(f"an argument has the invalid path {excerpt(text)}", code="bad_json_path")
    return tuple(steps)


class _Container:
    """An object or a list that is being written. ``keys`` are its keys so far, ``size`` is the length of the list."""

    __slots__ = ("is_list", "keys", "size")

    def __init__(self, is_list: bool) -> None:
        self.is_list = is_list
        self.size = 0
        self.keys: set[str] = set()

    def takes(self, step: str | int) -> bool:
        """Whether this step can still be written after what is there."""
        if isinstance(step, int):
            return self.is_list and step >= self.size
        return not self.is_list and step not in self.keys


class PartialArgs:
    """The arguments of one call. ``add`` and ``close`` return the next piece of their JSON text."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._size = 0
        self._values: list[tuple[Path, JsonValue]] = []
        self._stack = [_Container(False)]
        self._path: Path = ()
        self._string = False
        self._again: dict[str, None] = {}

    def add(self, path: Path, value: object) -> str:
        self._count((len(value) if isinstance(value, str) else 0) + len(path))
        self._values.append((path, value))
        key = str(path[0])
        if key in self._again:
            return ""
        if path == self._path and self._string and isinstance(value, str):
            return _inner(value)
        shared = 0
        while shared < min(len(path), len(self._path)) and path[shared] == self._path[shared]:
            shared += 1
        if (shared in (len(path), len(self._path)) and self._path) or not self._stack[shared].takes(path[shared]):
            self._again[key] = None
            return ""
        return self._close_to(shared) + self._open(path, shared) + self._value(value)

    def close(self) -> str:
        """The rest of the text: closes every open string, list and object."""
        if not self._values:
            return ""
        again: dict[str, list[tuple[Path, JsonValue]]] = {key: [] for key in self._again}
        for path, value in self._values if again else ():
            if path[0] in again:
                again[str(path[0])].append((path, value))
        written = [f",{_quoted(key)}:{json.dumps(_built(values))}" for key, values in again.items()]
        return "".join((self._close_to(0), *written, "}"))

    def _close_to(self, shared: int) -> str:
        text = '"' if self._string else ""
        self._string = False
        while len(self._stack) > shared + 1:
            text += "]" if self._stack.pop().is_list else "}"
        return text

    def _open(self, path: Path, shared: int) -> str:
        pieces = [] if self._path else ["{"]
        for depth in range(shared, len(path)):
            step, container = path[depth], self._stack[depth]
            if isinstance(step, int):
                self._count(5 * (step - container.size))
                pieces.append("," * (container.size > 0) + "null," * (step - container.size))
                container.size = step + 1
            else:
                pieces.append("," * (len(container.keys) > 0) + _quoted(step) + ":")
                container.keys.add(step)
            if depth + 1 < len(path):
                is_list = isinstance(path[depth + 1], int)
                self._stack.append(_Container(is_list))
                pieces.append("[" if is_list else "{")
        self._path = path
        return "".join(pieces)

    def _value(self, value: JsonValue) -> str:
        self._string = isinstance(value, str)
        if self._string:
            return '"' + _inner(value)
        return json.dumps(value) if not isinstance(value, float) or isfinite(value) else "null"

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limits.block_chars:
            raise self._limits.exceeded("block_chars")


def _built(values: list[tuple[Path, JsonValue]]) -> JsonValue:
    """The value of these pieces, from the first step of their paths on. Later pieces win."""
    root: dict[JsonValue, JsonValue] = {}
    for path, value in values:
        place = root
        for step in path[:-1]:
            inner = place.get(step)
            if not isinstance(inner, dict):
                inner = place[step] = {}
            place = inner
        before = place.get(path[-1])
        if isinstance(value, str):
            if isinstance(before, list):
                before.append(value)
                continue
            value = [value]
        place[path[-1]] = value
    return _plain(root[values[0][0][0]])


def _plain(value: object) -> JsonValue:
    """Objects with numeric steps become lists; lists of pieces become strings."""
    if isinstance(value, list):
        return "".join(value)
    if not isinstance(value, dict):
        return value
    if all(isinstance(step, int) for step in value):
        if max(value) > 2 * len(value) + MAX_GAP:
            raise UpstreamProtocolError(f"the list of an argument has a gap up to index {max(value)}", code="bad_json_path")
        return [_plain(value.get(index)) for index in range(max(value) + 1)]
    return {str(step): _plain(inner) for step, inner in value.items()}


def _quoted(text: str) -> str:
    return f'"{_inner(text)}"'


def _inner(text: str) -> str:
    """The inside of a JSON string. Half a surrogate pair stays an escape, which its other half completes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)[1:-1]
    return json.dumps(text, ensure_ascii=False)[1:-1]


# --- candidates

_CALL_PARTS: Final = ("executableCode", "toolCall")
_RUN_PARTS: Final = {
    "executable_code": "executableCode",
    "tool_call": "toolCall",
    "code_execution_result": "codeExecutionResult",
    "tool_response": "toolResponse",
    "function_response": "functionResponse",
}


class Emit(Protocol):
    """``Reader.emit``."""

    def __call__(self, event: BareEvent, choice: int = 0, media: int = 0) -> None: ...


class CandidateReader:
    """``finish`` is the provider's finish reason once it has arrived. ``raw_part`` finds a part that no struct describes."""

    def __init__(
        self,
        index: int,
        blocks: Blocks,
        emit: Emit,
        provider: str,
        prefix: str,
        limits: Limits,
    ) -> None:
        self.index = index
        self.blocks = blocks
        self.finish: str | None = None
        self._emit = emit
        self._provider = provider
        self._prefix = prefix
        self._limits = limits
        self._block: Block | None = None
        self._partial: PartialArgs | None = None
        self._waiting = False
        self._ids: set[str] = set()
        self._server_calls = 0
        self._server_id = ""
        self._chars = 0
        self._citations = CitationReader()
        self._emitted: JsonObject = {}

    def read(self, candidate: Candidate, raw_part: Callable[[int], JsonValue]) -> None:
        content = candidate.content
        if content is not None and content.parts:
            for position, part in enumerate(content.parts):
                if not self._read_part(part):
                    self._read_unknown(raw_part(position))
        if candidate.citation_metadata is not None or candidate.grounding_metadata is not None:
            for citation in self._citations.read(candidate.citation_metadata, candidate.grounding_metadata):
                self.blocks.put(citation)
        if (
            candidate.safety_ratings is not None
            or candidate.finish_message is not None
            or candidate.citation_metadata is not None
            or candidate.grounding_metadata is not None
            or candidate.url_context_metadata is not None
            or candidate.logprobs_result is not None
            or candidate.avg_logprobs is not None
            or candidate.token_count is not None
            or candidate.continuation_token is not None
        ):
            self._read_extras(candidate)

    def close(self) -> None:
        """Ends the candidate properly."""
        self._end()

    # --- parts

    def _read_part(self, part: Part) -> bool:
        """Reads a part. Returns False for an unknown kind."""
        text, signature = part.text, part.thought_signature
        known = text is not None
        if text:
            block = self._open(part.thought is True)
            offset = block.size
            if not part.thought:
                self._citations.text.add(text)
                self._chars += len(text)
            self.blocks.add(block, text)
            if signature:
                self._end(self._echo(signature, **({"offset": offset} if offset else {})))
                signature = None
        if part.function_call is not None:
            self._read_call(part.function_call, signature)
            known, signature = True, None
        if (
            part.inline_data is not None
            or part.file_data is not None
            or part.executable_code is not None
            or part.code_execution_result is not None
            or part.tool_call is not None
            or part.tool_response is not None
            or part.function_response is not None
        ):
            self._read_rare(part, signature)
            known, signature = True, None
        if part.part_metadata or part.video_metadata or part.media_resolution or part.audio_transcription:
            known = True
            modifiers = {name: value for field, name in PART_MODIFIERS.items() if (value := getattr(part, field))}
            self._emit(Extra(DIALECT, {"part": modifiers}), self.index)
        if signature:
            self._read_lone_signature(signature, part.thought is True)
            known = True
        return known

    def _read_rare(self, part: Part, signature: str | None) -> None:
        for medium in (part.inline_data, part.file_data):
            if medium is not None:
                self._read_media(medium, part.thought is True, signature)
        for field, name in _RUN_PARTS.items():
            data = getattr(part, field)
            if data is not None:
                if name in _CALL_PARTS:
                    self._read_server_call(name, data, signature)
                else:
                    self._read_result(name, data, signature)

    def _open(self, thought: bool) -> Block:
        block, kind = self._block, ReasoningStart if thought else TextStart
        if block is not None and type(block.start) is kind and not block.ended:
            return block
        self._end()
        if not thought:
            self._citations.base = self._chars
        self._block = block = self.blocks.open(ReasoningStart(summary=True) if thought else TextStart())
        return block

    def _end(self, echo: Echo | None = None) -> None:
        """Ends the open block. A call whose last fragment announced more is incomplete."""
        block, self._block = self._block, None
        if block is None:
            return
        if self._waiting:
            block.complete = False
        elif self._partial is not None and not block.ended:
            self.blocks.add(block, self._partial.close())
        self._partial, self._waiting = None, False
        self.blocks.end(block, echo)

    def _echo(self, signature: str, **place: object) -> Echo:
        return Echo(self._provider, {SIGNATURE: signature, **place})

    def _read_lone_signature(self, signature: str, thought: bool) -> None:
        """Reads a signature on an empty part: the state of the open text or reasoning, or reasoning without visible text."""
        block = self._block
        if block is not None and not block.ended and block.kind is None:
            place: JsonObject = {"offset": block.size}
            if thought is not (type(block.start) is ReasoningStart):
                place["thought"] = thought
            self._end(self._echo(signature, **place))
        else:
            self._redacted(self._echo(signature, **({} if thought else {"thought": False})))

    def _redacted(self, echo: Echo) -> None:
        self._end()
        block = self.blocks.open(ReasoningStart(summary=True))
        block.redacted = True
        self.blocks.end(block, echo)

    # --- calls that the client runs

    def _read_call(self, call: FunctionCall, signature: str | None) -> None:
        name, call_id = call.name or "", call.id or ""
        block = self._block if self._block is not None and self._block.kind is not None and not self._block.ended else None
        if block is not None and name and call_id != block.call_id and (call_id or name != block.name or not call.partial_args):
            block = None
        arguments = _arguments(call)
        if block is None:
            if not name:
                if arguments or call.partial_args:
                    raise UpstreamProtocolError(f"a tool call has no name (id {excerpt(call_id)})", code="tool_call_without_name")
                return
            self._end()
            block = self._block = self.blocks.open_call("" if call_id in self._ids else call_id, name)
            self._ids.add(block.call_id)
        if signature:
            self.blocks.keep(block, self._echo(signature))
        self._waiting = bool(call.will_continue)
        if call.partial_args:
            self._partial = self._partial or PartialArgs(self._limits)
            for piece in call.partial_args:
                self._read_partial(block, self._partial, piece)
        elif arguments and not block.size:
            self.blocks.add(block, arguments)
        if not self._waiting:
            self._end()

    def _read_partial(self, block: Block, partial: PartialArgs, piece: PartialArg) -> None:
        self._waiting = self._waiting or bool(piece.will_continue)
        value: object = None
        if piece.string_value is not None:
            value = piece.string_value
        elif piece.number_value is not None:
            value = piece.number_value
        elif piece.bool_value is not None:
            value = piece.bool_value
        elif not bytes(piece.null_value):
            return
        written = partial.add(parse_path(piece.json_path or ""), value)
        if written:
            self.blocks.add(block, written)

    # --- calls that the provider ran

    def _read_server_call(self, name: str, data: JsonObject, signature: str | None) -> None:
        self._end()
        self._server_calls += 1
        self._server_id = string_in(data, "id") or f"{self._prefix}_server_{self._server_calls}"
        if name == "executableCode":
            tool, arguments = "code_execution", {key: data[key] for key in ("language", "code") if key in data}
        else:
            tool, arguments = str(data.get("toolType") or "tool"), data.get("args") or {}
        block = self.blocks.open_call(self._server_id, tool, "server", self._native(name, data, signature))
        self.blocks.add(block, _json(arguments))
        self.blocks.end(block)

    def _read_result(self, name: str, data: JsonObject, signature: str | None) -> None:
        self._end()
        call_id = string_in(data, "id") or (string_in(data, "name") if name == "functionResponse" else self._server_id)
        failed = False
        if name == "codeExecutionResult":
            content = string_in(data, "output")
            failed = data.get("outcome") not in (None, "OUTCOME_OK", "OUTCOME_UNSPECIFIED", 0, 1)
        else:
            content = _json(data["response"]) if data.get("response") else ""
        self._emit(ToolResult(call_id, content, failed, self._native(name, data, signature)), self.index)

    def _native(self, name: str, data: JsonObject, signature: str | None) -> Echo:
        return Echo(self._provider, {name: data, **({SIGNATURE: signature} if signature else {})})

    # --- media and other parts

    def _read_media(self, medium: Blob, thought: bool, signature: str | None) -> None:
        """An image among the reasoning is a draft and not part of the answer."""
        self._end()
        mime = medium.mime_type or "application/octet-stream"
        if thought:
            if medium.data:
                draft = Extra(DIALECT, {"part": {"thought": True, "inlineData": {"mimeType": mime, "data": medium.data}}})
                self._emit(draft, self.index, media=len(medium.data))
            return
        if signature:
            self._redacted(self._echo(signature, next=True))
        if medium.data or medium.file_uri:
            self.blocks.put(Media(mime, medium.data or "", medium.file_uri or ""))

    def _read_unknown(self, part: object) -> None:
        if isinstance(part, dict) and part:
            self._emit(Extra(DIALECT, {"part": part}), self.index)

    def _read_extras(self, candidate: Candidate) -> None:
        for field, name in CANDIDATE_EXTRAS.items():
            value = getattr(candidate, field)
            if value is not None and (name == "logprobsResult" or self._emitted.get(name) != value):
                self._emitted[name] = value
                self._emit(Extra(DIALECT, {"candidate": {name: value}}), self.index)


def _arguments(call: FunctionCall) -> str:
    """The arguments as they were written; a string of JSON, as some relays send, is unpacked."""
    text = bytes(call.args).decode("utf-8", "replace").strip()
    if text.startswith('"'):
        value = loads(text.encode())[0]
        text = value.strip() if isinstance(value, str) else ""
    return "" if text == "null" else text


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


# --- the stream


class GeminiReader(Reader):
    dialect = "gemini"

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._answers: dict[int, CandidateReader] = {}
        self._raw_usage: JsonObject = {}
        self._usage: Usage | None = None
        self._feedback: JsonObject | None = None
        self._blocked: str | None = None
        self._objects = False
        self._frames = 0
        self._bare: list[bytes] = []
        self._bare_size = 0
        self._bare_depth = JsonDepth()

    def framing_for(self, first: bytes) -> Framing | None:
        """``[`` begins the streamed array. ``{`` begins one complete response, or consecutive objects."""
        if first in (b"[", b"{"):
            self._objects = first == b"{"
            return JsonArray(self.limits)
        return super().framing_for(first)

    def read(self, frame: Frame) -> None:
        data = frame.data
        self._frames += 1
        if data[:1] != b"{" and data.strip()[:1] != b"{":
            self._read_other(data)
            return
        data = camel_case(data)
        chunk = self.decode(chunk_decoder, data)
        self._read_chunk(chunk, data)
        if upstream_errors.is_error(chunk.error):
            raise upstream_errors.refusal(chunk.error)

    def eof(self) -> None:
        if self._bare:
            return
        declared = self._objects and self._frames == 1
        if self._blocked or (self._answers and (declared or all(answer.finish for answer in self._answers.values()))):
            self._finish()

    def whole(self, body: JsonObject) -> None:
        """A complete response is a stream of one chunk; it counts as complete even without a finish reason."""
        try:
            data = json.dumps(camel_keys(body)).encode()
        except RecursionError:
            raise UpstreamProtocolError("the answer is nested too deeply") from None
        self._read_chunk(self.decode(chunk_decoder, data), data)
        if not self._answers and not self._blocked:
            raise UpstreamProtocolError(f"the answer has no candidates: {excerpt(body)}")
        self._finish()

    # --- one chunk

    def _read_chunk(self, chunk: Chunk, data: bytes) -> None:
        candidates = chunk.candidates
        if not self.started and (candidates or chunk.prompt_feedback or chunk.usage_metadata or chunk.response_id):
            self.start(chunk.response_id or "", chunk.model_version or "", read_time(chunk.create_time))
        if candidates:
            if len(candidates) == 1:
                self._read_candidate(candidates[0], candidates[0].index or 0, 0, data)
            else:
                for position, index in enumerate(_indexes(candidates)):
                    self._read_candidate(candidates[position], index, position, data)
        if chunk.prompt_feedback:
            self._read_feedback(chunk.prompt_feedback)
        if chunk.usage_metadata:
            self._read_usage(chunk.usage_metadata)

    def _read_candidate(self, candidate: Candidate, index: int, position: int, data: bytes) -> None:
        answer = self._answers.get(index)
        if answer is None:
            if not 0 <= index < self.limits.held_blocks:
                raise UpstreamProtocolError(f"a candidate has the index {index}", code="bad_candidate_index")
            prefix = f"{self._call_prefix}_{index}" if index else self._call_prefix
            answer = CandidateReader(index, self.blocks(index), self.emit, self.provider, prefix, self.limits)
            self._answers[index] = answer
        answer.read(candidate, lambda part: _raw_part(data, position, part))
        if candidate.finish_reason is not None and str(candidate.finish_reason) not in UNSPECIFIED:
            answer.finish = str(candidate.finish_reason)

    def _read_feedback(self, feedback: JsonObject) -> None:
        if feedback == self._feedback:
            return
        self._feedback = feedback
        self.emit(Extra(self.dialect, {"promptFeedback": feedback}))
        reason = feedback.get("blockReason")
        if isinstance(reason, (str, int)) and str(reason) not in UNSPECIFIED:
            self._blocked = str(reason)

    def _read_usage(self, raw: JsonObject) -> None:
        merged = merge_usage(self._raw_usage, raw)
        if merged != self._raw_usage:
            self._raw_usage = merged
            self._usage = read_usage(merged)
            if self._usage is not None:
                self.emit(self._usage)

    # --- frames that are not chunks

    def _read_other(self, data: bytes) -> None:
        """Reads a relay's [DONE], which this format lacks, or a list of chunks."""
        if data.strip(b' \t"') == b"[DONE]":
            return
        value = loads(data)[0]
        if not isinstance(value, list):
            raise UpstreamProtocolError(f"a frame is not an object of the dialect {self.dialect}: {excerpt(data)}")
        for element in value:
            if not isinstance(element, dict):
                raise UpstreamProtocolError(f"a frame is not an object of the dialect {self.dialect}: {excerpt(data)}")
            self.read(Frame(json.dumps(element).encode()))

    def _read_stray(self, line: bytes) -> None:
        """An error may follow the events as bare JSON over many lines, as clients of this format expect."""
        if not self._bare and line.lstrip()[:1] != b"{":
            super()._read_stray(line)
            return
        self._stray = self._stray or line
        self._bare.append(line)
        self._bare_size += len(line)
        if self._bare_size > self.limits.event_bytes:
            raise self.limits.exceeded("event_bytes")
        if self._bare_depth.feed(line.decode("utf-8", "replace")) >= 0:
            data = b"\n".join(self._bare)
            self._bare, self._bare_size, self._bare_depth = [], 0, JsonDepth()
            self.read(Frame(data))

    # --- the end

    def _finish(self) -> None:
        for index in sorted(self._answers, reverse=True):
            self._answers[index].close()
            self._blocks[index].finish()
            if (self._answers[index].finish or "").upper() == MALFORMED_CALL:
                raise ToolCallParseError(f"the provider could not read the model's tool call ({MALFORMED_CALL})")
            if index:
                self.emit(StreamEnd(*self._reason(index)), index)
        self.end(*self._reason(0))

    def _reason(self, index: int) -> tuple[StopReason, str | None]:
        answer = self._answers.get(index)
        raw = answer.finish if answer is not None else None
        if raw is None and self._blocked:
            return "content_filter", self._blocked
        return read_reason(raw or "", answer.blocks.calls if answer is not None else 0), raw


def _indexes(candidates: list[Candidate]) -> list[int]:
    """The wire omits an index of 0. If several are missing, the position in the list counts."""
    known = {candidate.index for candidate in candidates}
    missing = [position for position, candidate in enumerate(candidates) if candidate.index is None]
    if len(missing) == 1 and 0 not in known:
        return [candidate.index or 0 for candidate in candidates]
    return [position if candidate.index is None else candidate.index for position, candidate in enumerate(candidates)]


def _raw_part(data: bytes, candidate: int, part: int) -> JsonValue:
    """A part with all its fields, for the rare part that the struct does not describe."""
    try:
        return loads(data)[0]["candidates"][candidate]["content"]["parts"][part]
    except (KeyError, IndexError, TypeError):
        return None
