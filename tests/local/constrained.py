"""A gateway over the real model whose every turn is constrained by a grammar.

The model is too small to obey. A grammar of llama.cpp with one sentence makes it say what the script of a scenario wants, token by
token; everything else is real: the template, the stream, the in-band parser, and the gateway's writers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field, structs

from gateway.running import Running, running
from streamglot.messages import Message, Part, Request, ToolCallPart, ToolResultPart, ToolSpec
from streamglot.stages.stage import Stage
from streamglot.upstream import Upstream
from tools.dialect_model import Script, Turn
from tools.scenarios import DONE

NOT_OFFERED = ToolSpec("nothing", "Does nothing.", {"type": "object", "properties": {"city": {"type": "string"}}})
"""A tool that the model may call, and that the gateway in front of it does not have."""
MAX_TOKENS = 40
"""Tokens of the longest sentence of a script, and of a turn with a call that no grammar ends."""
FEW_TOKENS = 8
"""Tokens of a free answer to the results of tools. What it says does not matter."""


class Played(Struct):
    """``script`` is what the model says in each turn; without one it is free. ``requests`` are its requests so far."""

    script: Script | None = lambda _number, _body: DONE
    requests: list[Request] = field(default_factory=list)

    def plays(self, script: Script | None) -> None:
        self.script, self.requests = script, []


PLAYED = Played()


def in_words(turn: Turn) -> str:
    """Calls in the in-band format with the fewest tokens: each token costs some 30 ms of CPU."""
    if isinstance(turn, str):
        return turn
    written = (
        f"{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in json.loads(given).items())})" for name, given in turn
    )
    return f"[{', '.join(written)}]"


class Brief(Stage):
    """Keeps answers short: a client may set no limit."""

    def request(self, request: Request) -> Request:
        answered = any(isinstance(part, ToolResultPart) for message in request.messages for part in message.parts)
        return structs.replace(request, temperature=0.0, max_tokens=FEW_TOKENS if answered else MAX_TOKENS)


class Constrain(Brief):
    """Gives the model the grammar of this turn."""

    def request(self, request: Request) -> Request:
        number = len(PLAYED.requests)
        PLAYED.requests.append(request)
        if PLAYED.script is None:
            return super().request(request)
        said = in_words(PLAYED.script(number, ""))
        # "grammar" is a field of llama.cpp's chat API.
        extra = {"grammar": f"root ::= {json.dumps(said)}"}
        return structs.replace(
            request,
            messages=_with_short_ids(request.messages),
            tools=[*request.tools, NOT_OFFERED] if f"[{NOT_OFFERED.name}(" in said else request.tools,
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            dialect="openai_chat",
            extra=extra,
        )


def _with_short_ids(messages: list[Message]) -> list[Message]:
    """The messages with the same ids in every test, so that llama.cpp knows most prompts."""
    ids: dict[str, str] = {}

    def short(part: Part) -> Part:
        if not isinstance(part, (ToolCallPart, ToolResultPart)):
            return part
        return structs.replace(part, call_id=ids.setdefault(part.call_id, str(len(ids) + 1)))

    return [structs.replace(message, parts=[short(part) for part in message.parts]) for message in messages]


@contextmanager
def serving_constrained(model: Upstream) -> Iterator[Running]:
    """The gateway. Its model ``text`` writes calls into its text; llama.cpp finds those of ``native``."""
    upstream = {"base_url": model.base_url, "key": model.key}
    config = {
        "engine": {"stages": ["local.constrained:Constrain"]},
        "upstreams": {
            "text": {**upstream, "models": {"text": "local"}, "tools": "prompt", "inband": "pythonic"},
            "native": {**upstream, "inband": model.inband, "models": {"native": "local"}},
        },
    }
    with running(config) as gateway:
        yield gateway
