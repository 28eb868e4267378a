"""Frames to events and back, one folder for each wire. A dialect knows its own wire and the events, and no other dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from ..errors import ConfigError
from ..events import Event, StreamError
from ..messages import Built, Request, Response
from .abilities import NONE_SAID, PLAIN, Abilities
from .adapt import adapt, emulated_tools
from .approval import Answers
from .endpoint import Endpoint
from .hosted_tools import HostedCall
from .reader import Reader
from .writer import Writer


class Dialect(Struct, frozen=True, dict=True):
    """What we can do with one wire: the files in its folder. They are imported when they are first used. ``hosted``: there are
    forms for tools that providers host. ``activity``: the writer shows runs of tools that an ``Extra`` tells."""

    name: str
    title: str
    reader_class: str = ""
    writer_class: str = ""
    request: bool = False
    response: bool = False
    media_type: str = "text/event-stream"
    hosted: bool = False
    activity: bool = False

    def reader(self, **options: Any) -> Reader:
        made: Reader = self._reader(**options)
        return made

    def writer(self, **options: Any) -> Writer:
        made: Writer = self._writer(**options)
        return made

    @cached_property
    def _reader(self) -> Callable[..., Reader]:
        found: Callable[..., Reader] = getattr(self._module("reader", self.reader_class), self.reader_class)
        return found

    @cached_property
    def _writer(self) -> Callable[..., Writer]:
        found: Callable[..., Writer] = getattr(self._module("writer", self.writer_class), self.writer_class)
        return found

    @cached_property
    def parse_request(self) -> Callable[[dict[str, Any]], Request]:
        parse: Callable[[dict[str, Any]], Request] = self._function("request", self.request, "parse")
        return parse

    def build_request(self, request: Request, *, abilities: Abilities = NONE_SAID, **options: Any) -> Built:
        """The body for an upstream of this dialect. ``abilities``: what is known of it beyond its dialect; the request is
        brought into the form that they allow. ``options`` go to the dialect's builder."""
        build = self._builder
        if self._abilities is None:
            built: Built = build(request, abilities=abilities, **options)
            return built
        known = abilities.over(self._abilities)
        if self._abilities.namespaces and not known.namespaces:
            options["namespaces"] = False
        adapted, dropped = adapt(request, self.name, known)
        built = build(adapted, **options)
        built.dropped = list(dict.fromkeys([*dropped, *built.dropped]))
        return built

    def emulated_tools(self, request: Request, abilities: Abilities = NONE_SAID) -> frozenset[str]:
        """The custom tools that an upstream knows as functions: ``CustomCalls`` turns their calls back."""
        return emulated_tools(request, abilities.over(self._abilities or PLAIN))

    @cached_property
    def _builder(self) -> Callable[..., Built]:
        build: Callable[..., Built] = self._function("request", self.request, "build")
        return build

    @cached_property
    def _abilities(self) -> Abilities | None:
        """None where the body is made by the builder of another dialect, which has abilities of its own."""
        found: Abilities | None = getattr(self._module("request", self.request), "ABILITIES", PLAIN)
        return found

    @cached_property
    def continued(self) -> Callable[[Mapping[str, Any], str, int], dict[str, Any]] | None:
        """For an upstream that keeps the conversation itself: options for ``build_request`` and ``endpoint``, of the state that
        its streams told, a name for the new message, and the time."""
        found: Callable[[Mapping[str, Any], str, int], dict[str, Any]] | None
        found = getattr(self._module("request", self.request), "continued", None)
        return found

    @cached_property
    def approval_answers(self) -> Callable[[dict[str, Any], Callable[[str], bool]], Answers] | None:
        """For a dialect whose clients can ask their users about a call: finds decisions in the body of a request. The second argument
        says whether an id is that of a call that waits for a decision."""
        found: Callable[[dict[str, Any], Callable[[str], bool]], Answers] | None
        found = getattr(self._module("request", self.request), "approval_answers", None)
        return found

    @property
    def stored(self) -> ModuleType:
        """What was asked, as a dialect shows it whose answers can be asked for again."""
        return self._module("stored", True)

    @cached_property
    def parse_response(self) -> Callable[..., Response]:
        parse: Callable[..., Response] = self._module("response", self.response).parse
        return parse

    @cached_property
    def build_response(self) -> Callable[..., dict[str, Any]]:
        build: Callable[..., dict[str, Any]] = self._module("response", self.response).build
        return build

    def _function(self, file: str, there: object, name: str) -> Any:
        """A dialect that only clients speak has no ``build`` for requests, one that only upstreams speak has no ``parse``."""
        module = self._module(file, there)
        if not hasattr(module, name):
            raise ConfigError(f"the dialect {self.name!r} cannot {name} a {file}: it stands on the other side only")
        return getattr(module, name)

    @cached_property
    def endpoint(self) -> Callable[..., Endpoint]:
        """Where an upstream of this dialect takes its requests."""
        found: Callable[..., Endpoint] = self._module("endpoint", self.request and self.reader_class).endpoint
        return found

    @property
    def counting(self) -> ModuleType:
        """For a dialect whose clients ask how many tokens a request has: ``parse_count`` and ``count_body``."""
        return self._module("counting", True)

    @property
    def compaction(self) -> ModuleType:
        """For a dialect whose clients have a conversation summarized: ``summary_request`` and ``build_compaction``."""
        return self._module("compaction", True)

    @property
    def catalog(self) -> ModuleType:
        """For a dialect whose clients ask a server for its models in ways of their own."""
        return self._module("catalog", True)

    @cached_property
    def model_name(self) -> Callable[[str], str]:
        """The name of a model as an upstream of this dialect knows it, of the name that a client gave."""
        found: Callable[[str], str] = getattr(self._module("endpoint", self.request and self.reader_class), "model_name", str)
        return found

    @cached_property
    def hosted_events(self) -> Callable[[HostedCall], list[Event] | None]:
        """A call of a tool that clients of this dialect expect their provider to host, in the provider's own form; None where
        the dialect has no such form."""
        if not self.hosted:
            return lambda _call: None
        found: Callable[[HostedCall], list[Event] | None] = self._module("hosted", True).events
        return found

    @cached_property
    def error_body(self) -> Callable[[StreamError], dict[str, Any]]:
        """An error in the shape that clients of this dialect expect as the body of an HTTP answer."""
        body: Callable[[StreamError], dict[str, Any]] = self._module("error", True).error_body
        return body

    def _module(self, file: str, there: object) -> ModuleType:
        if not there:
            able = [dialect.name for dialect in DIALECTS.values() if getattr(dialect, _CAPABILITY[file])]
            raise ConfigError(f"the dialect {self.name!r} has no {file}; these have one: {', '.join(able)}")
        return import_module(f".{self.name}.{file}", __name__)


_CAPABILITY: Final = {
    "reader": "reader_class",
    "writer": "writer_class",
    "request": "request",
    "endpoint": "request",
    "response": "response",
}

DIALECTS: Final[dict[str, Dialect]] = {
    dialect.name: dialect
    for dialect in (
        Dialect("openai_chat", "OpenAI chat completions", "ChatReader", "ChatWriter", True, True, activity=True),
        Dialect("openai_responses", "OpenAI responses", "ResponsesReader", "ResponsesWriter", True, True, hosted=True),
        Dialect("anthropic", "Anthropic messages", "AnthropicReader", "AnthropicWriter", True, True, hosted=True),
        Dialect("gemini", "Google Gemini", "GeminiReader", "GeminiWriter", True, True, hosted=True),
        Dialect("agui", "AG-UI 1.0", "", "AguiWriter", True, activity=True),
        Dialect("vercel_ui", "Vercel AI SDK UI message stream", "", "VercelUiWriter", True),
        Dialect("ollama", "Ollama", "OllamaReader", "OllamaWriter", True, True, "application/x-ndjson"),
        Dialect("qwen_web", "Qwen web chat", "QwenWebReader", "", True),
        Dialect("openai_completions", "OpenAI text completions", "CompletionsReader", "CompletionsWriter", True, True),
        Dialect(
            "bedrock_converse",
            "Amazon Bedrock Converse",
            "BedrockConverseReader",
            request=True,
            response=True,
            media_type="application/vnd.amazon.eventstream",
        ),
        Dialect(
            "bedrock_invoke",
            "Amazon Bedrock InvokeModel",
            "BedrockInvokeReader",
            request=True,
            response=True,
            media_type="application/vnd.amazon.eventstream",
        ),
        Dialect("cohere", "Cohere v2 chat", "CohereReader", "", True, True),
    )
}


def dialect(name: str) -> Dialect:
    """The dialect of this name."""
    try:
        return DIALECTS[name]
    except KeyError:
        raise ConfigError(f"there is no dialect {name!r}; there are {', '.join(DIALECTS)}") from None
