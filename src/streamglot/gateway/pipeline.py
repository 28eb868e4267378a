"""From an upstream's bytes to events: the reader, and behind it what the request needs of an in-band parser and of custom tools."""

from __future__ import annotations

from functools import lru_cache

from msgspec import structs

from ..dialects import dialect
from ..dialects.custom_tools import CustomCalls, as_function, with_functions_only
from ..errors import Unsupported
from ..events import Event
from ..inband import Format, as_prompt, find_format, inband
from ..messages import Request
from ..stages import PerChoice
from ..upstream import Upstream
from ..upstream.providers import abilities_of

MODELS = 1024
"""Models whose format is remembered: finding it means to compare the name with every pattern."""


@lru_cache(MODELS)
def format_of(name: str, model: str) -> Format | None:
    """The notation to look for in a model's text; None where there is none."""
    found = find_format(name, model)
    return None if found is find_format("none") else found


def thinking_of(request: Request, dialect: str) -> bool | None:
    """What the request says of the template's thinking switch: the switch itself where it reaches the upstream, or that
    no thinking is wanted. That thinking is wanted says nothing: a model without it is asked the same way, and its whole
    answer would be taken for thinking."""
    template = request.extra.get("chat_template_kwargs") if request.dialect == dialect else None
    for word in ("enable_thinking", "thinking"):
        if isinstance(template, dict) and isinstance(template.get(word), bool):
            return bool(template[word])
    wish = request.reasoning
    off = wish is not None and (wish.enabled is False or wish.effort == "none" or wish.budget_tokens == 0)
    return False if off else None


class Pipeline:
    """``inband = "auto"`` trusts a server that says it parsed already: it starts no reasoning without its opening tag and
    looks for calls only where tools were declared. A format that is named is taken at its word."""

    def __init__(self, upstream: Upstream, model: str, request: Request) -> None:
        wire = dialect(upstream.dialect)
        self._reader = wire.reader(provider=upstream.name)
        self._boxes: list[PerChoice] = []
        emulated = emulated_tools(upstream, request)
        found = format_of(upstream.inband, model)
        if found is not None:
            guessed = upstream.inband == "auto"
            tools = [as_function(tool) if tool.name in emulated else tool for tool in request.tools]
            self._boxes.append(
                PerChoice(
                    lambda: inband(
                        found,
                        tools=tools or None,
                        starts_in_reasoning=False if guessed else None,
                        thinking=thinking_of(request, upstream.dialect),
                        calls=bool(tools) or not guessed,
                    )
                )
            )
        if emulated:
            self._boxes.append(PerChoice(lambda: CustomCalls(emulated)))

    def feed(self, chunk: bytes) -> list[Event]:
        events = self._reader.feed(chunk)
        for box in self._boxes:
            events = _through(events, box)
        return events

    def close(self) -> list[Event]:
        return self._ended(self._reader.close())

    def stop(self) -> list[Event]:
        return self._ended(self._reader.stop())

    def _ended(self, events: list[Event]) -> list[Event]:
        for box in self._boxes:
            events = [*_through(events, box), *box.close()]
        return events


def _through(events: list[Event], box: PerChoice) -> list[Event]:
    return [given for event in events for given in box.feed(event)]


def emulated_tools(upstream: Upstream, request: Request) -> frozenset[str]:
    """The custom tools that this upstream knows as functions. One that takes tools as words knows nothing else."""
    if not any(tool.kind == "custom" for tool in request.tools):
        return frozenset()
    abilities = abilities_of(upstream)
    if upstream.tools == "prompt":
        abilities = structs.replace(abilities, custom_tools=False)
    return dialect(upstream.dialect).emulated_tools(request, abilities)


def in_words(upstream: Upstream, request: Request) -> Request:
    """The request for an upstream whose model has no tools of its own: they become a text, if there is a notation for it."""
    if upstream.tools == "native" or not (request.tools or any(message.role == "tool" for message in request.messages)):
        return request
    found = format_of(upstream.inband, request.model)
    if found is None:
        raise Unsupported(
            f"upstream {upstream.name!r} takes tools as words, and no notation is known for the model {request.model!r}: "
            "name one as `inband` of this upstream (`streamglot formats` lists them)"
        )
    return as_prompt(with_functions_only(request), found)
