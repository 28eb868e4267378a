"""``json_schema``: structured output is checked while it streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec
from msgspec import Struct

from ...json.incremental import JsonChecker
from ...json.schema import Schema
from ...json_types import JSON_ERRORS, JsonValue
from ..needs import Needs, answer, delta
from ..pieces import Piece
from ..policy import JudgeContext, Policy
from ..verdicts import FORWARD, End, Forward, Refuse, Retry, Verdict


class _SchemaState(Struct):
    stream: JsonChecker | None = None
    looked: bool = False


class JsonSchema(Policy, frozen=True):
    """``schema``, or the schema of the request's own output format. ``on_violation``:

    - ``end``: the text streams, and the answer ends with an error at the first character that breaks the schema;
    - ``refuse``: the answer is held, and refused if it breaks the schema;
    - ``retry``: the same, but the model is asked once more with a description of the fault.
    """

    schema: Mapping[str, JsonValue] | None = None
    on_violation: Literal["end", "refuse", "retry"] = "end"
    message: str = "the answer does not fit its JSON Schema: {reason}"

    use: ClassVar[str] = "json_schema"
    title: ClassVar[str] = "Checks structured output against a JSON Schema while it streams."

    def check(self) -> None:
        self.compile()

    def compile(self) -> Schema | None:
        return None if self.schema is None else Schema(self.schema)

    def needs(self) -> Needs:
        return delta("text") if self.on_violation == "end" else answer()

    def new_state(self) -> _SchemaState:
        return _SchemaState()

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict:
        if piece.kind == "answer":
            return self._judge_answer(piece, context)
        state: _SchemaState = context.state
        if not state.looked:
            state.looked = True
            schema = self._schema(context)
            state.stream = None if schema is None else JsonChecker(schema)
        if state.stream is None:
            return FORWARD
        place = state.stream.feed(piece.text)
        if place is None:
            return FORWARD
        return End(message=self._message(state.stream.fault), text=piece.text[:place], reason=state.stream.fault)

    def _judge_answer(self, piece: Piece, context: JudgeContext) -> Forward | Refuse | Retry:
        schema = self._schema(context)
        if schema is None or not piece.text or not piece.complete:
            return FORWARD
        try:
            fault = schema.fault(msgspec.json.decode(piece.text))
        except JSON_ERRORS as error:
            fault = f"it is not valid JSON: {error}"
        if not fault:
            return FORWARD
        message = self._message(fault)
        if self.on_violation == "refuse":
            return Refuse(message=message, reason=fault)
        instruction = f"Your answer does not fit the JSON Schema: {fault}. Answer again with JSON only."
        return Retry(instruction=instruction, message=message, reason=fault)

    def _message(self, fault: str) -> str:
        return self.message.replace("{reason}", fault)

    def _schema(self, context: JudgeContext) -> Schema | None:
        own: Schema | None = context.compiled
        if own is not None or context.request is None or context.request.output is None:
            return own
        declared = context.request.output.schema
        return None if declared is None else Schema(declared, strict=False)
