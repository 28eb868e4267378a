"""The client: ``async with`` for asynchronous programs, plain ``with`` for all others, through the same code.

A request is a string, ``Message`` objects, or the fields of a dialect; ``make_request`` builds it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from msgspec import Struct, structs

from ..batch.runner import CONCURRENT, RetryPolicy
from ..config import LoadedConfig
from ..dialects import dialect
from ..engine.exchange import Exchange
from ..engine.tool_call import ToolCall
from ..engine.upstreams import UpstreamPool
from ..errors import ConfigError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import Message, OutputFormat, Reasoning, Request, Response, TextPart, ToolChoice, ToolSpec
from ..stages.stage import ExchangeContext
from ..tasks import LoopThread
from ..tools.tool import as_tool
from ..upstream import Upstream
from .batch import Batch, BatchSettings, Requests
from .json_stream import JsonStream, output_format
from .stream import PlainStream, Stream

if TYPE_CHECKING:
    from ..engine.turn_recorder import TurnRecorder
    from ..policies import Policy

DIALECT = Upstream().dialect
"""The default dialect of requests, which is also the default dialect of upstreams."""
FIELDS = frozenset(Request.__struct_fields__)
OBJECTS: Final[dict[str, type[Struct]]] = {
    "tools": ToolSpec,
    "tool_choice": ToolChoice,
    "reasoning": Reasoning,
    "output": OutputFormat,
}
"""Fields that may hold streamglot objects, or values in the form of a dialect."""

_Parse = Callable[[JsonObject], Request]
_Messages = list[Message | JsonObject]
T = TypeVar("T")


class Client:
    """Asks models, in an asynchronous program and in a plain one:

        async with streamglot.Client() as client:
            answer = await client.ask("Hello", model="gpt-5.5")

        with streamglot.Client() as client:
            answer = client.ask("Hello", model="gpt-5.5")

    It calls the upstreams of the configuration, the discovered ones (keys in the environment, servers on this machine), the local
    model, and the ``upstreams`` given here. If some are given, nothing is discovered unless ``discover`` is True. ``config`` is a
    loaded configuration instead of that of this machine, ``environment`` the variables instead of those of the process.

    ``tools`` are functions, tools, or globs of tools that the configuration enables. The client runs calls of them and returns
    their results to the model, unless ``run_tools`` is False. ``policies`` judge every request and answer. ``model_lists`` is a
    folder that keeps the lists of models of upstreams for the next process.

    Raises ``ConfigError`` for settings that are wrong. Plain ``with`` gives a ``PlainClient``, and works in a thread whose event loop
    runs, such as that of a notebook, too; it blocks that thread.
    """

    def __init__(
        self,
        *,
        upstreams: Iterable[Upstream] = (),
        tools: Iterable[object] = (),
        run_tools: bool = True,
        config: LoadedConfig | None = None,
        environment: Mapping[str, str] | None = None,
        discover: bool | None = None,
        policies: Iterable[Policy] = (),
        model_lists: Path | None = None,
    ) -> None:
        listed = list(tools)
        functions = [as_tool(tool) for tool in listed if not isinstance(tool, str)]
        self._tools = [*(tool for tool in listed if isinstance(tool, str)), *(tool.name for tool in functions)]
        self._run_tools = run_tools
        self.pool = UpstreamPool(
            config,
            upstreams=upstreams,
            tools=functions,
            environment=environment,
            discover=discover,
            policies=policies,
            model_lists=model_lists,
        )
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._batches: weakref.WeakSet[Batch] = weakref.WeakSet()
        self._worker: LoopThread | None = None
        self._opened = False

    def stream(
        self,
        request: Request | str | None = None,
        /,
        *,
        model: str = "",
        messages: str | Iterable[Message | JsonObject] = (),
        system: str = "",
        dialect: str = "",
        recorder: TurnRecorder | None = None,
        run_tools: bool | None = None,
        **fields: object,
    ) -> Stream:
        """The answer to a request as a stream of events, given as a ``Request``, as one text, or by its fields.

            async for event in client.stream("Hello", model="gpt-5.5"):
                ...

        ``messages`` may be a string, ``Message`` objects, or the messages of a ``dialect`` with its other ``fields``; ``model`` and
        ``system`` belong to them. ``recorder`` writes the turn to a store. ``run_tools`` says whether the client runs calls of its
        tools or returns them.
        """
        made = make_request(request, model, messages, system, dialect, fields)
        exchange = self.exchange(made, recorder=recorder, run_tools=run_tools)
        kind = PlainStream if self._worker else Stream
        stream = kind(self.pool, exchange, self._worker.run if self._worker else None)
        self._streams.add(stream)
        return stream

    def ask(
        self,
        request: Request | str | None = None,
        /,
        *,
        model: str = "",
        messages: str | Iterable[Message | JsonObject] = (),
        system: str = "",
        dialect: str = "",
        recorder: TurnRecorder | None = None,
        run_tools: bool | None = None,
        **fields: object,
    ) -> Coroutine[object, object, Response]:
        """The whole answer at once: ``answer = await client.ask("Hello", model="gpt-5.5")``. In a plain program, inside
        ``with Client() as client``, it is ``answer = client.ask(…)``.

        The arguments are those of ``stream``. An error before the answer has begun is raised; later it is the ``error`` of the
        ``Response``, which ``raise_for_error()`` raises.
        """
        stream = self.stream(
            request,
            model=model,
            messages=messages,
            system=system,
            dialect=dialect,
            recorder=recorder,
            run_tools=run_tools,
            **fields,
        ).whole()
        return stream if self._worker is None else self._worker.run(stream)  # type: ignore[arg-type]  # PlainClient has the type

    def exchange(
        self,
        made: Request,
        *,
        recorder: TurnRecorder | None = None,
        run_tools: bool | None = None,
        collects: bool = False,
        call: ToolCall | None = None,
    ) -> Exchange:
        """The engine's exchange for this request, with the client's tools and policies. ``call``: for this call of a tool,
        without a model."""
        if not self._opened:
            raise ConfigError("the client is not open: use it inside `async with Client() as client` or `with`")
        record, patterns = self.pool.record(made), self._tools
        if call is not None:
            patterns = [call.tool.name]
        elif patterns and not (self._run_tools if run_tools is None else run_tools):
            made = structs.replace(made, tools=[*made.tools, *(tool.spec() for tool in self.pool.tools.registry.given())])
            patterns = []
        return Exchange(
            made,
            self.pool if call is None else call,
            record=record,
            context=ExchangeContext(record.request_id, record.dialect, record.key, record.model, tools=patterns),
            stages=self.pool.stages if call is None else call.stages,
            observers=[*self.pool.observers, *([recorder] if recorder is not None else [])],
            conversation=recorder,
            collects=collects,
        )

    def batch(
        self,
        requests: Requests,
        *,
        model: str = "",
        system: str = "",
        concurrent: int = CONCURRENT,
        ordered: bool = False,
        retry: RetryPolicy | None = None,
        recorder: Callable[[Request], TurnRecorder] | None = None,
    ) -> Batch:
        """Runs many requests, ``concurrent`` at a time, and yields a result for each, as they come or ``ordered``.

        A request is a string, a ``Request``, or a dict of the chat API with ``messages`` or ``prompt`` and optionally an ``id``.
        A generator of requests is read only as fast as requests are answered. ``model`` and ``system`` apply to requests that
        have none. A failed request is retried as ``retry`` says; after that its result has an error.
        """
        options = BatchSettings(model, system, concurrent, ordered, retry or RetryPolicy(), recorder)
        batch = Batch(self, requests, options, self._worker.run if self._worker else None)
        self._batches.add(batch)
        return batch

    @overload
    def stream_json(self, kind: type[T], request: Request | str | None = None, /, **fields: object) -> JsonStream[T]: ...
    @overload
    def stream_json(
        self, kind: JsonObject, request: Request | str | None = None, /, **fields: object
    ) -> JsonStream[JsonValue]: ...
    # Any: the overloads say which type, and ``fields`` are the arguments of ``stream``
    def stream_json(self, kind: type | JsonObject, request: Request | str | None = None, /, **fields: Any) -> JsonStream[Any]:
        """Partial objects of a type while the model writes them, then the whole one.

        ``kind`` is a msgspec struct, a dataclass, a pydantic model or a JSON Schema. The other arguments are those of ``stream``.
        """
        stream = self.stream(request, **fields)
        if stream.request.output is None:
            stream.request.output = output_format(kind)
        return JsonStream(kind, stream)

    # --- life cycle

    async def __aenter__(self) -> Self:
        await self.pool.open()
        self._opened = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._opened = False
        for batch in list(self._batches):
            await batch.aclose()
        for stream in list(self._streams):
            stream.hang_up()
        await self.pool.close()

    def __enter__(self) -> PlainClient:
        self._worker = LoopThread("streamglot client")
        try:
            self._worker.run(self.__aenter__())
        except BaseException:
            self._worker.stop()
            raise
        view = object.__new__(PlainClient)
        view.__dict__ = self.__dict__
        return view

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.run(self.__aexit__(kind, value, trace))
            finally:
                worker.stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that a plain ``with`` runs in the background."""
        return self._worker.loop if self._worker else None


class PlainClient(Client):
    """What ``with Client() as client`` gives: the same client, whose ``ask`` returns the answer and whose streams are read by ``for``.
    It takes the arguments of ``Client``, of which it is a view; only ``with`` makes one."""

    def ask(  # type: ignore[override]  # a plain program does not wait for a coroutine
        self,
        request: Request | str | None = None,
        /,
        *,
        model: str = "",
        messages: str | Iterable[Message | JsonObject] = (),
        system: str = "",
        dialect: str = "",
        recorder: TurnRecorder | None = None,
        run_tools: bool | None = None,
        **fields: object,
    ) -> Response:
        """The whole answer at once: ``answer = client.ask("Hello", model="gpt-5.5")``.

        The arguments are those of ``stream``. An error before the answer has begun is raised; later it is the ``error`` of the
        ``Response``, which ``raise_for_error()`` raises.
        """
        answer: Any = super().ask(  # Any: the coroutine has been run
            request,
            model=model,
            messages=messages,
            system=system,
            dialect=dialect,
            recorder=recorder,
            run_tools=run_tools,
            **fields,
        )
        response: Response = answer
        return response

    def stream(
        self,
        request: Request | str | None = None,
        /,
        *,
        model: str = "",
        messages: str | Iterable[Message | JsonObject] = (),
        system: str = "",
        dialect: str = "",
        recorder: TurnRecorder | None = None,
        run_tools: bool | None = None,
        **fields: object,
    ) -> PlainStream:
        """The answer to a request as a stream of events, for ``for``. The arguments are those of ``Client.stream``."""
        stream = super().stream(
            request,
            model=model,
            messages=messages,
            system=system,
            dialect=dialect,
            recorder=recorder,
            run_tools=run_tools,
            **fields,
        )
        assert isinstance(stream, PlainStream)
        return stream


def make_request(
    request: Request | str | None,
    model: str,
    messages: str | Iterable[Message | JsonObject],
    system: str,
    written_in: str,
    fields: dict[str, Any],  # Any: each field has its own type, as in ``_object``
) -> Request:
    """Builds a request. ``messages`` may be a string.

    If a dialect is named or a message is a dict, the fields are those of the dialect ``written_in``; otherwise they are those of
    a ``Request``. Streamglot objects such as messages and tools are accepted in both.
    """
    if isinstance(request, Request):
        return structs.replace(request, stream=True)
    if request is not None:
        if messages or not isinstance(request, str):
            raise TypeError(f"a request is a Request, or one text without `messages`, not {excerpt(request)}")
        messages = request
    listed: _Messages = [Message("user", messages)] if isinstance(messages, str) else list(messages)
    parse = dialect(written_in or DIALECT).parse_request
    ours = [message for message in listed if isinstance(message, Message)]
    if written_in or not ours or len(ours) < len(listed):
        made = _of_dialect(parse, model, listed, fields)
    else:
        unknown = set(fields) - FIELDS
        if unknown:
            raise TypeError(
                f"a request has no field {', '.join(sorted(unknown))}; for fields of a dialect, name the dialect with `dialect`"
            )
        made = Request(model=model, messages=ours, **{name: _object(name, value, parse) for name, value in fields.items()})
    if system:
        made.messages = [Message("system", [TextPart(system)]), *made.messages]
    made.stream = True
    return made


def _of_dialect(parse: _Parse, model: str, messages: _Messages, fields: dict[str, Any]) -> Request:  # Any: as above
    ours = {name: _object(name, value, parse) for name, value in fields.items() if _has_ours(name, value)}
    body = {"model": model, **{name: value for name, value in fields.items() if name not in ours}}
    if any(isinstance(message, Message) for message in messages):
        made = parse({**body, "messages": []})
        for _, run in groupby(messages, type):
            some = list(run)
            made.messages += [one for one in some if isinstance(one, Message)] or parse({"messages": some}).messages
    else:
        made = parse({**body, "messages": messages})
    return structs.replace(made, **ours)


def _has_ours(name: str, value: object) -> bool:
    kind = OBJECTS.get(name)
    return kind is not None and any(isinstance(one, kind) for one in (value if isinstance(value, list) else [value]))


def _object(name: str, value: Any, parse: _Parse) -> Any:  # Any: each field has its own type
    """A field of a ``Request``, from a streamglot object or from a value in the form of the dialect."""
    kind = OBJECTS.get(name)
    if name == "tools":
        return [spec for tool in value or () for spec in ([tool] if isinstance(tool, ToolSpec) else parse({name: [tool]}).tools)]
    if kind is None or value is None or isinstance(value, kind):
        return value
    parsed = getattr(parse({name: value}), name)
    if parsed is None:
        raise TypeError(f"{name} must be of the type {kind.__name__}, not {excerpt(value)}")
    return parsed
