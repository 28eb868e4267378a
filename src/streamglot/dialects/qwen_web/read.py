"""Reads chunks of the web chat.

The stream has no model, no finish reason and often no [DONE]. It ends when the phase ``answer`` is ``finished``, when a finish
reason arrives, or with [DONE]; the end of the input without any of them is a truncation. The end of a thinking phase says nothing
about the answer.
"""

from __future__ import annotations

from typing import Unpack

import msgspec

from ...errors import UpstreamProtocolError, UpstreamTruncated, excerpt
from ...events import Citation, Echo, Extra, StopReason, ToolResult, Usage
from ...framing import Frame
from ...json_types import JsonObject
from ..common import upstream_errors
from ..common.blocks import Block, Blocks
from ..common.lenient import fit
from ..common.reader import Reader, ReaderOptions
from .wire import (
    ANSWERING,
    REASONS,
    THINKING,
    USAGE,
    Chunk,
    Delta,
    FunctionCall,
    Whole,
    chunk_decoder,
    refused,
    summary_text,
)


class QwenWebReader(Reader):
    """The state of the conversation (chat_id, parent_id, response_id) is an ``Extra`` of this dialect: the next request of the
    conversation needs it."""

    dialect = "qwen_web"

    def __init__(self, **more: Unpack[ReaderOptions]) -> None:
        super().__init__(**more)
        self._usage: Usage | None = None
        self._finished = False
        self._finish: str | None = None
        self._phase = ""
        self._text_phases: set[str] = set()
        self._summary = ""
        self._state: JsonObject = {}
        self._urls: set[str] = set()
        self._call: Block | None = None
        self._call_name = ""
        self._arguments = ""

    def read(self, frame: Frame) -> None:
        """Reads one chunk, or several if the blank lines between them were lost."""
        if b"\n" not in frame.data:
            self._read_chunk(frame.data)
            return
        pieces = frame.data.split(b"\n")
        if not all(_is_chunk(piece.strip()) for piece in pieces):
            pieces = [frame.data]
        for piece in pieces:
            if not self._done:
                self._read_chunk(piece)

    def _read_chunk(self, data: bytes) -> None:
        if data[:1] != b"{" and data.strip(b' \t"') == b"[DONE]":
            self._end()
            return
        chunk = self.decode(chunk_decoder, data)
        if chunk.created:
            self._learn(chunk.created)
        for choice in chunk.choices or ():
            if choice.delta is not None:
                self._read_delta(choice.delta)
            if choice.finish_reason:
                self._finish, self._finished = choice.finish_reason, True
        if chunk.usage:
            self._read_usage(chunk.usage)
        self._read_error(chunk)

    def is_chunk(self, value: JsonObject) -> bool:
        choices = value.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        return "response.created" in value or (isinstance(first, dict) and "delta" in first)

    def eof(self) -> None:
        if self._finished:
            self._end()
        else:
            self._keep_arguments()

    def whole(self, body: JsonObject) -> None:
        chunk: Chunk = fit(Chunk, body)
        self._read_error(chunk)
        whole: Whole = fit(Whole, chunk.data if isinstance(chunk.data, dict) else body)
        if not whole.choices:
            raise UpstreamProtocolError(f"the upstream sent a JSON body without choices instead of a stream: {excerpt(body)}")
        state = {"chat_id": whole.chat_id, "parent_id": whole.parent_id, "response_id": whole.response_id or whole.message_id}
        self._learn({name: value for name, value in state.items() if value})
        for choice in whole.choices:
            delta = choice.message or choice.delta
            if delta is not None:
                self._read_delta(delta)
            self._finish = choice.finish_reason or self._finish
        if whole.usage:
            self._read_usage(whole.usage)
        self._end()

    # --- one chunk

    def _learn(self, state: JsonObject) -> None:
        ident = state.get("response_id")
        self.start(ident if isinstance(ident, str) else "")
        if state and state != self._state:
            self._state = state
            self.emit(Extra(self.dialect, dict(state), self.provider))

    def _read_error(self, chunk: Chunk) -> None:
        if upstream_errors.is_error(chunk.error):
            self._keep_arguments()
            raise upstream_errors.refusal(chunk.error)
        if chunk.success is False:
            self._keep_arguments()
            raise refused(chunk.data)

    def _read_usage(self, raw: JsonObject) -> None:
        if self._usage is None or raw != self._usage.raw:
            self.start()
            self._usage = USAGE.read(raw, self._usage)
            self.emit(self._usage)

    def _read_delta(self, delta: Delta) -> None:
        blocks = self.blocks()
        phase = delta.phase or ""
        if phase or delta.content:
            self._phase = phase
        if delta.reasoning_content:
            self._end_call(blocks)
            blocks.reasoning(delta.reasoning_content)
        if delta.role == "function":
            self._read_result(delta, blocks)
        elif delta.content:
            self._end_call(blocks)
            if phase in THINKING:
                blocks.reasoning(delta.content, phase == "thinking_summary")
            else:
                self._text_phases.add(phase)
                blocks.text(delta.content)
        if delta.function_call is not None:
            self._read_call(delta.function_call, delta.function_id, phase, blocks)
        if delta.extra:
            self._read_extra(delta.extra, phase, blocks)
        if delta.status == "finished" and (self._phase in ANSWERING or self._phase in self._text_phases):
            self._finished = True

    def _read_extra(self, extra: object, phase: str, blocks: Blocks) -> None:
        """Summaries of the thinking and the sources of a search; both are repeated, each time with more."""
        if not isinstance(extra, dict):
            return
        if phase == "thinking_summary":
            before, self._summary = self._summary, summary_text(extra) or self._summary
            piece = self._summary[len(before) :] if self._summary.startswith(before) else f"\n\n{self._summary}"
            if piece:
                blocks.reasoning(piece, summary=True)
        sources = extra.get("web_search_info")
        for source in sources if isinstance(sources, list) else ():
            words = {name: value for name, value in source.items() if isinstance(value, str)} if isinstance(source, dict) else {}
            url = words.get("url", "")
            if url and url not in self._urls:
                self._urls.add(url)
                self._end_call(blocks)
                native = Echo(self.provider, source)
                blocks.put(Citation(url, words.get("title", ""), words.get("snippet", ""), native=native))

    # --- calls: the arguments are a growing snapshot that is repeated, so the last one counts

    def _read_call(self, call: FunctionCall, ident: str | None, phase: str, blocks: Blocks) -> None:
        """In its own phase (a search, an image) the provider runs the tool; in the answer it is the client's."""
        name = call.name or self._call_name
        if not name:
            return
        if self._call is None or name != self._call_name or (ident and self._call.call_id not in ("", ident)):
            self._end_call(blocks)
            blocks.finish()
            server = phase not in ANSWERING and phase not in THINKING
            self._call = blocks.open_call(ident or "", name, "server" if server else "function")
            self._call_name = name
        if isinstance(call.arguments, str):
            self._arguments = call.arguments or self._arguments
        elif call.arguments is not None:
            self._arguments = msgspec.json.encode(call.arguments).decode()

    def _keep_arguments(self) -> None:
        """Puts the last snapshot into the open call; no further one may come."""
        if self._call is not None:
            self.blocks().add(self._call, self._arguments)
            self._arguments = ""

    def _end_call(self, blocks: Blocks) -> None:
        if self._call is not None:
            self._keep_arguments()
            blocks.end(self._call)
            self._call = None

    def _read_result(self, delta: Delta, blocks: Blocks) -> None:
        """Reads the result of a provider's tool."""
        call_id = delta.function_id or (self._call.call_id if self._call is not None else "")
        self._end_call(blocks)
        blocks.finish()
        if delta.content or delta.extra:
            native = Echo(self.provider, {"phase": delta.phase, "content": delta.content, "extra": delta.extra})
            self.emit(ToolResult(call_id or "call", delta.content or "", native=native))

    # --- the end

    def _end(self) -> None:
        if self._call is not None:
            self._keep_arguments()
            if not self._finished and not self._call.blank() and not self._call.whole():
                raise UpstreamTruncated("the stream has [DONE] inside the arguments of a tool call")
        blocks = self.blocks()
        self._end_call(blocks)
        blocks.finish()
        if not self._finished and not blocks.count:
            raise UpstreamTruncated("the stream ended without an answer", code="upstream_empty")
        reason: StopReason = REASONS.get(self._finish.lower(), "other") if self._finish else "end"
        if blocks.calls and reason in ("end", "other"):
            reason = "tool_calls"
        self.end(reason, self._finish)


def _is_chunk(line: bytes) -> bool:
    return line == b"[DONE]" or (line[:1] == b"{" and line[-1:] == b"}")
