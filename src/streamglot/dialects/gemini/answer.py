"""Reads one candidate: the parts of its chunks to consecutive blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from ...errors import UpstreamProtocolError, excerpt
from ...events import BareEvent, Echo, Extra, Media, ReasoningStart, TextStart, ToolResult
from ...json_types import JsonObject, JsonValue
from ...limits import Limits
from ..blocks import Block, Blocks
from ..lenient import loads, string_in
from .citations import CitationReader
from .partial_args import PartialArgs, parse_path
from .signature import DIALECT, FIELD
from .wire import CANDIDATE_EXTRAS, PART_MODIFIERS, Blob, Candidate, FunctionCall, Part, PartialArg

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
        return Echo(self._provider, {FIELD: signature, **place})

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
        return Echo(self._provider, {name: data, **({FIELD: signature} if signature else {})})

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
