"""Facts about the steps of a tool loop: each model turn and each call, for the store and for observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..events import Usage
from ..json_types import JsonObject
from ..stages.stage import ExchangeContext
from .questions import TurnCall
from .tool import ToolOutput

STEP: Final = "step"
"""The subject under which steps are reported. A later fact with the same ``number`` replaces an earlier one."""


class StepLog:
    """Reports steps while they run. A call is reported when it starts and again when it has its result, so that a process
    that dies in between leaves a call without a result, not a call that nobody knows of."""

    def __init__(self, context: ExchangeContext, clock: Callable[[], float]) -> None:
        self._context = context
        self._clock = clock
        self._number = 0
        self._turn = 0
        self._turn_began = 0.0

    def begin_turn(self) -> None:
        self._turn = self.next_number()
        self._turn_began = self._clock()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def model_turn(self, step: int, reason: str, usage: Usage, cost: float) -> None:
        """A model turn ended. Its seconds run from its request to its end, without its calls."""
        fact: JsonObject = {
            "number": self._turn,
            "step": step,
            "kind": "model",
            "reason": reason,
            "seconds": round(self._clock() - self._turn_began, 4),
        }
        counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens, "cost": cost or None}
        fact |= {name: value for name, value in counts.items() if value is not None}
        self._context.report(STEP, fact)

    def call_started(self, step: int, call: TurnCall) -> None:
        self._context.report(STEP, self._call(step, call))

    def call_ended(self, step: int, call: TurnCall, output: ToolOutput) -> None:
        """``result`` is whole, also where the model was given only a part of it."""
        fact = self._call(step, call)
        fact["is_error"] = output.is_error
        fact["seconds"] = round(self._clock() - call.began, 4) if call.began else 0.0
        fact["result"] = output.text if output.whole is None else output.whole
        if output.media:
            fact["media"] = [medium.mime for medium in output.media]
        self._context.report(STEP, fact)

    def _call(self, step: int, call: TurnCall) -> JsonObject:
        return {
            "number": call.number,
            "step": step,
            "kind": "tool",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments,
        }
