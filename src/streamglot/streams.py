"""Streams as iterables: ``read``, ``write`` and ``translate`` over a plain or an asynchronous source; and the boxes behind them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, Unpack, overload

from .dialects import Dialect, dialect
from .dialects.common.custom_tools import CustomCalls, as_function
from .dialects.common.options import DialectWriterOptions, TranslateOptions, make, options_of
from .dialects.common.reader import Reader
from .dialects.common.writer import Writer
from .events import Event, StreamError, StreamStart, as_events
from .inband import Format, InBand
from .inband import inband as inband_box
from .inband.parameters import Declares, spec_of
from .iterators import AsyncByteStream, AsyncEventStream, ByteStream, EventStream
from .json_types import JsonValue
from .limits import DEFAULT_LIMITS, Limits
from .messages import Request, ToolSpec
from .names import FormatName, ReaderName, WriterName
from .stages import PerChoice, UniqueCallIds

if TYPE_CHECKING:
    from .policies import Policy, PolicyBox

In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")
Made_co = TypeVar("Made_co", covariant=True)
Bytes: TypeAlias = bytes | bytearray | memoryview
InBandOption: TypeAlias = FormatName | str | Format | InBand | None
Tools: TypeAlias = Iterable[ToolSpec | Mapping[str, JsonValue] | Declares]


# --- boxes


class _Reading:
    """The box behind ``read``: a reader, the in-band parser, and policies."""

    def __init__(
        self,
        reader: Reader,
        wire: Dialect,
        inband: InBandOption,
        model: str,
        tools: Tools | None,
        policies: Iterable[Policy],
        call_prefix: str,
    ) -> None:
        self.reader = reader
        self.over = False
        self._inband = inband
        self._model = model
        self.tools = declared = [spec_of(tool) for tool in tools or ()]
        self._call_prefix = call_prefix
        self._boxes: list[Any] = []  # Any: boxes from events to events, each with types of its own
        self._waits = inband is not None
        """The in-band parser is made at the start of the stream, which may name the model and the answer."""
        custom = any(tool.kind == "custom" for tool in declared)
        self._emulated = wire.emulated_tools(Request(tools=declared)) if custom else frozenset[str]()
        if self._emulated and not self._waits:
            self._boxes.append(PerChoice(lambda: CustomCalls(self._emulated)))
        self._policies: PolicyBox | None = None
        policies = list(policies)
        if policies:
            from .policies import PolicyBox

            request = Request(model, tools=declared) if declared or model else None
            self._policies = PolicyBox(policies, request=request)

    @property
    def straight(self) -> bool:
        """Whether nothing follows the reader."""
        return not self._waits and not self._boxes and self._policies is None

    def feed(self, chunk: bytes) -> list[Event]:
        return self._through(self.reader.feed(chunk))

    def close(self) -> list[Event]:
        if self.over:
            return []
        events = self._through(self.reader.close())
        for place, box in enumerate(self._boxes):
            held = box.close()
            for later in self._boxes[place + 1 :]:
                held = later.feed(held)
            events += held
        return events

    def _through(self, events: list[Event]) -> list[Event]:
        if self._waits and events:
            self._begin(events)
        for box in self._boxes:
            events = box.feed(events)
        if self._policies is not None:
            events = self._policies.feed(events)
            self.over = self._policies.over
        if events and type(events[-1]) is StreamError:
            self.over = True
        return events

    def _begin(self, events: list[Event]) -> None:
        start = next((event for event in events if isinstance(event, StreamStart)), None)
        if start is None and type(events[-1]) is not StreamError:
            return
        self._waits = False
        model = self._model or (start.model if start is not None else "")
        prefix = self._call_prefix or self.reader.call_prefix
        given = self._inband
        if isinstance(given, InBand):
            self._boxes.append(given)
        elif given is not None:
            functions = [as_function(tool) if tool.name in self._emulated else tool for tool in self.tools]
            self._boxes.append(inband_box(given, functions or None, model=model, call_prefix=prefix))
        if self._emulated:
            self._boxes.append(PerChoice(lambda: CustomCalls(self._emulated)))
        self._boxes.append(UniqueCallIds(prefix))


class _Writing:
    """The box behind ``write``."""

    over = False

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.feed: Callable[[Iterable[Event] | Event], bytes] = writer.feed
        self.close: Callable[[], bytes] = writer.close


class Translator:
    """The box that ``translator`` makes: ``feed(bytes)`` gives bytes, ``close()`` the last ones. ``over`` says that the stream has
    ended before its source, by an error or a policy, and nothing more is wanted from it. ``writer`` is the writer, whose ``lost``
    counts what the target cannot express. ``feed`` raises ``TypeError`` for anything but bytes."""

    def __init__(self, reading: _Reading, writer: Writer) -> None:
        self.writer = writer
        self._reading = reading

    @property
    def straight(self) -> tuple[Reader, Writer] | None:
        """The reader and the writer, if there is nothing between the two."""
        return (self._reading.reader, self.writer) if self._reading.straight else None

    @property
    def over(self) -> bool:
        """Whether the stream has ended before its source."""
        return self._reading.over

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that the client gets for these bytes of the upstream; often none."""
        return self.writer.feed(self._reading.feed(chunk))

    def close(self) -> bytes:
        """The last bytes. A source that broke off ends as an error of the target's dialect."""
        return self.writer.feed(self._reading.close()) + self.writer.close()


def _is_async(source: object) -> bool:
    """Whether to iterate asynchronously. An object that offers both, such as ``Client.stream`` gives, says by ``plain`` how it was
    opened; without that, asynchronous iteration is meant."""
    return hasattr(source, "__aiter__") and not (hasattr(source, "__iter__") and getattr(source, "plain", False))


class _PlainSource(Protocol):
    """Events that are read by ``for``, of an object that could also be read by ``async for``."""

    @property
    def plain(self) -> Literal[True]: ...
    def __iter__(self) -> Iterator[Event]: ...


# --- functions


@overload
def read(
    chunks: AsyncIterable[bytes],
    source: ReaderName | str,
    *,
    inband: InBandOption = None,
    model: str = "",
    tools: Tools | None = None,
    policies: Iterable[Policy] = (),
    provider: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    call_prefix: str = "",
) -> AsyncEventStream: ...
@overload
def read(
    chunks: Bytes | Iterable[bytes],
    source: ReaderName | str,
    *,
    inband: InBandOption = None,
    model: str = "",
    tools: Tools | None = None,
    policies: Iterable[Policy] = (),
    provider: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    call_prefix: str = "",
) -> EventStream: ...
def read(
    chunks: Bytes | Iterable[bytes] | AsyncIterable[bytes],
    source: ReaderName | str,
    *,
    inband: InBandOption = None,
    model: str = "",
    tools: Tools | None = None,
    policies: Iterable[Policy] = (),
    provider: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    call_prefix: str = "",
) -> EventStream | AsyncEventStream:
    """Reads the stream of an upstream as events.

        with httpx.stream("POST", url, headers=headers, content=content) as response:
            stream = streamglot.read(response.iter_bytes(), "anthropic")
            for event in stream:
                if isinstance(event, streamglot.TextDelta):
                    print(event.text, end="", flush=True)
        answer = stream.response()

    Takes:
        ``chunks``: the bytes as they come, in any pieces: an iterable, an asynchronous iterable, or the whole body as one ``bytes``.
        ``source``: the dialect of these bytes, such as ``"openai_chat"`` or ``"anthropic"``.
        ``inband``: also find the reasoning and the calls that the model wrote into its text: the name of a format such as
        ``"hermes"``, a row of its own, or ``"auto"``, which finds the format by ``model``, or else by the model that the stream
        names.
        ``model``: the name of the model.
        ``tools``: the tools of the request, as ``ToolSpec`` objects or definitions in the form of the chat API. The in-band parser
        takes calls of these only, and policies check arguments by their schemas.
        ``policies``: policies that judge and change the events.
        ``provider``: who made opaque state such as signatures; by default the dialect. It returns to that provider only.
        ``limits``: the largest answer, and the other limits.
        ``call_prefix``: begins the ids of calls that have none.

    Gives an ``EventStream``, or an ``AsyncEventStream`` for an asynchronous source: an iterator over events with ``response()`` (the whole
    answer, at the end), ``snapshot()`` (the answer so far) and ``close()`` or ``aclose()``, which closes ``chunks`` too. The last event
    is a ``StreamEnd`` or a ``StreamError``: whatever an upstream sends, nothing is raised for it.

    Raises ``ConfigError`` for a name that does not exist, ``TypeError`` for chunks that are not bytes, and what ``chunks`` itself
    raises.
    """
    box = _reading(source, inband, model, tools, policies, provider, limits, call_prefix)
    pieces = _chunks(chunks)
    return AsyncEventStream(pieces, box) if isinstance(pieces, AsyncIterable) else EventStream(pieces, box)


@overload
def write(
    events: _PlainSource,
    target: WriterName | str,
    *,
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    model: str = "",
    created: int = 0,
    **options: Unpack[DialectWriterOptions],
) -> ByteStream: ...
@overload
def write(
    events: AsyncIterable[Event],
    target: WriterName | str,
    *,
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    model: str = "",
    created: int = 0,
    **options: Unpack[DialectWriterOptions],
) -> AsyncByteStream: ...
@overload
def write(
    events: Iterable[Event],
    target: WriterName | str,
    *,
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    model: str = "",
    created: int = 0,
    **options: Unpack[DialectWriterOptions],
) -> ByteStream: ...
def write(
    events: Iterable[Event] | AsyncIterable[Event] | _PlainSource,
    target: WriterName | str,
    *,
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    model: str = "",
    created: int = 0,
    **options: Unpack[DialectWriterOptions],
) -> ByteStream | AsyncByteStream:
    """Writes events as the stream of a client.

        stream = streamglot.read(response.aiter_bytes(), "anthropic")
        return StreamingResponse(streamglot.write(stream, "openai_chat"), media_type="text/event-stream")

    Takes:
        ``events``: an iterable or an asynchronous iterable of events: what ``read`` or ``Client.stream`` gives, or a list.
        ``target``: the dialect of the client, such as ``"openai_chat"``.
        ``request``: the client's request, of which the writer takes what it decides: the usage at the end, the model, the old form of
        calls. ``options`` go before it.
        ``strict``: write the fields of the dialect's specification only.
        ``id``, ``model``, ``created``: used where the events have none.
        ``options``: those of the dialect's own writer, such as ``include_usage`` of ``"openai_chat"``.

    Gives an iterator over bytes, asynchronous if ``events`` is: a ``ByteStream`` or an ``AsyncByteStream``. ``close()`` or ``aclose()``
    closes ``events`` too. Events that stop without an end are written as an error.

    Raises ``ConfigError`` for a name that does not exist, ``TypeError`` for an option that the writer does not have and for what is not
    an event, ``GrammarError`` for events out of order, and what ``events`` itself raises.
    """
    box = _Writing(writer(target, request=request, strict=strict, id=id, model=model, created=created, **options))
    if _is_async(events):
        return AsyncByteStream(events, box)  # type: ignore[arg-type]  # it is asynchronous
    return ByteStream(as_events(events), box)  # type: ignore[arg-type]  # it checks what it gets


@overload
def translate(
    chunks: AsyncIterable[bytes],
    source: ReaderName | str,
    target: WriterName | str,
    *,
    inband: InBandOption = None,
    model: str = "",
    tools: Tools | None = None,
    policies: Iterable[Policy] = (),
    provider: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    call_prefix: str = "",
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    created: int = 0,
    **options: Unpack[TranslateOptions],
) -> AsyncByteStream: ...
@overload
def translate(
    chunks: Bytes | Iterable[bytes],
    source: ReaderName | str,
    target: WriterName | str,
    *,
    inband: InBandOption = None,
    model: str = "",
    tools: Tools | None = None,
    policies: Iterable[Policy] = (),
    provider: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    call_prefix: str = "",
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    created: int = 0,
    **options: Unpack[TranslateOptions],
) -> ByteStream: ...
def translate(
    chunks: Bytes | Iterable[bytes] | AsyncIterable[bytes],
    source: ReaderName | str,
    target: WriterName | str,
    *,
    inband: InBandOption = None,
    model: str = "",
    tools: Tools | None = None,
    policies: Iterable[Policy] = (),
    provider: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    call_prefix: str = "",
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    created: int = 0,
    **options: Unpack[TranslateOptions],
) -> ByteStream | AsyncByteStream:
    """Translates the stream of an upstream into the dialect of a client, live: one piece out for each piece in.

        chunks = response.aiter_bytes()
        return StreamingResponse(streamglot.translate(chunks, "anthropic", "openai_chat"), media_type="text/event-stream")

    Takes:
        ``chunks``: the bytes as they come, in any pieces: an iterable, an asynchronous iterable, or the whole body as one ``bytes``.
        ``source``, ``target``: the dialect of these bytes, and the dialect of the client.
        ``inband``, ``model``, ``tools``, ``policies``, ``provider``, ``limits``, ``call_prefix``: as for ``read``.
        ``request``, ``strict``, ``id``, ``model``, ``created``, ``options``: as for ``write``.

    Gives an iterator over bytes, asynchronous if ``chunks`` is: a ``ByteStream`` or an ``AsyncByteStream``. ``close()`` or ``aclose()``
    closes ``chunks`` too. A source that breaks off ends as an error of the target's dialect.

    Raises ``ConfigError`` for a name that does not exist, ``TypeError`` for an option that the writer does not have and for chunks that
    are not bytes, and what ``chunks`` itself raises.
    """
    box = translator(
        source,
        target,
        inband=inband,
        model=model,
        tools=tools,
        policies=policies,
        provider=provider,
        limits=limits,
        call_prefix=call_prefix,
        request=request,
        strict=strict,
        id=id,
        created=created,
        **options,
    )
    pieces = _chunks(chunks)
    return AsyncByteStream(pieces, box) if isinstance(pieces, AsyncIterable) else ByteStream(pieces, box, box.straight)


def translator(
    source: ReaderName | str,
    target: WriterName | str,
    *,
    inband: InBandOption = None,
    model: str = "",
    tools: Tools | None = None,
    policies: Iterable[Policy] = (),
    provider: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    call_prefix: str = "",
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    created: int = 0,
    **options: Unpack[TranslateOptions],
) -> Translator:
    """``translate`` as a box, for programs with loops of their own.

        box = streamglot.translator("anthropic", "openai_chat")
        for chunk in chunks:
            send(box.feed(chunk))
        send(box.close())

    Takes ``source`` and ``target``, the two dialects. ``inband``, ``model``, ``tools``, ``policies``, ``provider``, ``limits`` and
    ``call_prefix`` are as for ``read``; ``request``, ``strict``, ``id``, ``created`` and ``options`` as for ``write``.

    Gives a ``Translator``: ``feed(bytes)`` gives bytes, and ``close()`` the last ones.

    Raises ``ConfigError`` for a name that does not exist, and ``TypeError`` for an option that the writer does not have.
    """
    reading = _reading(source, inband, model, tools, policies, provider, limits, call_prefix)
    made = dialect(target).writer
    declared: dict[str, Any] = dict(options)  # Any: each option has its own type
    if reading.tools and isinstance(made, type) and "tools" in options_of(made):
        declared["tools"] = reading.tools
    return Translator(
        reading, make("writer", target, made, _named(dialect(target), request, strict, id, model, created, declared))
    )


def reader(
    name: ReaderName | str, *, provider: str | None = None, limits: Limits = DEFAULT_LIMITS, call_prefix: str = ""
) -> Reader:
    """The box that reads a dialect: ``feed(bytes)`` and ``close()`` give lists of events.

        box = streamglot.reader("anthropic")
        events = box.feed(body) + box.close()

    Takes ``name``, the dialect. ``provider``: who made opaque state such as signatures; by default the dialect. ``limits``: the
    largest answer, and the other limits. ``call_prefix`` begins the ids of calls that have none.

    Gives a ``Reader``. Raises ``ConfigError`` for a name that does not exist and for a dialect that only clients speak.
    """
    return dialect(name).reader(provider=provider, limits=limits, call_prefix=call_prefix)


def writer(
    name: WriterName | str,
    *,
    request: Request | None = None,
    strict: bool = False,
    id: str = "",
    model: str = "",
    created: int = 0,
    **options: Unpack[DialectWriterOptions],
) -> Writer:
    """The box that writes a dialect: ``feed(events)`` and ``close()`` give bytes.

        box = streamglot.writer("openai_chat")
        data = box.feed(events) + box.close()

    Takes ``name``, the dialect. ``request``: the client's request, of which the writer takes what it decides (usage, model, the old form
    of calls). ``strict``: write the fields of the dialect's specification only. ``id``, ``model`` and ``created`` are used where the
    events have none. ``options`` are those of the dialect's own writer, and go before the request.

    Gives a ``Writer``. Raises ``ConfigError`` for a name that does not exist and for a dialect that only upstreams speak, and
    ``TypeError`` for an option that the writer does not have.
    """
    known = dialect(name)
    return make("writer", name, known.writer, _named(known, request, strict, id, model, created, options))


def _named(
    known: Dialect, request: Request | None, strict: bool, id: str, model: str, created: int, options: Mapping[str, object]
) -> dict[str, object]:
    """The options of a writer that say more than its defaults: those of the request, then those that are given."""
    requested = known.writer_options(request) if request is not None else {}
    common = {"strict": strict, "id": id, "model": model, "created": created}
    return {**requested, **{name: value for name, value in common.items() if value}, **options}


def _reading(
    source: str,
    inband: InBandOption,
    model: str,
    tools: Tools | None,
    policies: Iterable[Policy],
    provider: str | None,
    limits: Limits,
    call_prefix: str,
) -> _Reading:
    if inband is not None and not isinstance(inband, InBand):
        inband_box(inband, model=model)  # a name that does not exist is an error here, not in the middle of a stream
    made = reader(source, provider=provider, limits=limits, call_prefix=call_prefix)
    return _Reading(made, dialect(source), inband, model, tools, policies, call_prefix)


def _chunks(chunks: object) -> Iterable[bytes] | AsyncIterable[bytes]:
    """The source of bytes. A whole body is one chunk."""
    if isinstance(chunks, (bytes, bytearray, memoryview)):
        return (bytes(chunks),)
    if _is_async(chunks):
        return chunks  # type: ignore[return-value]  # it is asynchronous
    if isinstance(chunks, (str, Mapping)) or not isinstance(chunks, Iterable):
        raise TypeError(
            f"a stream is read from bytes, not from {type(chunks).__name__}; pass the body as bytes, or an iterable of its chunks such "
            "as response.iter_bytes() or response.aiter_bytes()"
        )
    return chunks
