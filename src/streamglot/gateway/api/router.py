"""The table of routes: everything that the server answers beside the endpoints of dialects.

A module of this package gives its rows: method, path, handler, and what the OpenAPI description says about them. A handler gets
the call and the parameters in its path, and returns a ``Reply`` or a ``StreamedReply``. What it raises becomes an error in the
dialect that the path belongs to.
"""

from __future__ import annotations

import asyncio
import math
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec
from msgspec import Struct

from ...dialects import dialect
from ...engine.attempts import retry_after_of
from ...engine.stats import clean_id
from ...errors import RequestError, StreamglotError, excerpt
from ...json_types import JsonObject
from ..auth.access import Access
from ..auth.authenticator import Caller
from ..endpoints import dialect_of
from ..http.call import JSON, Call, ClientDisconnected, Reply, RoutedCall, StreamCutError, StreamedReply, json_object, retry_after
from ..observe.recording import Recording
from ..services import GatewayServices

if TYPE_CHECKING:
    from ...store import Store

Answer = Reply | StreamedReply
Handler = Callable[..., Awaitable[Answer]]
"""Takes the call, and a string for each parameter in the path."""
Result = TypeVar("Result")

KEY: Final = "key"
"""The query parameter in which some clients send their key."""
CLIENT_GONE: Final = 499
"""The status of a call whose client has disconnected. Nobody receives it."""
PARAMETER: Final = re.compile(r"\{(\w+)(:path)?\}")
"""A parameter in the path of a route."""
_SAFE: Final = ":/%#?=@[]!$&'()*+,;"
"""Characters that a URL may have unquoted."""


class APIRoute(Struct, frozen=True):
    """A row. ``{id}`` in the path is one segment, ``{name:path}`` may have slashes. GET also answers HEAD.

    ``summary`` and ``query`` are for the OpenAPI description, which leaves out rows without a summary.
    """

    method: str
    path: str
    handler: Handler
    summary: str = ""
    query: tuple[str, ...] = ()


class Router:
    """Finds the route of a call and sends its answer."""

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        self.routes = tuple(routes)
        self._exact: dict[str, dict[str, Handler]] = {}
        self._patterns: dict[str, dict[str, Handler]] = {}
        for route in self.routes:
            table = self._patterns if "{" in route.path else self._exact
            table.setdefault(route.path, {})[route.method] = route.handler
        self._compiled = [(_pattern(path), methods) for path, methods in self._patterns.items()]

    async def answer(self, call: RoutedCall) -> None:
        """Answers a call. An internal error is raised after its answer, for the log."""
        try:
            handler, values = self._find(call)
            answer = await handler(call, *values)
            if isinstance(answer, Reply):
                await call.send(answer)
            else:
                await _send_stream(call, answer)
        except ClientDisconnected:
            if not call.started:
                await call.send(Reply(CLIENT_GONE, media_type=""))
        except StreamglotError as error:
            if call.started:
                raise
            await call.send(refusal(call, error))
        except Exception:
            if not call.started:
                await call.send(refusal(call, _internal_error(call)))
            raise

    def _find(self, call: RoutedCall) -> tuple[Handler, tuple[str, ...]]:
        method = "GET" if call.method == "HEAD" else call.method
        known = False
        for methods, values in self._matches(call.path):
            if method in methods:
                return methods[method], values
            known = True
        if not known and (place := self._with_other_ending(call.path)):
            return _redirect, (place,)
        message = f"there is no endpoint {call.method} {_quoted(call.path)}; see /docs for the list"
        raise RequestError(message, code="unknown_url", status=405 if known else 404)

    def _matches(self, path: str) -> Iterator[tuple[dict[str, Handler], tuple[str, ...]]]:
        if path in self._exact:
            yield self._exact[path], ()
        for pattern, methods in self._compiled:
            found = pattern.fullmatch(path)
            if found is not None:
                yield methods, tuple(plain(value) for value in found.groups())

    def _with_other_ending(self, path: str) -> str:
        """The path with or without a slash at its end, if that is a route; else an empty string."""
        other = path.rstrip("/") if path.endswith("/") else path + "/"
        return other if path != "/" and any(self._matches(other)) else ""


def _pattern(path: str) -> re.Pattern[str]:
    literals = [re.escape(text) for text in PARAMETER.split(path)[::3]]
    groups = [r"(.*)" if name[2] else r"([^/]+)" for name in PARAMETER.finditer(path)]
    return re.compile("".join(text for pair in zip(literals, (*groups, ""), strict=True) for text in pair))


async def _redirect(call: RoutedCall, path: str) -> Reply:
    query = call.query_string.decode("latin-1")
    place = f"{call.base_url}{_quoted(path)}{'?' if query else ''}{query}"
    return Reply(307, media_type="", headers={"location": quote(place, safe=_SAFE)})


def _quoted(path: str) -> str:
    return path.replace("?", "%3F").replace("#", "%23").replace("\\", "%5C")


async def _send_stream(call: RoutedCall, answer: StreamedReply) -> None:
    """Sends the pieces. A client that disconnects stops them."""
    try:
        await while_there(call, _send_pieces(call, answer))
    finally:
        if isinstance(answer.pieces, AsyncGenerator):
            await answer.pieces.aclose()
        if answer.ended is not None:
            await answer.ended()


async def _send_pieces(call: RoutedCall, answer: StreamedReply) -> None:
    await call.start(200, {"content-type": answer.media_type, **answer.headers})
    call.send_head()
    try:
        if call.method != "HEAD":
            async for piece in answer.pieces:
                if piece:
                    await call.write(piece)
    except StreamCutError as cut:
        await call.break_off(cut.data)
    else:
        await call.end()


# --- for handlers


def admit(access: Access, call: RoutedCall) -> Caller | None:
    """Who calls; None if no keys are required. Raises if the key is missing or wrong."""
    return access.authenticator.admit(call.headers, query_of(call).get(KEY, ""))


def seen_by(caller: Caller | None) -> str | None:
    """Whose turns a client may see: those of its key, or None for all if no keys are required."""
    return None if caller is None else caller.name


def store_of(recording: Recording) -> Store:
    if recording.store is None:
        raise RequestError("this gateway has no store (store.url is none): set store.url", code="store_off", status=404)
    return recording.store


async def body_of(services: GatewayServices, call: RoutedCall) -> bytes:
    """The whole body, within the limits of the configuration."""
    server = services.server
    return await call.body(server.max_body_bytes, services.within(server.body_seconds))


async def json_of(services: GatewayServices, call: RoutedCall) -> JsonObject:
    return json_object(await body_of(services, call))


def json_reply(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, msgspec.json.encode(body), JSON, headers or {})


def request_id(call: Call) -> str:
    """The client's request id, or a new one. Repeated calls return the same id."""
    call.headers["x-request-id"] = id = clean_id(call.headers.get("x-request-id", "")) or uuid.uuid4().hex
    return id


async def while_there(call: Call, work: Coroutine[object, object, Result]) -> Result:
    """The result of the work. If the client disconnects first, cancels the work and its upstream request."""
    task, gone = asyncio.ensure_future(work), False

    def drop() -> None:
        nonlocal gone
        gone = True
        task.cancel()

    call.watch(drop)
    try:
        return await task
    except asyncio.CancelledError:
        if gone:
            raise ClientDisconnected from None
        raise
    finally:
        call.unwatch()


# --- errors


def refusal(call: Call, error: StreamglotError) -> Reply:
    """An error in the shape of the dialect that the path belongs to."""
    headers = {"x-request-id": request_id(call)}
    after = retry_after_of(error)
    if after is not None:
        headers["retry-after"] = retry_after(after)
    if not error.retryable:
        headers["x-should-retry"] = "false"
    return json_reply(dialect(dialect_of(call.path, call.headers)).error_body(error.as_event()), error.status, headers)


def _internal_error(call: Call) -> StreamglotError:
    """The error for the client. The place in the code goes to the log."""
    return StreamglotError(f"internal error of the gateway; its log has the details (request id {request_id(call)})")


# --- the query


def query_of(call: RoutedCall) -> dict[str, str]:
    """The parameters of the query. The last one of a name counts."""
    return dict(parse_qsl(call.query_string.decode("latin-1"), keep_blank_values=True)) if call.query_string else {}


class Parameters:
    """The query parameters of a call. Unknown names are refused, because a misspelled filter would filter nothing."""

    def __init__(self, call: RoutedCall, *names: str) -> None:
        self._values = query_of(call)
        unknown = [name for name in self._values if name not in (*names, KEY)]
        if unknown:
            raise RequestError(
                f"{excerpt(unknown[0])} is not a parameter of this path; it has {', '.join(names) or 'no parameters'}"
            )

    def __getitem__(self, name: str) -> str:
        return plain(self._values.get(name, ""))

    def one_of(self, name: str, *words: str) -> str:
        """One of these words; the first if the parameter is absent."""
        word = self[name] or words[0]
        if word not in words:
            raise RequestError(f"{name} must be {' or '.join(words)}, not {excerpt(word)}")
        return word

    def limit(self, default: int, maximum: int) -> int:
        text = self["limit"] or str(default)
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= maximum):
            raise RequestError(f"limit must be a number from 1 to {maximum}, not {excerpt(text)}")
        return int(text)

    def moment(self, name: str) -> float:
        """Seconds since 1970, given as a number or an ISO date; 0 if the parameter is absent."""
        text = self[name] or "0"
        try:
            seconds = float(text)
        except ValueError:
            try:
                moment = datetime.fromisoformat(text)
                seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
            except (ValueError, OverflowError):
                seconds = math.nan
        if not math.isfinite(seconds):
            raise RequestError(f"{name} must be seconds since 1970 or a date like 2026-01-31T12:00Z, not {excerpt(text)}")
        return seconds


def plain(text: str) -> str:
    """Replaces NUL characters, which PostgreSQL does not accept in text."""
    return text.replace("\0", "\ufffd")
