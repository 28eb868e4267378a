"""The interface of a dialect: everything that the rest of streamglot can do with one wire format. And the dialects by name.

Values from clients enter the URL of an upstream only through ``encoded``, ``path_segment`` and ``path_segments``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, Final, TypeAlias, Unpack, get_args

from msgspec import Struct, field

from ..errors import BadCall, ConfigError, RequestError, excerpt
from ..events import Event, StreamError
from ..json_types import JsonObject, JsonValue
from ..messages import Built, Request, Response
from ..names import DialectName
from ..plugins import Plugins
from .common.abilities import PLAIN, UNSPECIFIED, Abilities
from .common.fields import duration
from .common.options import BuildOptions, PrepareOptions, ResponseOptions
from .common.reader import Reader
from .common.server_tools import Answers, HostedCall
from .common.state import maker
from .common.writer import Writer


class UpstreamEndpoint(Struct):
    """The ``url`` and the ``headers`` of a request to an upstream."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)


class Setup(Struct):
    """A request that must be answered before the request itself, because it makes something that the request names (a chat).
    ``read`` takes the body of the answer and returns the options that name it; it raises one of our errors for any other body."""

    what: str
    endpoint: UpstreamEndpoint
    body: JsonObject
    read: Callable[[JsonValue], JsonObject]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


@lru_cache(1024)
def join(base_url: str, path: str) -> str:
    """The URL of a path below a base URL. The query parameters of both are kept, those of the base first."""
    base, _, parameters = base_url.partition("#")[0].partition("?")
    path, _, own = path.partition("?")
    query = "&".join(filter(None, (parameters, own)))
    return f"{base.rstrip('/')}/{path}{f'?{query}' if query else ''}"


def encoded(name: str) -> str:
    """Percent-encodes a name for use in a URL."""
    from urllib.parse import quote  # 1.7 ms, which most programs need not wait for

    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise RequestError(
            f"the name {excerpt(name)} contains half a surrogate pair, which a URL cannot contain", code="invalid_name"
        ) from None


def path_segment(name: str) -> str:
    """A name as one segment of a path. Names that would change the path are refused."""
    if name in ("", ".", ".."):
        raise RequestError(
            f"the name {excerpt(name)} cannot be part of an upstream's URL: it would change the path; name a model",
            code="invalid_name",
        )
    return encoded(name)


def path_segments(name: str) -> str:
    """A name with slashes as several segments."""
    return "/".join(map(path_segment, name.split("/")))


FindAnswers: TypeAlias = Callable[[JsonObject, Callable[[str], bool]], Answers]


class Lazy:
    """A part of a dialect in another module of its package. The module is imported when the part is first read; the object then
    keeps the part, so that a process loads only what it uses, and no call pays for an import statement."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __set_name__(self, owner: type, name: str) -> None:
        package = sys.modules[owner.__module__].__package__
        self._name, self._module = name, f"{package}." if package else ""

    def __get__(self, instance: object, owner: type) -> Any:  # Any: each part has its own type; a test compares it with Dialect's
        if instance is None:
            return self
        module, _, name = self.target.rpartition(".")
        part = getattr(import_module(self._module + module), name)
        instance.__dict__[self._name] = part
        return part


def lazy(target: str) -> Any:  # Any: the part stands where Dialect has a method or a property
    """The part ``module.name`` of the package of a dialect: ``reader = lazy("read.CohereReader")``."""
    return Lazy(target)


def load_parts(dialect: Dialect) -> None:
    """Imports all parts of a dialect. Raises what an import raises, and ``AttributeError`` for a part that does not exist."""
    for name in {name: None for each in type(dialect).__mro__ for name, part in vars(each).items() if isinstance(part, Lazy)}:
        getattr(dialect, name)


def checked_body(body: JsonObject) -> JsonObject:
    """The body, if it has been decoded."""
    if isinstance(body, bytes):
        raise TypeError(f"the body of a request is a dict, not {type(body).__name__}: decode it with json.loads first")
    return body


class Dialect:
    """One wire format. Each package in ``dialects`` has one instance of a subclass.

    A subclass overrides what its wire format supports, with ``lazy`` what is in another module; the rest raises ``ConfigError``.
    Upstreams speak the dialects with a reader, clients those with a writer.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    media_type: ClassVar[str] = "text/event-stream"
    abilities: ClassVar[Abilities] = PLAIN
    """What servers of this dialect accept, unless more is known about one of them."""
    request_path: ClassVar[str] = ""
    """Where an upstream takes requests, below its base URL; a dialect whose path depends on the request overrides ``endpoint``."""
    model_list_path: ClassVar[str] = ""
    """Where an upstream lists its models, below its base URL; empty where it has no list."""
    client_path: ClassVar[str] = ""
    """For the dialect of an installed package: the gateway serves its clients at ``/NAME``, or at ``/NAME/`` with this path behind it."""
    keeps_conversation: ClassVar[bool] = False
    """Whether upstreams keep the conversation themselves, so that a request continues an answer of theirs."""
    calls_in_text: ClassVar[str] = ""
    """The notation of calls and tools (``streamglot formats``) for a wire format without a field for them, unless an upstream's
    ``inband`` names another."""
    bad_call: ClassVar[BadCall] = "incomplete"
    """What becomes of a call in text that cannot be parsed, unless an upstream's ``bad_call`` says otherwise."""
    plain_reasoning: ClassVar[bool] = False
    """Whether servers of this dialect pass on reasoning as the model wrote it, so that its tags may be in it."""
    activity: ClassVar[bool] = False
    """Whether the writer shows runs of tools that an ``Extra`` reports."""
    reasoning_summary: ClassVar[bool] = False
    """Whether the writer shows summaries of reasoning that an ``Extra`` reports."""
    reasoning_field: ClassVar[bool] = False
    """Whether clients read reasoning in different fields: writer and response builder take ``reasoning_field``."""
    conversation: ClassVar[str] = "messages"
    """The field of a request that has the conversation. It is empty where a request without one has a meaning."""

    # --- what the dialect supports

    @property
    def has_reader(self) -> bool:
        """Whether upstreams speak the dialect."""
        return type(self).reader is not Dialect.reader

    @property
    def has_writer(self) -> bool:
        """Whether clients speak the dialect."""
        return type(self).writer is not Dialect.writer

    @property
    def has_response(self) -> bool:
        """Whether the dialect has response objects for requests without streaming."""
        return type(self).response_builder is not Dialect.response_builder

    @property
    def has_request(self) -> bool:
        """Whether the dialect has requests of clients."""
        return type(self).request_parser is not Dialect.request_parser

    @property
    def has_body(self) -> bool:
        """Whether the dialect has requests to upstreams."""
        return bool(self.request_path) or type(self).endpoint is not Dialect.endpoint

    # --- streams

    @property
    def reader(self) -> Callable[..., Reader]:
        """Makes a reader: bytes of an upstream's stream to events."""
        raise self._missing("reader", "has_reader")

    @property
    def writer(self) -> Callable[..., Writer]:
        """Makes a writer: events to bytes of a client's stream."""
        raise self._missing("writer", "has_writer")

    def writer_options(self, request: Request) -> JsonObject:
        """The arguments of a writer that follow from the client's request."""
        return {"model": request.model, "include_usage": request.include_usage}

    # --- requests

    def parse_request(self, body: JsonObject, *, model: str = "", stream: bool | None = None) -> Request:
        """Parses the body of a client's request. ``model`` and ``stream`` replace what the body says; in a dialect whose URL has
        them, they are what the URL says. Raises ``RequestError`` for a body that breaks the rules of the dialect."""
        request = self.request_parser(checked_body(body))
        if model:
            request.model = model
        if stream is not None:
            request.stream = stream
        return request

    @property
    def request_parser(self) -> Callable[..., Request]:
        """The function behind ``parse_request``."""
        raise ConfigError(f"the dialect {self.name!r} cannot parse a request: only upstreams speak it")

    def need_conversation(self, body: JsonObject) -> None:
        """Refuses the body of a client that asks for an answer to nothing."""
        name = self.conversation
        if name and not body.get(name):
            what = f"not {excerpt(body[name])}" if name in body else "and it is missing"
            raise RequestError(f"{name} must have at least one entry, {what}", detail={"param": name})

    def build_request(
        self, request: Request, *, abilities: Abilities = UNSPECIFIED, provider: str = "", **options: Unpack[PrepareOptions]
    ) -> Built:
        """The body for an upstream of this dialect, reduced to what the upstream accepts. ``abilities`` is what is known about
        the upstream in addition to its dialect; ``provider`` says who answers there, and gets its own opaque state back;
        ``options`` go to the dialect's builder. Raises ``Unsupported`` where the dialect cannot do what the request asks for, and
        ``TypeError`` for an option that its builder does not have."""
        known = abilities.over(self.abilities)
        if self.abilities.namespaces and not known.namespaces:
            options["namespaces"] = False
        if known.reasoning_object and self.abilities.reasoning_object is not None:
            options["reasoning_object"] = True
        adapted, dropped = self._adapt(request, self.name, known, maker(self.name, provider))
        built = self.build_body(adapted, **options)
        if dropped or built.dropped:
            built.dropped = list(dict.fromkeys([*dropped, *built.dropped]))
        return built

    @property
    def build_body(self) -> Callable[..., Built]:
        """Builds the body for a request that has been adapted to the upstream already: its opaque state is the upstream's."""
        raise ConfigError(f"the dialect {self.name!r} cannot build a request: only clients speak it; choose another one")

    def emulated_tools(self, request: Request, abilities: Abilities = UNSPECIFIED) -> frozenset[str]:
        """The custom tools that an upstream gets as functions. ``CustomCalls`` converts their calls back."""
        tools: frozenset[str] = self._emulated_tools(request, abilities.over(self.abilities))
        return tools

    # parts that only a process that sends requests imports
    _adapt = lazy("common.adapt.adapt")
    _emulated_tools = lazy("common.adapt.emulated_tools")

    def continuation(self, request: Request, provider: str, message_id: str, timestamp: int) -> JsonObject:
        """For upstreams that keep the conversation themselves: the options for ``build_request``, ``setup`` and ``endpoint`` that
        continue it. What the upstream knows is in the ``echo`` of its messages. ``message_id`` and ``timestamp`` (seconds) are those
        of the new message."""
        raise ConfigError(f"the dialect {self.name!r} sends the whole conversation")

    def setup(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> Setup | None:
        """What must be asked of the upstream before the request itself; None if nothing."""
        return None

    @property
    def approval_answers(self) -> FindAnswers | None:
        """For clients that can ask their users about a call: a function that finds decisions in the body of a request. Its second
        argument says whether an id is that of a call that waits for a decision."""
        return None

    def endpoint(self, base_url: str, request: Request, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint:
        """The URL and the headers of an upstream request. ``base_url`` is the address as the vendor's own clients have it, and
        ``options`` are those of ``build_request``."""
        if not self.request_path:
            raise ConfigError(f"the dialect {self.name!r} has no endpoint: only clients speak it; choose another one")
        return UpstreamEndpoint(join(base_url, self.request_path), bearer(key))

    def model_list(self, base_url: str, key: str = "", **options: Unpack[BuildOptions]) -> UpstreamEndpoint | None:
        """The URL and the headers of a request for an upstream's list of models; None where it has no list."""
        if not self.model_list_path:
            return None
        headers = self.endpoint(base_url, Request("model", []), key=key, **options).headers
        return UpstreamEndpoint(join(base_url, self.model_list_path), headers)

    def model_name(self, model: str) -> str:
        """The upstream's name for a model that a client named."""
        return model

    # --- responses

    def parse_response(self, body: JsonObject, *, provider: str | None = None) -> Response:
        """The response object of an upstream. It has the fields of a stream's events, so the dialect's reader reads it."""
        from ..stages.collect import collect

        if not self.has_response:
            raise self._missing("response", "has_response")
        return collect(self.reader(provider=provider).read_whole(body))

    def build_response(self, response: Response, *, strict: bool = False, **options: Unpack[ResponseOptions]) -> JsonObject:
        """Builds the response object for a client. ``strict=True`` omits everything outside the dialect's specification;
        ``options`` go to the dialect's builder."""
        return self.response_builder(response, strict=strict, **options)

    @property
    def response_builder(self) -> Callable[..., JsonObject]:
        """The function behind ``build_response``."""
        raise self._missing("response", "has_response")

    def error_body(self, error: StreamError) -> JsonObject:
        """The body of an HTTP error for a client."""
        raise ConfigError(f"the dialect {self.name!r} has no error body: only upstreams speak it")

    def limit_headers(
        self, what: str, limit: int, left: int, seconds: float, now: float
    ) -> dict[str, str]:  # ``now`` is for others
        """The headers that tell a client a limit of ``requests`` or ``tokens``, what is left, and the seconds until all is."""
        names = (("limit", str(limit)), ("remaining", str(left)), ("reset", duration(seconds)))
        return {f"x-ratelimit-{name}-{what}": value for name, value in names}

    # --- parts that few dialects have

    def parse_count(self, body: JsonObject, model: str = "") -> Request:
        """The request of a client that asks for its number of tokens."""
        raise ConfigError(f"the dialect {self.name!r} has no requests for token counts")

    def count_body(self, tokens: int) -> JsonObject:
        """The answer to a request for a token count."""
        raise ConfigError(f"the dialect {self.name!r} has no requests for token counts")

    def repeated_fields(self, request: Request, instructed: bool) -> JsonObject:
        """The fields of a request that a stored response repeats. ``instructed``: the first message was given as instructions."""
        raise ConfigError(f"the dialect {self.name!r} has no stored responses")

    def input_items(self, request: Request, response_id: str, instructed: bool) -> list[JsonObject]:
        """The input of a stored response as a list of items."""
        raise ConfigError(f"the dialect {self.name!r} has no stored responses")

    def summary_request(self, request: Request) -> Request:
        """The request for a summary of a conversation that a client wants compacted."""
        raise ConfigError(f"the dialect {self.name!r} has no compaction")

    def build_compaction(self, response: Response, body: JsonObject) -> JsonObject:
        """The answer to a request for compaction, from the response with the summary."""
        raise ConfigError(f"the dialect {self.name!r} has no compaction")

    def hosted_events(self, call: HostedCall) -> list[Event] | None:  # a dialect with such forms overrides it
        """A call of a tool that clients expect their provider to host, in the provider's own form; None if the dialect has
        none."""
        return None

    def _missing(self, what: str, capability: str) -> ConfigError:
        able = [dialect.name for dialect in DIALECTS.usable() if getattr(dialect, capability)]
        return ConfigError(f"the dialect {self.name!r} has no {what}; these have one: {', '.join(able)}")


class _OwnDialects(Mapping[str, Dialect]):
    """Our own dialects. A package is imported when its dialect is looked up: twelve packages take 3 ms of CPU, and most processes use
    two. The package ``NAME`` has the object ``NAME`` in capital letters."""

    def __init__(self, *names: str) -> None:
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Dialect:
        found: Dialect = getattr(import_module(f".{name}", __package__), name.upper())
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


DIALECTS: Final = Plugins("dialect", Dialect, lambda: _OwnDialects(*get_args(DialectName)), check=load_parts)
"""The dialects by name: ours, and those of installed packages."""
