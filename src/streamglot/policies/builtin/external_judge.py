"""``external_judge``: an HTTP service judges. Servers for Presidio, Lakera, LlamaGuard and the like are attached this way.

The service gets a POST with a ``Judged`` object and answers 200 with a ``JudgeReply`` object. docs/policies.md has both with
examples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

import msgspec
from msgspec import Struct

from ...errors import ConfigError, UpstreamProtocolError, UpstreamRefused, excerpt
from ...json_types import JSON_ERRORS, JsonObject
from ..needs import JudgedUnit, Needs, Target, check_targets, judge_needs
from ..pieces import Piece
from ..policy import Engine, JudgeContext, Policy
from ..verdicts import End, Forward, Refuse, Replace, Retry, Rewrite, Verdict

MAX_REPLY_BYTES: Final = 8 * 2**20
"""A reply has at most the rewritten text of one block."""


class Judged(Struct, omit_defaults=True):
    """The request to the service. ``tool`` and ``call_id`` are there for calls and results, ``role`` in requests, ``blocks`` for
    a whole answer."""

    policy: str
    request_id: str
    model: str
    key: str
    endpoint: str
    direction: str
    kind: str
    unit: str
    text: str
    tool: str = ""
    call_id: str = ""
    role: str = ""
    blocks: list[JsonObject] = []


class JudgeReply(Struct):
    """The response of the service. ``text`` is for ``rewrite`` and ``replace``, ``tool`` another name for a rewritten call,
    ``message`` is sent to the client, ``instruction`` is for ``retry``, ``reason`` is recorded."""

    verdict: Literal["forward", "rewrite", "replace", "refuse", "end", "retry"]
    text: str | None = None
    tool: str | None = None
    message: str = ""
    instruction: str = ""
    reason: str = ""
    cost: float | None = None


class ExternalJudge(Policy, frozen=True, kw_only=True):
    """``url`` is asked for each piece. ``key_env`` is the variable that holds a bearer token. ``unit`` is how much of a text is
    judged at once."""

    url: str
    apply_to: Sequence[Target] = ("tool_arguments",)
    unit: JudgedUnit = "block"
    key_env: str = ""
    headers: Mapping[str, str] = {}
    seconds: float = 10.0

    use: ClassVar[str] = "external_judge"
    title: ClassVar[str] = "Has an HTTP service judge tool calls, text or requests."

    def check(self) -> None:
        check_targets(self.name, self.apply_to)
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"external_judge: url is {excerpt(self.url)}; it must begin with http:// or https://")
        if self.key_env and self.key_env not in os.environ:
            raise ConfigError(f"external_judge: the variable {self.key_env} is not set")

    def needs(self) -> Needs:
        return judge_needs(self.apply_to, self.unit)

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        body = msgspec.json.encode(judged(self.name, piece, context))
        headers = {"Content-Type": "application/json", **self.headers}
        if self.key_env:
            headers["Authorization"] = f"Bearer {os.environ.get(self.key_env, '')}"
        return verdict_of(await self._post(body, headers))

    async def _post(self, body: bytes, headers: dict[str, str]) -> bytes:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self.seconds)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.post(self.url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise UpstreamRefused(f"the judge at {self.url} answered with status {response.status}")
            text = await response.content.read(MAX_REPLY_BYTES + 1)
            while not response.content.at_eof() and len(text) <= MAX_REPLY_BYTES:
                text += await response.content.read(MAX_REPLY_BYTES + 1)
            if len(text) > MAX_REPLY_BYTES:
                raise UpstreamProtocolError(f"the judge at {self.url} answered with more than {MAX_REPLY_BYTES} bytes")
            return text


def judged(policy: str, piece: Piece, context: JudgeContext) -> Judged:
    exchange = context.exchange
    return Judged(
        policy,
        exchange.request_id,
        exchange.model,
        exchange.key,
        exchange.endpoint,
        piece.direction,
        piece.kind,
        piece.unit,
        piece.text,
        piece.name,
        piece.call_id,
        piece.role,
        [{"kind": part.kind, "text": part.text, "tool": part.name, "call_id": part.call_id} for part in piece.parts],
    )


def verdict_of(body: bytes) -> Verdict:
    """The verdict of a service. Anything other than a reply is an error."""
    try:
        reply = msgspec.json.decode(body, type=JudgeReply)
    except JSON_ERRORS as error:
        raise UpstreamProtocolError(f"the judge answered {excerpt(body)}, which is not a verdict: {error}") from None
    match reply.verdict:
        case "forward":
            return Forward(reason=reply.reason, cost=reply.cost)
        case "rewrite":
            return Rewrite(text=reply.text, name=reply.tool, reason=reply.reason, cost=reply.cost)
        case "replace":
            return Replace(text=reply.text or "", reason=reply.reason, cost=reply.cost)
        case "refuse":
            return Refuse(message=reply.message, reason=reply.reason, cost=reply.cost)
        case "end":
            return End(message=reply.message, reason=reply.reason, cost=reply.cost)
        case "retry":
            return Retry(instruction=reply.instruction, message=reply.message, reason=reply.reason, cost=reply.cost)
