"""From an upstream's bytes to events: the reader, and behind it the in-band parser where the model's text needs one."""

from __future__ import annotations

from functools import lru_cache

from ..dialects import dialect
from ..errors import Unsupported
from ..events import Event
from ..inband import Format, as_prompt, find_format, inband
from ..messages import Request
from ..stages import PerChoice
from ..upstream import Upstream

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
        self._reader = dialect(upstream.dialect).reader(provider=upstream.name)
        self._box: PerChoice | None = None
        found = format_of(upstream.inband, model)
        if found is not None:
            guessed = upstream.inband == "auto"
            self._box = PerChoice(
                lambda: inband(
                    found,
                    tools=request.tools or None,
                    starts_in_reasoning=False if guessed else None,
                    thinking=thinking_of(request, upstream.dialect),
                    calls=bool(request.tools) or not guessed,
                )
            )

    def feed(self, chunk: bytes) -> list[Event]:
        events = self._reader.feed(chunk)
        return events if self._box is None else self._through(events, self._box)

    def close(self) -> list[Event]:
        events = self._reader.close()
        return events if self._box is None else [*self._through(events, self._box), *self._box.close()]

    def stop(self) -> list[Event]:
        events = self._reader.stop()
        return events if self._box is None else [*self._through(events, self._box), *self._box.close()]

    def _through(self, events: list[Event], box: PerChoice) -> list[Event]:
        return [given for event in events for given in box.feed(event)]


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
    return as_prompt(request, found)
