"""The inspector's API: a stored, running or pasted stream as linked rows, and the facts about a stored turn: figures, requests,
waits, verdicts, and commands to repeat it.

GET  /turns/{id}/inspect        lines of JSON: {"turn": facts}, {"rows": page} …, {"end": true}; a running turn is followed
GET  /turns/{id}/inspect/curl   a command that sends the request again, to this gateway or to the upstream
GET  /turns/{id}/inspect/test   a zip file with the recording and a pytest file
POST /inspect                   the same lines for pasted bytes, whose dialect and in-band notation are detected
POST /inspect/test              the zip file of pasted bytes

A key sees its own turns, the operator all. Pages are made in a thread, one at a time for each request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from ...dialects import DIALECTS, dialect
from ...errors import RequestError, StreamglotError, excerpt
from ...inband import FORMATS
from ...inspect.detection import EVENTS as EVENT_LINES
from ...inspect.export import curl, pytest_archive, shortened, shown_body
from ...inspect.inspection import ASKED, CLIENT_REQUEST, DOWN, EVENTS, UP, Inspection
from ...inspect.paging import Pager
from ...inspect.recording import PastedSource, RecordedPiece, attempt_of, pieces_of_response, read_source
from ...inspect.waterfall import bars_of_facts, bars_of_marks
from ...json_types import JsonObject
from ...upstream.secrets import HIDDEN
from ..auth.access import Access
from ..endpoints import path_of
from ..http.call import Reply, RoutedCall, StreamedReply
from ..observe.recording import Recording
from ..services import GatewayServices
from .router import APIRoute, Parameters, admit, body_of, json_reply
from .sessions import CallerStoreView, store_view_of
from .streams import Arrivals

if TYPE_CHECKING:
    from ...messages import Request
    from ...store import TurnDetail

OWN_KEY: Final = "Bearer $STREAMGLOT_KEY"
UPSTREAM_KEY: Final = "$UPSTREAM_KEY"
"""Shell variables that replace keys in the commands."""
BEARER: Final = "authorization"
SHOWN_DIALECT: Final = next(iter(DIALECTS))
"""The dialect in which a request is shown if its own dialect cannot be built."""
POLL_SECONDS: Final = 0.25
"""Seconds between two reads of what a running turn has recorded. The store commits as often."""
FIRST_COMMITS: Final = 2
COMMITS: Final = 8
"""Commits of a recording that are read in one step. The first step reads few, so that its rows appear quickly."""
CONCURRENT_PAGES: Final = 2
"""Pages that are computed at the same time. The limit leaves the processor to the streams of other clients."""
FIRST_WRITER: Final = next(one.name for one in DIALECTS.usable() if one.has_writer)
"""The dialect in which a stream is shown if its own dialect has no writer."""
_LINES: Final = "application/x-ndjson"
_HEADERS: Final = {"x-content-type-options": "nosniff", "cache-control": "no-store", "x-accel-buffering": "no"}
_T = TypeVar("_T")


def inspect_routes(services: GatewayServices, access: Access, recording: Recording) -> list[APIRoute]:
    work = WorkerThreads()

    async def turn(call: RoutedCall, id: str) -> StreamedReply:
        parameters = Parameters(call, "as", "follow")
        follows = parameters.one_of("follow", "true", "false") == "true"
        view, client = store_view_of(access, recording, call), _client(parameters["as"])
        lines = TurnLines(view, work, await view.turn(id), client)
        return _streamed(lines.all(follows))

    async def command(call: RoutedCall, id: str) -> Reply:
        of = Parameters(call, "of").one_of("of", "client", "upstream")
        view = store_view_of(access, recording, call)
        found = await view.turn(id)
        pieces = await recorded_pieces(view, found.id)
        with_key = access.authenticator.asks
        text = client_curl(found, pieces, call.base_url, with_key) if of == "client" else upstream_curl(found, pieces)
        return Reply(200, text.encode(), "text/plain; charset=utf-8", _HEADERS)

    async def turn_test(call: RoutedCall, id: str) -> Reply:
        Parameters(call)
        view = store_view_of(access, recording, call)
        found = await view.turn(id)
        pieces = [piece for piece in await recorded_pieces(view, found.id) if piece.direction.startswith((UP, ASKED))]
        if not any(piece.direction.startswith(UP) for piece in pieces):
            raise RequestError(
                f"the bytes of the turn {found.id} were not recorded: set store.raw to record those of future turns",
                code="no_raw",
                status=404,
            )
        attempted = next((attempt for piece in reversed(pieces) if (attempt := attempt_of(piece)) is not None), None)
        source = PastedSource(pieces, found.dialects["upstream"], attempted.inband if attempted is not None else "", False, True)
        return _archive(found.id, await work.run(lambda: pytest_archive(found.id, source)))

    async def pasted_source(call: RoutedCall, parameters: Parameters) -> PastedSource:
        admit(access, call)
        dialect, inband = _dialect(parameters["from"]), _inband(parameters["inband"])
        body = await body_of(services, call)
        return await work.run(lambda: read_source(body, dialect, inband))

    async def pasted(call: RoutedCall) -> StreamedReply:
        parameters = Parameters(call, "from", "inband", "as")
        client = _client(parameters["as"])
        return _streamed(_pasted_lines(work, await pasted_source(call, parameters), client))

    async def pasted_test(call: RoutedCall) -> Reply:
        source = await pasted_source(call, Parameters(call, "from", "inband"))
        readable = source.dialect in DIALECTS and DIALECTS[source.dialect].has_reader
        if not readable or not any(piece.direction.startswith(UP) for piece in source.pieces):
            raise RequestError(
                "a test needs the bytes of an upstream, and this recording has only events or client bytes; record with store.raw"
            )
        return _archive("pasted", await work.run(lambda: pytest_archive("pasted", source)))

    async def choices(call: RoutedCall) -> Reply:
        """Lists the dialects and in-band formats that a request can name."""
        admit(access, call)
        known = [
            {"name": one.name, "title": one.title, "reads": one.has_reader, "writes": one.has_writer} for one in DIALECTS.usable()
        ]
        return json_reply({"dialects": known, "inband": sorted(FORMATS)})

    return [
        APIRoute(
            "GET",
            "/turns/{id}/inspect",
            turn,
            "A turn as linked rows: upstream bytes, events, client bytes; a running one is followed",
            ("as", "follow"),
        ),
        APIRoute("GET", "/turns/{id}/inspect/curl", command, "A command that sends the request of a turn again", ("of",)),
        APIRoute("GET", "/turns/{id}/inspect/test", turn_test, "A turn as a test: its recording and a pytest file"),
        APIRoute("GET", "/inspect", choices, "The dialects and in-band formats that a pasted stream may have"),
        APIRoute("POST", "/inspect", pasted, "A pasted stream or recording as linked rows", ("from", "inband", "as")),
        APIRoute("POST", "/inspect/test", pasted_test, "A pasted stream as a test", ("from", "inband")),
    ]


class WorkerThreads:
    """Runs computation in a few threads, so that it does not delay the streams of other clients."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(CONCURRENT_PAGES)

    async def run(self, step: Callable[[], _T]) -> _T:
        async with self._places:
            return await asyncio.to_thread(step)


class TurnLines:
    """Produces the lines of a stored or running turn."""

    def __init__(self, view: CallerStoreView, work: WorkerThreads, turn: TurnDetail, client: str) -> None:
        self._view = view
        self._work = work
        self._turn = turn
        self._client = client
        self._next = 0
        self._more = self._followed = False
        self._seen: list[RecordedPiece] = []

    async def all(self, follows: bool) -> AsyncIterator[bytes]:
        running = not self._turn.ending
        pieces = await self._read_beginning()
        yield self._facts(pieces, running)
        while follows and running and not pieces:
            await asyncio.sleep(POLL_SECONDS)
            if not self._view.store.settings.raw and await self._has_client_stream():
                async for line in self._client_stream():
                    yield line
                return
            running = await self._still_running()
            pieces = await self._read_beginning()
        recorded = Recorded.of(pieces)
        if not recorded.upstream and not recorded.events and not running:
            pieces += self._stored_pieces()
        pager = Pager(self._inspection(pieces, running))
        requests = [piece for piece in pieces if piece.direction.startswith((CLIENT_REQUEST, ASKED))]
        known = len(requests)
        while True:
            async for page in _pages(self._work, pager, pieces):
                yield page
            if not self._more:
                if not running or not follows:
                    break
                yield _line({"rows": pager.inspection.page()})  # the rows after the last whole page
                await asyncio.sleep(POLL_SECONDS)
                running = await self._still_running()
            pieces = await self._read(COMMITS)
            requests += [piece for piece in pieces if piece.direction.startswith((CLIENT_REQUEST, ASKED))]
        yield _line({"rows": await self._work.run(pager.close)})
        if len(requests) > known or self._followed:
            yield self._facts([*requests, *self._seen], running)
        yield _line({"end": True})

    async def _has_client_stream(self) -> bool:
        try:
            return bool(await self._view.store.buffer.head(self._turn.id, self._view.caller, wait=False))
        except StreamglotError:
            return False

    async def _client_stream(self) -> AsyncIterator[bytes]:
        """Follows a running turn whose upstream bytes are not recorded.

        It reads the client's stream as if it came from an upstream.
        """
        client = self._turn.dialects["client"]
        yield _line({"turn": {**facts(self._turn, [], running=True), "follows": "client"}})
        pager = Pager(Inspection(client, self._client or client))
        arrivals = Arrivals(self._view.store.buffer.read(self._turn.id, 0, self._view.caller))
        try:
            ended = False
            while not ended:
                pieces: list[RecordedPiece] = []
                until = time.monotonic() + POLL_SECONDS
                while not ended and await arrivals.next_within(max(0.0, until - time.monotonic())):
                    chunk = arrivals.take()
                    ended = chunk is None
                    if chunk is not None:
                        pieces.append(RecordedPiece(max(0.0, time.time() - self._turn.started), UP, chunk.data))
                async for page in _pages(self._work, pager, pieces):
                    yield page
                if pieces:
                    yield _line({"rows": pager.inspection.page()})
        except StreamglotError:  # its process died, or the stream is gone: show what was received
            pass
        finally:
            await arrivals.leave()
        yield _line({"rows": await self._work.run(pager.close)})
        while await self._still_running():
            await asyncio.sleep(POLL_SECONDS)
        yield _line({"turn": {**facts(self._turn, [], running=False), "follows": "client"}})
        yield _line({"end": True})

    async def _read_beginning(self) -> list[RecordedPiece]:
        """Reads the first pieces, up to those that show what was recorded.

        A request may be committed long before the first byte.
        """
        pieces = await self._read(FIRST_COMMITS)
        while self._more and not Recorded.of(pieces).client:
            pieces += await self._read(FIRST_COMMITS)
        return pieces

    async def _read(self, commits: int) -> list[RecordedPiece]:
        """Reads the next pieces of the recording. Remembers one piece of each direction, to report what was recorded."""
        frames = await self._view.store.queries.raw_after(self._turn.id, self._view.caller, self._next, commits)
        self._next, self._more = frames.next, frames.more
        pieces = [RecordedPiece(frame.at, frame.direction, frame.data) for frame in frames.found]
        there = {piece.direction for piece in self._seen}
        for direction in {piece.direction for piece in pieces} - there:
            if not direction.startswith((CLIENT_REQUEST, ASKED)):
                self._seen.append(RecordedPiece(0.0, direction, b""))
        return pieces

    async def _still_running(self) -> bool:
        """Whether the turn is still running. Call it before reading the last bytes, so that none are missed."""
        self._turn = await self._view.turn(self._turn.id)
        self._followed = True
        return not self._turn.ending

    def _facts(self, pieces: list[RecordedPiece], running: bool) -> bytes:
        return _line({"turn": facts(self._turn, pieces, running)})

    def _stored_pieces(self) -> list[RecordedPiece]:
        """Pieces for a turn without recorded bytes: the events of its stored answer, with the times of its blocks."""
        turn = self._turn
        return pieces_of_response(turn.response, turn.timings) if turn.response is not None and turn.response.choices else []

    def _inspection(self, pieces: list[RecordedPiece], running: bool) -> Inspection:
        dialects, recorded = self._turn.dialects, Recorded.of(pieces)
        client = self._client or dialects["client"]
        own = client == dialects["client"] and (recorded.client or running)
        return Inspection(dialects["upstream"], client, has_events=recorded.events or running, has_client=own)


async def recorded_pieces(view: CallerStoreView, turn_id: str) -> list[RecordedPiece]:
    frames = await view.store.queries.raw(turn_id, view.caller)
    return [RecordedPiece(frame.at, frame.direction, frame.data) for frame in frames]


async def _pasted_lines(work: WorkerThreads, source: PastedSource, client: str) -> AsyncIterator[bytes]:
    target = client or source.client or (source.dialect if _writes(source.dialect) else FIRST_WRITER)
    own = bool(source.client) and target == source.client
    inspection = Inspection(
        source.dialect, target, inband=source.inband, starts=source.starts, has_events=source.has_events, has_client=own
    )
    detected = {
        "dialects": {"upstream": source.dialect, "client": target},
        "inband": source.inband,
        "timed": source.timed,
        "recorded": Recorded.of(source.pieces),
    }
    yield _line({"pasted": detected})
    pager = Pager(inspection)
    async for page in _pages(work, pager, source.pieces):
        yield page
    yield _line({"rows": await work.run(pager.close)})
    yield _line({"end": True})


async def _pages(work: WorkerThreads, pager: Pager, pieces: list[RecordedPiece]) -> AsyncIterator[bytes]:
    """The pages of these pieces. Each page is computed in a thread."""
    pages: Iterator[JsonObject] = iter(pager.feed(pieces))

    def step() -> bytes | None:
        page = next(pages, None)
        return None if page is None else _line({"rows": page})

    try:
        while (line := await work.run(step)) is not None:
            yield line
    except StreamglotError as error:
        yield _line({"error": {"code": error.code, "message": error.message}})


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _streamed(lines: AsyncIterator[bytes]) -> StreamedReply:
    return StreamedReply(lines, _LINES, _HEADERS)


def _archive(name: str, data: bytes) -> Reply:
    headers = {**_HEADERS, "content-disposition": f'attachment; filename="{name}.zip"'}
    return Reply(200, data, "application/zip", headers)


def _writes(name: str) -> bool:
    return name in DIALECTS and DIALECTS[name].has_writer


def _client(name: str) -> str:
    if name and not _writes(name):
        able = ", ".join(one.name for one in DIALECTS.usable() if one.has_writer)
        raise RequestError(f"a stream cannot be shown as {excerpt(name)}; choose one of {able}")
    return name


def _dialect(name: str) -> str:
    if name and name not in (*DIALECTS, EVENT_LINES):
        raise RequestError(f"there is no dialect {excerpt(name)}; choose one of {', '.join((*DIALECTS, EVENT_LINES))}")
    return name


def _inband(name: str) -> str:
    if name and name not in FORMATS:
        raise RequestError(f"there is no in-band format {excerpt(name)}; choose one of {', '.join(sorted(FORMATS))}")
    return name


class Recorded(msgspec.Struct):
    """The parts of a turn that a recording contains."""

    upstream: bool
    events: bool
    client: bool
    requests: bool

    @classmethod
    def of(cls, pieces: Sequence[RecordedPiece]) -> Recorded:
        there = {piece.direction for piece in pieces}
        up = any(direction.startswith(UP) for direction in there)
        return cls(up, EVENTS in there, DOWN in there, CLIENT_REQUEST in there or any(name.startswith(ASKED) for name in there))


def facts(turn: TurnDetail, pieces: Sequence[RecordedPiece], running: bool) -> JsonObject:
    """The first line of an inspection. For a running turn it is sent again at the end."""
    timings = turn.timings
    bars = bars_of_facts(timings)
    recorded = Recorded.of(pieces)
    if not recorded.events and not recorded.upstream and turn.response is None:
        bars = [*bars_of_marks(timings.get("blocks", ()), timings.get("offset", 0.0)), *bars]
    return {
        "id": turn.id,
        "session_id": turn.session_id,
        "title": turn.title,
        "model": turn.model,
        "upstream": turn.upstream,
        "upstream_model": turn.upstream_model,
        "dialects": turn.dialects,
        "stream": turn.stream,
        "running": running,
        "ending": turn.ending,
        "error": shortened(msgspec.to_builtins(turn.error)),
        "usage": turn.usage,
        "cost": turn.cost,
        "started": turn.started,
        "duration": turn.duration,
        "recorded": recorded,
        "timings": {name: timings[name] for name in ("seconds", "first_event", "longest_gap") if name in timings},
        "bars": bars,
        "failures": shortened(timings.get("failures", [])),
        "verdicts": shortened(turn.verdicts),
        "more": shortened({name: value for name, value in turn.more.items() if name != "instructions"}),
        "requests": requests(turn, pieces),
    }


def requests(turn: TurnDetail, pieces: Sequence[RecordedPiece]) -> JsonObject:
    """The request as the client sent it and as each upstream got it. Rebuilds those that were not recorded."""
    given = next((piece for piece in pieces if piece.direction == CLIENT_REQUEST), None)
    client = turn.dialects["client"]
    if given is not None:
        own: JsonObject | None = {"dialect": client, "body": shown_body(given.data), "recorded": True}
    else:
        own = _built(turn.request, client)
    sent = [_sent(piece) for piece in pieces if piece.direction.startswith(ASKED)]
    if not sent and (built := _built(turn.upstream_request, turn.dialects["upstream"])) is not None:
        sent = [{**built, "upstream": turn.upstream, "model": turn.upstream_model}]
    return {"client": own, "upstream": [one for one in sent if one is not None]}


def _sent(piece: RecordedPiece) -> JsonObject | None:
    try:
        fields = msgspec.json.decode(piece.data, type=dict[str, msgspec.Raw])
        body = bytes(fields.pop("body", msgspec.Raw(b"null")))
        known = {name: msgspec.json.decode(value) for name, value in fields.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return {**shortened(known), "at": piece.at, "body": shown_body(body), "recorded": True}


def _built(request: Request | None, name: str) -> JsonObject | None:
    body = _body(request, name)
    return None if body is None else {"dialect": body[0], "body": shown_body(body[1]), "recorded": False}


def _body(request: Request | None, name: str) -> tuple[str, bytes] | None:
    """The dialect and the body of a stored request, in its own dialect or in ``SHOWN_DIALECT``."""
    if request is None or not request.messages:
        return None
    for known in (name, SHOWN_DIALECT):
        if known in DIALECTS:
            try:
                return known, msgspec.json.encode(dialect(known).build_request(request).body)
            except (StreamglotError, ValueError, TypeError):
                continue
    return None


# --- commands


def client_curl(turn: TurnDetail, pieces: Sequence[RecordedPiece], base: str, with_key: bool) -> str:
    """The command that repeats the client's request to the gateway at this address, with the user's own key if it asks for
    one."""
    given = next((piece.data for piece in pieces if piece.direction == CLIENT_REQUEST), None)
    found = (turn.dialects["client"], given) if given is not None else _body(turn.request, turn.dialects["client"])
    if found is None:
        raise _not_stored(turn)
    name, body = found
    headers = {"content-type": "application/json"}
    if with_key:
        headers[BEARER] = OWN_KEY
    return curl(f"{base}{path_of(name, turn.model)}", headers, body)


def upstream_curl(turn: TurnDetail, pieces: Sequence[RecordedPiece]) -> str:
    """The command that repeats the last request to the upstream, with the user's own key."""
    sent = [piece for piece in pieces if piece.direction.startswith(ASKED)]
    if not sent:
        raise RequestError(
            f"the request to the upstream of the turn {turn.id} was not recorded: set store.raw to record those of future turns",
            code="no_raw",
            status=404,
        )
    fields = msgspec.json.decode(sent[-1].data, type=dict[str, msgspec.Raw])
    headers = msgspec.json.decode(fields["headers"], type=dict[str, str])
    shown = {name: _placeholder(name) if value == HIDDEN else value for name, value in headers.items()}
    return curl(msgspec.json.decode(fields["url"], type=str), shown, bytes(fields["body"]))


def _placeholder(name: str) -> str:
    return f"Bearer {UPSTREAM_KEY}" if name.lower() == BEARER else UPSTREAM_KEY


def _not_stored(turn: TurnDetail) -> RequestError:
    return RequestError(
        f"the request of the turn {turn.id} was not stored: set store.content for future turns", code="no_content", status=404
    )
