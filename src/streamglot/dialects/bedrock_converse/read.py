"""Reads Converse events and complete responses."""

from __future__ import annotations

from typing import Final, Unpack

import msgspec

from ...errors import ToolCallParseError, UpstreamError, UpstreamProtocolError, excerpt
from ...events import Citation, Echo, Extra, Media, ReasoningStart, TextStart, ToolResult
from ...framing import AwsEventStream, Frame
from ...json_types import JsonObject, JsonValue
from ..common import upstream_errors
from ..common.blocks import Block
from ..common.lenient import clean, fit, loads, objects_in
from ..common.reader import Reader, ReaderOptions
from .wire import (
    DIALECT,
    EXTRAS,
    MALFORMED_CALL,
    MALFORMED_OUTPUT,
    REASONS,
    USAGE,
    BlockStart,
    Delta,
    Payload,
    ReasoningContent,
    join_blobs,
    payload_decoder,
)

_IN_BLOCKS: Final = ("text", "reasoning", "call")
_NAMED: Final = frozenset(
    ("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata")
)
_SILENT: Final = ("messageStart", "initial-response")


class _Open:
    """An open content block, by its index on the wire. The events have no blocks for results and images: their content is
    collected in ``native`` and ``pieces`` until they stop."""

    __slots__ = ("block", "kind", "native", "pieces")

    def __init__(self, kind: str, block: Block | None = None, native: JsonObject | None = None) -> None:
        self.kind = kind
        self.block = block or Block(None)
        self.native = native or {}
        self.pieces: list[JsonValue] = []


class BedrockConverseReader(Reader):
    dialect = DIALECT
    framing = AwsEventStream

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._open: dict[int, _Open] = {}
        self._results: list[ToolResult] = []
        self._stop: str | None = None
        self._sequence: str | None = None
        self._metadata = False

    def is_chunk(self, value: JsonObject) -> bool:
        """The SDK's objects have the event's name around its payload."""
        return len(value) == 1 and not _NAMED.isdisjoint(value)

    def read(self, frame: Frame) -> None:
        if not frame.event and isinstance(named := loads(frame.data)[0], dict) and self.is_chunk(named):
            name, inner = next(iter(named.items()))
            frame = Frame(msgspec.json.encode(inner), name)
        payload = self.decode(payload_decoder, frame.data)
        match frame.event:
            case "contentBlockDelta":
                if payload.delta is not None:
                    self._read_delta(payload.index or 0, payload.delta)
            case "contentBlockStart":
                self._read_start(payload.index or 0, payload.start or BlockStart())
            case "contentBlockStop":
                self._read_stop(payload.index or 0)
            case "messageStop":
                self._read_message_stop(payload)
            case "metadata":
                self._read_metadata(payload)
            case event if event in _SILENT:
                self.start()
            case _:
                self.start()
                self.emit(Extra(self.dialect, {frame.event or "event": loads(frame.data)[0]}))

    def eof(self) -> None:
        if self._stop is not None:
            self._finish()

    def whole(self, body: JsonObject) -> None:
        output = body.get("output")
        message = output.get("message") if isinstance(output, dict) else None
        if not isinstance(message, dict):
            if isinstance(body.get("message"), str) or "__type" in body:
                raise upstream_errors.refusal(body)
            raise UpstreamProtocolError(f"the upstream sent a JSON body without a message instead of a stream: {excerpt(body)}")
        self.start()
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            if isinstance(block, dict):
                self._read_whole_block(index, block)
        payload = fit(Payload, body)
        self._read_message_stop(payload)
        self._read_metadata(payload)
        if not self._done:
            raise UpstreamProtocolError(f"the response has no stop reason: {excerpt(body)}")

    # --- blocks

    def _read_start(self, index: int, start: BlockStart) -> None:
        blocks = self.blocks()
        self._read_stop(index)
        if start.tool_use is not None:
            call = start.tool_use
            if not call.name:
                raise UpstreamProtocolError(
                    f"a tool call has no name (id {excerpt(call.tool_use_id)})", code="tool_call_without_name"
                )
            server = call.type == "server_tool_use"
            native = Echo(self.provider, {"type": call.type}) if server else None
            kind = "server" if server else "function"
            block = blocks.open_call(call.tool_use_id or "", call.name, kind, native)  # type: ignore[arg-type]  # one of the two above
            self._open[index] = _Open("call", block)
        elif start.tool_result is not None:
            result = start.tool_result
            native_result = {"toolUseId": result.tool_use_id or "", "status": result.status, "type": result.type}
            self._open[index] = _Open(
                "result", native={name: value for name, value in native_result.items() if value is not None}
            )
        elif start.image is not None:
            self._open[index] = _Open("image", native={"format": start.image.format or "*"})

    def _read_delta(self, index: int, delta: Delta) -> None:
        if delta.text is not None:
            if delta.text:
                self._add(self._block(index, "text"), delta.text)
        elif delta.tool_use is not None:
            arguments = delta.tool_use.input
            piece = (
                arguments
                if isinstance(arguments, str)
                else ""
                if arguments is None
                else msgspec.json.encode(clean(arguments)).decode()
            )
            self._add(self._block(index, "call"), piece)
        elif delta.reasoning is not None:
            self._read_reasoning(index, delta.reasoning)
        elif isinstance(delta.citation, dict):
            self._block(index, "text")
            self.blocks().put(read_citation(delta.citation))
        elif isinstance(delta.tool_result, list):
            opened = self._block(index, "result")
            self.tally.extra(delta.tool_result)
            opened.pieces += objects_in(delta.tool_result)
        elif isinstance(delta.image, dict):
            self._read_image(index, delta.image)

    def _read_reasoning(self, index: int, delta: ReasoningContent) -> None:
        opened = self._block(index, "reasoning")
        if delta.text:
            self._add(opened, delta.text)
        for name, value in (("signature", delta.signature), ("redactedContent", delta.redacted)):
            if value:
                self.blocks().count_opaque(opened.block, len(value))
                opened.native.setdefault(name, []).append(value)

    def _read_image(self, index: int, delta: JsonObject) -> None:
        opened = self._block(index, "image")
        source = delta.get("source")
        if isinstance(source, dict):
            place = source.get("s3Location")
            if isinstance(place, dict) and isinstance(place.get("uri"), str):
                opened.native["uri"] = place["uri"]
            if isinstance(source.get("bytes"), str):
                self.tally.media(len(source["bytes"]))
                opened.pieces.append(source["bytes"])
        else:
            self.emit(Extra(self.dialect, {"image": delta}))

    def _block(self, index: int, kind: str) -> _Open:
        """The block of this index; text and reasoning begin without a start event."""
        opened = self._open.get(index)
        if opened is not None and opened.kind == kind:
            return opened
        self._read_stop(index)
        blocks = self.blocks()
        match kind:
            case "text":
                opened = _Open(kind, blocks.open(TextStart()))
            case "reasoning":
                opened = _Open(kind, blocks.open(ReasoningStart()))
            case "call":
                raise UpstreamProtocolError(
                    f"arguments arrived for the block {index}, which is not a tool call", code="tool_call_without_name"
                )
            case _:
                opened = _Open(kind)
        self._open[index] = opened
        return opened

    def _add(self, opened: _Open, piece: str) -> None:
        self.blocks().add(opened.block, piece)

    def _read_stop(self, index: int) -> None:
        opened = self._open.pop(index, None)
        if opened is None:
            return
        match opened.kind:
            case "result":
                self._results.append(self._result(opened))
            case "image":
                name = opened.native.get("format", "*")
                image = Media(f"image/{name}", join_blobs(opened.pieces or [""]), opened.native.get("uri", ""))
                self.blocks().put(image, counted=True)
            case _:
                self._end(opened, opened.block)
        self._release()

    def _end(self, opened: _Open, block: Block) -> None:
        echo = self._echo(opened)
        block.redacted = echo is not None and "redactedContent" in echo.data and not block.size
        self.blocks().end(block, echo)

    def _release(self) -> None:
        """Emits results, which stand between blocks. They wait while a block is open."""
        if self._results and not any(opened.kind in _IN_BLOCKS for opened in self._open.values()):
            for result in self._results:
                self.emit_counted(result)
            self._results.clear()

    def _echo(self, opened: _Open) -> Echo | None:
        if not opened.native:
            return None
        data: JsonObject = {}
        if "signature" in opened.native:
            data["signature"] = "".join(opened.native["signature"])
        if "redactedContent" in opened.native:
            data["redactedContent"] = join_blobs(opened.native["redactedContent"])
        return Echo(self.provider, data)

    def _result(self, opened: _Open) -> ToolResult:
        native = {**opened.native, "content": opened.pieces}
        texts = [result_text(piece) for piece in opened.pieces]
        failed = native.get("status") == "error"
        return ToolResult(native.get("toolUseId", ""), "".join(texts), failed, Echo(self.provider, {"toolResult": native}))

    # --- complete responses

    def _read_whole_block(self, index: int, block: JsonObject) -> None:
        cited, reasoning = block.get("citationsContent"), block.get("reasoningContent")
        call, result = block.get("toolUse"), block.get("toolResult")
        if isinstance(cited, dict):
            for citation in objects_in(cited.get("citations")):
                self._read_delta(index, Delta(citation=citation))
            for piece in objects_in(cited.get("content")):
                self._read_delta(index, fit(Delta, piece))
        elif isinstance(reasoning, dict):
            inner = reasoning.get("reasoningText")
            self._read_reasoning(index, fit(ReasoningContent, {**reasoning, **(inner if isinstance(inner, dict) else {})}))
        elif isinstance(call, dict):
            self._read_start(index, fit(BlockStart, block))
            self._read_delta(index, Delta(tool_use=fit(Delta, block).tool_use))
        elif isinstance(result, dict):
            self._read_start(index, fit(BlockStart, block))
            self._read_delta(index, Delta(tool_result=result.get("content")))
        elif isinstance(block.get("image"), dict):
            self._read_start(index, fit(BlockStart, block))
            self._read_delta(index, Delta(image=block["image"]))
        elif isinstance(block.get("text"), str):
            self._read_delta(index, Delta(text=block["text"]))
        else:
            self.emit(Extra(self.dialect, {"content": block}))
        self._read_stop(index)

    # --- the end

    def _read_message_stop(self, payload: Payload) -> None:
        self.start()
        if payload.stop_reason:
            self._stop = payload.stop_reason
        self._stop_all()
        if isinstance(payload.response_fields, dict) and payload.response_fields:
            sequence = payload.response_fields.get("stop_sequence")
            self._sequence = sequence if isinstance(sequence, str) else None
            self.emit(Extra(self.dialect, {"additionalModelResponseFields": payload.response_fields}))
        if self._metadata:
            self.eof()

    def _read_metadata(self, payload: Payload) -> None:
        self.start()
        self._metadata = True
        for name, wire in EXTRAS.items():
            value = getattr(payload, name)
            if value:
                self.emit(Extra(self.dialect, {wire: value}))
        if payload.usage:
            self.emit(USAGE.read(payload.usage))
        self.eof()

    def _stop_all(self) -> None:
        for index in list(self._open):
            self._read_stop(index)

    def _finish(self) -> None:
        self._stop_all()
        raw = self._stop
        if raw == MALFORMED_CALL:
            raise ToolCallParseError(f"the service could not read the model's tool call ({raw}); repeat the request")
        if raw == MALFORMED_OUTPUT:
            raise UpstreamError(f"the service could not read the model's output ({raw})", code=raw)
        reason = REASONS.get(raw or "", "other")
        if reason in ("end", "other") and self.blocks().calls:
            reason = "tool_calls"
        self.end(reason, raw, self._sequence)


def result_text(piece: JsonObject) -> str:
    """The text of a piece of a tool's result, or its JSON as text."""
    text = piece.get("text")
    if isinstance(text, str):
        return text
    return msgspec.json.encode(clean(piece["json"])).decode() if "json" in piece else ""


def read_citation(citation: JsonObject) -> Citation:
    """Reads a citation. Its location refers to the source, not to the answer, and stays in ``native``."""
    title, source, location = citation.get("title"), citation.get("source"), citation.get("location")
    web = location.get("web") if isinstance(location, dict) else None
    url = web.get("url") if isinstance(web, dict) else source
    quotes = [piece["text"] for piece in objects_in(citation.get("sourceContent")) if isinstance(piece.get("text"), str)]
    return Citation(
        url if isinstance(url, str) else "",
        title if isinstance(title, str) else "",
        "".join(quotes),
        native=Echo(DIALECT, citation),
    )
