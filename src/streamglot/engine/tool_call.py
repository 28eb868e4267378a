"""Runs one call of a tool that no model made: an item of a batch, or a call of an MCP client.

The call is the first model turn of an exchange, so it passes the same policies, the same loop and the same observers as a call of a
model: policies judge the call and its result, a person may be asked, and a recorder writes the turn. No upstream is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ..errors import PolicyRefused, RequestError, StreamglotError, Unsupported, excerpt
from ..json_types import JsonObject
from ..messages import Request, Response, ResponseChoice, TokenCounts, ToolCallPart
from ..stages.stage import ExchangeContext, StageFactory
from ..text import model_name
from ..tools import Tool, ToolOutput
from ..tools.questions import DIRECT, DirectCall
from .answer import EventSource
from .ask import KnownAnswer, Passthrough
from .conversation import ConversationState
from .exchange import Exchange
from .services import Services
from .stage_runner import tool_loop
from .stats import ExchangeRecord
from .upstreams import UpstreamPool

APPROVED: Final = "approved_calls"
"""The subject in an exchange's state of the ids of calls that a person has approved."""
POLICIES: Final = "policies"
"""The subject of annotations under which policies report their verdicts."""
NO_UPSTREAM: Final = ""
"""The name of the upstream of such a turn."""


class ToolCall:
    """One call. ``request`` and ``stages`` are those of its exchange, and it is the ``Upstreams`` of it. ``unlimited``: the tool has time
    limits of its own. ``approved``: a person makes the call, so none is asked. Raises ArgumentsError if the arguments do not fit the tool."""

    def __init__(
        self, pool: UpstreamPool, tool: Tool, arguments: JsonObject, *, unlimited: bool = False, approved: bool = False
    ) -> None:
        tool.check(arguments)
        self.clock, self.log = pool.clock, pool.log
        self.tool = tool
        self.request = Request()
        self.stages: list[StageFactory] = [*pool.stages, tool_loop(pool.tools, direct=True)]
        self._pool = pool
        self._direct = DirectCall(model_name(tool.name), tool, unlimited=unlimited)
        call = ToolCallPart(f"call_{pool.new_id()}", self._direct.name, msgspec.json.encode(arguments).decode())
        self._approved = frozenset((call.call_id,)) if approved else frozenset()
        choice = ResponseChoice(0, [call], "tool_calls")
        self._answer: Response | None = Response(choices=[choice], usage=TokenCounts(0, 0))

    def services(self, context: ExchangeContext) -> Services:
        """Services for the questions of policies. Only a gateway has people who can be asked."""
        return self._pool.services(context) if self._pool.approval_sharing is not None else _Unattended(self._pool, context)

    async def ask(
        self,
        request: Request,  # noqa: ARG002  # a parameter of every ``AskForTurn``
        record: ExchangeRecord,  # noqa: ARG002  # a parameter of every ``AskForTurn``
        conversation: ConversationState | None,  # noqa: ARG002  # a parameter of every ``AskForTurn``
        passthrough: Passthrough,  # noqa: ARG002  # a parameter of every ``AskForTurn``
    ) -> EventSource:
        answer, self._answer = self._answer, None
        if answer is None:  # a policy asks for another answer
            raise Unsupported("no model made this call, so it cannot be made again")
        return KnownAnswer(answer, NO_UPSTREAM)

    async def run(self, exchange: Exchange) -> ToolOutput:
        """Runs the call in its exchange. Returns the result as the policies let it pass, also that of a tool that failed. Raises
        PolicyRefused if a policy did not let the call pass, and what the tool raised."""
        exchange.context.state |= {DIRECT: self._direct, APPROVED: self._approved}
        try:
            await exchange.start()
            response = await exchange.collect()
            exchange.finish()
        finally:
            exchange.close()
        direct = self._direct
        if response.error is not None:
            error = response.error
            known = PolicyRefused if error.origin == "policy" else StreamglotError
            raise known(error.message, code=error.code, status=error.status, retryable=error.retryable, detail=error.detail)
        if direct.output is None:
            raise self._withheld(exchange.context, response.text)
        if isinstance(direct.reply, Exception) and not direct.changed:
            raise direct.reply
        return direct.output

    def _withheld(self, context: ExchangeContext, text: str) -> PolicyRefused:
        """The error of a call that a policy did not let pass."""
        verdicts = [fact for fact in context.annotations.get(POLICIES, ()) if not fact.get("dry_run")]
        last = verdicts[-1] if verdicts else {}
        name = last.get("policy", "")
        why = text or last.get("reason", "") or "the call was not let through"
        subject = f"the policy {name!r}" if name else "a policy"
        return PolicyRefused(
            f"{subject} refused the call of the tool {self.tool.name!r}: {why}", detail={"policy": name, "kind": "tool_call"}
        )


async def find_tool(pool: UpstreamPool, name: str, patterns: Sequence[str]) -> Tool:
    """The enabled tool with this name. Raises a RequestError if there is none. ``patterns`` are the globs that the caller may use for it."""
    found, faults = await pool.tools.registry.select(patterns)
    if not found:
        why = f": {'; '.join(faults)}" if faults else "; `streamglot tools list` lists the enabled tools"
        raise RequestError(f"there is no tool {excerpt(name)}{why}", code="tool_not_found", status=404)
    return found[0]


class _Unattended(Services):
    """The services where no person can be asked: in a program, and on the command line."""

    @property
    def approvals(self) -> Any:  # Any: what a question of a policy uses of the registry
        return _NOBODY


class _Nobody:
    async def ask(self, request: Any) -> Any:  # Any: a request and a decision of the policies, which load slowly
        from ..policies import Decision

        message = f"[The call of {request.tool} needs the approval of a person, and nobody can be asked here. A gateway can ask.]"
        return Decision(False, message)


_NOBODY: Final = _Nobody()
