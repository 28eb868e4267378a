"""From an upstream's bytes to events: the reader, followed by the in-band parser and the custom tools that the request needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from msgspec import structs

from ..dialects import dialect
from ..dialects.custom_tools import CustomCalls, as_function, with_functions_only
from ..dialects.echo import is_native
from ..errors import Unsupported
from ..events import Event, TextDelta
from ..inband import FORMATS, Format, InBand, OwnMarkers, as_prompt, find_format, format_for_model, with_markers
from ..inband.box import Begins
from ..inband.leaks import Leaks
from ..json_types import JsonObject, JsonValue
from ..messages import Request
from ..stages import PerChoice, UniqueCallIds
from ..upstream import Upstream
from ..upstream.providers import abilities_of, is_at_provider, maker_of
from .kept import KeptState

MODELS = 1024
"""Models whose format is cached, because finding it compares the name with every pattern."""

NO_MARKERS = OwnMarkers()
TAGS_ALONE = "think_generic"
"""The notation for an unknown model whose client enables thinking: reasoning between tags, and no calls."""


@lru_cache(MODELS)
def format_of(name: str, model: str, own: OwnMarkers = NO_MARKERS, tools: bool = False) -> Format | None:
    """The notation to look for in a model's text; None if there is none. For an unknown model that has ``tools`` these are the
    common ones."""
    found = find_format(name, model)
    if tools and name == "auto" and format_for_model(model) is None:
        found = FORMATS["any"]
    return with_markers(None if found is FORMATS["none"] else found, own)


def notation_of(upstream: Upstream, model: str, tools: bool = False) -> Format | None:
    """The notation to look for in the text of an upstream's model: the configured one, else that of its dialect, else that of the
    model."""
    own = dialect(upstream.dialect).calls_in_text if upstream.inband == "auto" else ""
    return format_of(own or upstream.inband, model, upstream.markers, tools)


def gets_tools_as_text(upstream: Upstream) -> bool:
    """Whether tools are described in the prompt for this upstream."""
    return upstream.tools == "prompt" or bool(dialect(upstream.dialect).calls_in_text)


def thinking_of(request: Request, dialect: str) -> bool | None:
    """The value of the template's thinking switch, if the request sets it and it reaches the upstream, or False if the request
    wants no thinking.

    A request for thinking alone returns None: a model that cannot think gets the same request, and its whole answer would be read
    as thinking.
    """
    template = request.extra.get("chat_template_kwargs") if request.dialect == dialect else None
    for word in ("enable_thinking", "thinking"):
        if isinstance(template, dict) and isinstance(template.get(word), bool):
            return bool(template[word])
    if _thinking_flag(request, dialect) is True:
        return True
    reasoning = request.reasoning
    off = reasoning is not None and (reasoning.enabled is False or reasoning.effort == "none" or reasoning.budget_tokens == 0)
    return False if off else None


def _thinking_flag(request: Request, dialect: str) -> JsonValue:
    """The client's ``thinking`` if the upstream gets it unchanged, else None."""
    own = request.reasoning.native if request.reasoning is not None else None
    return own.data.get("thinking") if own is not None and is_native(own, dialect) else None


def _enables_thinking(flag: JsonValue) -> bool:
    """Whether the client sends ``thinking: true``, or the object that says the same."""
    return flag is True or (isinstance(flag, dict) and flag.get("type") == "enabled")


class ThoughtMemory:
    """For each upstream and model, whether its last answer closed a thought that it had not opened.

    A notation may say that answers begin inside the reasoning, and the configuration may name it for a server that separates
    reasoning itself, or for a model that does not think. The last answer shows it.
    """

    def __init__(self) -> None:
        self._closed: dict[tuple[str, str], bool] = {}

    def begins(self, upstream: str, model: str) -> Begins:
        """How the next answer begins."""
        closed = self._closed.get((upstream, model))
        return "unknown" if closed is None else "reasoning" if closed else "text"

    def ended(self, upstream: str, model: str, closed: bool) -> None:
        self._closed.pop((upstream, model), None)
        self._closed[upstream, model] = closed
        if len(self._closed) > MODELS:
            del self._closed[next(iter(self._closed))]


class Pipeline:
    """The reader, the in-band parser, and unique call ids. ``call_prefix`` is unique to this exchange.

    ``notation`` is the name of the notation that is looked for in the text. ``thoughts`` is what earlier answers have shown; a
    whole answer needs none. ``dropped`` gets what is removed from the answer.

    With ``inband = "auto"`` a server that reports that it has parsed its text is trusted: reasoning then starts only at its
    opening tag, and calls are looked for only if tools were declared. A format that the configuration names is always applied.
    """

    def __init__(
        self, upstream: Upstream, model: str, request: Request, call_prefix: str = "call", thoughts: ThoughtMemory | None = None
    ) -> None:
        self.dropped: list[str] = []
        wire = dialect(upstream.dialect)
        self._reader = wire.reader(provider=maker_of(upstream), call_prefix=call_prefix)
        self._reader.comments = False  # no policy sees a comment, and an upstream may repeat its key in one
        self._boxes: list[PerChoice] = []
        self._leaks: Leaks | None = None
        """The only box, if it is one that hardly ever changes anything."""
        emulated = emulated_tools(upstream, request)
        unparsed = bool(request.tools) and not is_at_provider(upstream.base_url)
        found, guessed = notation_of(upstream, model, unparsed), upstream.inband == "auto"
        if found is None and guessed and _enables_thinking(_thinking_flag(request, upstream.dialect)):
            found = format_of(TAGS_ALONE, "")
        self.notation = found.name if found is not None else ""
        calls = bool(request.tools) or not guessed
        ids = UniqueCallIds(call_prefix)
        ids.request(request)
        # Any: a stage may put questions among its events, but this one asks none.
        self._stages: list[Callable[[list[Event]], list[Any]]] = [ids.feed] if calls or ids.taken else []
        tokens, tags = found is None and guessed, wire.plain_reasoning and not is_at_provider(upstream.base_url)
        if tokens or tags:
            leaks = Leaks(tokens, tags)
            self._boxes.append(PerChoice(lambda: Leaks(tokens, tags), first=leaks))
            if found is None and not emulated:
                self._leaks = leaks
        if found is not None:
            tools = [as_function(tool) if tool.name in emulated else tool for tool in request.tools]
            thinking = thinking_of(request, upstream.dialect)
            begins: Begins = "unknown"
            if thinking:
                begins = "reasoning"
            elif thoughts is not None and request.stream:
                begins = thoughts.begins(upstream.name, model)

            def ended(closed: bool, late: int) -> None:
                self.dropped += ["late end of the reasoning"] * late
                if thoughts is not None and thinking is None:
                    thoughts.ended(upstream.name, model, closed)

            self._boxes.append(
                PerChoice(
                    lambda: InBand(
                        found,
                        tools=tools or None,
                        starts_in_reasoning=False if guessed else None,
                        thinking=thinking,
                        calls=calls,
                        bad_call=upstream.bad_call or wire.bad_call,
                        call_prefix=call_prefix,
                        leave_out=True,
                        begins=begins,
                        ended=ended,
                    )
                )
            )
        if emulated:
            self._boxes.append(PerChoice(lambda: CustomCalls(emulated)))

    def keep(self, upstream: Upstream, state: JsonObject) -> None:
        """Adds what the request says of a conversation that the upstream keeps to what the answer says of it."""
        self._stages.append(KeptState(upstream.dialect, maker_of(upstream), state).feed)

    def feed(self, chunk: bytes) -> list[Event]:
        events = self._reader.feed(chunk)
        leaks = self._leaks
        if leaks is not None and len(events) == 1:  # nearly all reads
            event = events[0]
            if type(event) is TextDelta and "<" not in event.text and not leaks.held:
                return self._staged(events) if self._stages else events
        for box in self._boxes:
            events = box.feed(events)
        return self._staged(events) if self._stages else events

    def close(self) -> list[Event]:
        return self._ended(self._reader.close())

    def stop(self) -> list[Event]:
        return self._ended(self._reader.stop())

    def _ended(self, events: list[Event]) -> list[Event]:
        for box in self._boxes:
            events = [*box.feed(events), *box.close()]
        return self._staged(events)

    def unread(self) -> list[str]:
        """The names of fields with text that the reader does not know."""
        return [*(self._reader.unread or ())]

    def _staged(self, events: list[Event]) -> list[Event]:
        for feed in self._stages:
            if events:
                events = feed(events)
        return events


def emulated_tools(upstream: Upstream, request: Request) -> frozenset[str]:
    """The custom tools that this upstream gets as functions. An upstream that gets tools as text has no others."""
    if not request.tools or not any(tool.kind == "custom" for tool in request.tools):
        return frozenset()
    abilities = abilities_of(upstream)
    if gets_tools_as_text(upstream):
        abilities = structs.replace(abilities, custom_tools=False)
    return dialect(upstream.dialect).emulated_tools(request, abilities)


def with_tools_as_text(upstream: Upstream, request: Request) -> Request:
    """The request for an upstream whose model has no native tools: they become text, if a notation is known."""
    if not gets_tools_as_text(upstream) or not (request.tools or any(message.role == "tool" for message in request.messages)):
        return request
    found = notation_of(upstream, request.model)
    if found is None:
        raise Unsupported(
            f"upstream {upstream.name!r} gets tools as text, and no notation is known for the model {request.model!r}: "
            "name one as `inband` of this upstream (`streamglot formats` lists them)"
        )
    return as_prompt(with_functions_only(request), found)
