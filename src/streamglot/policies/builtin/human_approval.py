"""``human_approval``: calls wait for the decision of a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from ...errors import ConfigError
from ...text import matches_tool
from ..needs import Needs, block
from ..pieces import Piece
from ..policy import JudgeContext, Policy
from ..verdicts import FORWARD, Ask, Forward, Replace


class HumanApproval(Policy, frozen=True):
    """Calls of ``tools`` (globs) are held until a person approves, changes or refuses them, at most ``seconds`` long. ``ask``
    says whom: the ``operator``, through the approvals API, while the stream stays open; or the user of the ``client``, in the
    client's own dialect (AG-UI interrupts, approval requests of Responses and of the Vercel UI stream). The answer then ends
    with the question, and the next request of the client decides. Clients of other dialects, and clients that do not stream,
    wait for the operator. A call that broke off and could be run is withheld."""

    tools: Sequence[str] = ("*",)
    message: str = "Allow the call of {tool}?"
    ask: Literal["operator", "client"] = "operator"
    seconds: float = 300.0

    use: ClassVar[str] = "human_approval"
    title: ClassVar[str] = "Holds tool calls until a person has decided."

    def check(self) -> None:
        if not self.tools or self.seconds <= 0:
            raise ConfigError("human_approval: tools must name at least one glob, and seconds must be above 0")

    def needs(self) -> Needs:
        return block("tool_call")

    def judge(self, piece: Piece, context: JudgeContext) -> Ask | Forward | Replace:
        if not matches_tool(piece.name, self.tools) or not piece.can_run():
            return FORWARD
        if not piece.complete:
            return Replace(reason=f"the call of {piece.name} broke off before a person could decide")
        message = self.message.replace("{tool}", piece.name)
        return Ask(message=message, client=self.ask == "client", reason=f"the tool {piece.name} needs approval")
