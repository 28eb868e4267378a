"""The API of the store: reads sessions, turns and raw bytes, searches and exports them, and changes sessions.

A key sees and changes its own. If no keys are required, every caller is the operator and sees and changes all.

PATCH  /sessions/{id}    {"title": "…"}
DELETE /sessions/{id}
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from ...errors import RequestError, excerpt
from ...json_types import JsonObject
from ..auth.access import Access
from ..http.call import Reply, RoutedCall, StreamedReply
from ..observe.recording import Recording
from ..services import GatewayServices
from .router import APIRoute, Parameters, admit, json_of, json_reply, plain, seen_by, store_of

if TYPE_CHECKING:
    from ...store import Filter, RawFrame, Store, TurnDetail

DEFAULT_ROWS: Final = 100
MAX_LISTED: Final = 500
"""Rows in one answer. ``before`` gets the next page."""
ALL: Final = 2**31
RUNNING: Final = "running"
FILTERS: Final = ("session", "model", "upstream", "ending", "since", "until", "search", "before", "limit")
_JSONL: Final = "application/jsonl"
_MARKDOWN: Final = "text/markdown; charset=utf-8"
_BYTES: Final = "application/octet-stream"
_T = TypeVar("_T")
_AS_IT_IS: Final = {"x-content-type-options": "nosniff"}
"""Prevents browsers from showing a model's text as a page."""


class CallerStoreView:
    """The store as one client may see it. ``caller`` is None for the operator."""

    def __init__(self, store: Store, caller: str | None) -> None:
        self.store = store
        self.caller = caller
        self._queries = store.queries

    async def sessions(self, limit: int, before: str) -> JsonObject:
        from ...store.queries import cursor_of

        found = await self._queries.sessions(self.caller, limit + 1, before=before)
        page = _page(found, limit)
        # a session moves up when it continues, so the cursor is its time
        return {**page, "last_id": cursor_of(found[:limit][-1])} if found else page

    async def session(self, session_id: str, limit: int, before: str) -> JsonObject:
        from ...store import Filter

        session = await self._written(lambda: self._queries.session(session_id, self.caller))
        if session is None:
            raise _missing("session", session_id, "GET /sessions lists yours")
        return {"session": session, **await self.turns(Filter(session_id=session.id, before=before, limit=limit))}

    async def turns(self, which: Filter) -> JsonObject:
        limit = which.limit
        which.caller, which.limit = self.caller, limit + 1
        return _page(await self._queries.turns(which), limit)

    async def turn(self, turn_id: str) -> TurnDetail:
        turn = await self._written(lambda: self._queries.turn(turn_id, self.caller))
        if turn is None:
            raise _missing(
                "turn", turn_id, "GET /turns lists yours; a turn that has just begun in another process appears after a moment"
            )
        return turn

    async def _written(self, find: Callable[[], Awaitable[_T | None]]) -> _T | None:
        """The result of this query. A missing row may still wait in the writer, so the query is repeated after the next
        commit."""
        found = await find()
        if found is None:
            from ...store.sessions import settled

            await settled(self.store.writer)
            found = await find()
        return found

    async def raw(self, turn_id: str, direction: str) -> list[RawFrame]:
        turn = await self.turn(turn_id)
        frames = await self._queries.raw(turn.id, self.caller)
        found = [frame for frame in frames if direction in ("", frame.direction)]
        if not found:
            there = sorted({frame.direction for frame in frames})
            step = f"request {' or '.join(there)}" if there else "set store.raw to record those of future turns"
            raise RequestError(
                f"no raw bytes of the turn {turn.id} in this direction were recorded; {step}", code="no_raw", status=404
            )
        return found

    async def exported(self, which: Filter, form: str) -> AsyncIterator[bytes]:
        from ...store import export_jsonl, export_markdown

        which.caller, which.limit = self.caller, ALL
        if form == "jsonl":
            async for line in export_jsonl(self._queries, which):
                yield line
        else:
            async for text in export_markdown(self._queries, which):
                yield text.encode() + b"\n"


def store_routes(access: Access, recording: Recording) -> list[APIRoute]:
    async def sessions(call: RoutedCall) -> Reply:
        parameters = Parameters(call, "limit", "before")
        return json_reply(
            await store_view_of(access, recording, call).sessions(
                parameters.limit(DEFAULT_ROWS, MAX_LISTED), parameters["before"]
            )
        )

    async def session(call: RoutedCall, id: str) -> Reply:
        parameters = Parameters(call, "limit", "before")
        limit, before = parameters.limit(DEFAULT_ROWS, MAX_LISTED), parameters["before"]
        return json_reply(await store_view_of(access, recording, call).session(id, limit, before))

    async def turns(call: RoutedCall) -> Reply:
        return json_reply(await store_view_of(access, recording, call).turns(_filter(call)[0]))

    async def search(call: RoutedCall) -> Reply:
        which, parameters = _filter(call, "q")
        which.search = parameters["q"] or which.search
        if not which.search:
            raise RequestError('q is required: /search?q=two words "an exact phrase" -not')
        return json_reply(await store_view_of(access, recording, call).turns(which))

    async def turn(call: RoutedCall, id: str) -> Reply:
        return json_reply(await store_view_of(access, recording, call).turn(id))

    async def raw(call: RoutedCall, id: str) -> Reply:
        parameters = Parameters(call, "format", "direction")
        form = parameters.one_of("format", "jsonl", "bytes")
        frames = await store_view_of(access, recording, call).raw(id, parameters["direction"])
        if form == "bytes":
            return Reply(200, b"".join(frame.data for frame in frames), _BYTES, _AS_IT_IS)
        return Reply(200, b"".join(_line(frame) for frame in frames), _JSONL, _AS_IT_IS)

    async def export_session(call: RoutedCall, id: str) -> StreamedReply:
        from ...store import Filter

        form = Parameters(call, "format").one_of("format", "jsonl", "markdown")
        archive = store_view_of(access, recording, call)
        found = (await archive.session(id, 1, ""))["session"]
        return _file(archive.exported(Filter(session_id=found.id), form), found.id, form)

    async def export_turn(call: RoutedCall, id: str) -> StreamedReply:
        from ...store import detail_line, markdown

        form = Parameters(call, "format").one_of("format", "jsonl", "markdown")
        found = await store_view_of(access, recording, call).turn(id)
        text = detail_line(found) if form == "jsonl" else markdown(found).encode()

        async def whole() -> AsyncIterator[bytes]:
            yield text

        return _file(whole(), found.id, form)

    form, page = ("format",), ("before", "limit")
    return [
        APIRoute("GET", "/sessions", sessions, "The sessions, the newest first", page),
        APIRoute("GET", "/sessions/{id}", session, "One session and its turns", page),
        APIRoute("GET", "/sessions/{id}/export", export_session, "All turns of a session as a file", form),
        APIRoute("GET", "/turns", turns, "The turns, the newest first", FILTERS),
        APIRoute("GET", "/turns/{id}", turn, "Everything that is stored about a turn"),
        APIRoute(
            "GET", "/turns/{id}/raw", raw, "The bytes of a turn as they were received, with their timing", ("format", "direction")
        ),
        APIRoute("GET", "/turns/{id}/export", export_turn, "A turn as a file", form),
        APIRoute("GET", "/search", search, "The turns in which words occur", ("q", *FILTERS)),
    ]


def store_view_of(access: Access, recording: Recording, call: RoutedCall) -> CallerStoreView:
    """The store as this caller may see it."""
    caller = admit(access, call)
    return CallerStoreView(store_of(recording), seen_by(caller))


def _filter(call: RoutedCall, *more: str) -> tuple[Filter, Parameters]:
    from ...store import ENDINGS, Filter

    parameters = Parameters(call, *FILTERS, *more)
    ending = parameters["ending"] or None
    if ending not in (None, RUNNING, *ENDINGS):
        raise RequestError(f"there is no ending {excerpt(ending)}; choose one of {', '.join((*ENDINGS, RUNNING))}")
    which = Filter(
        session_id=parameters["session"],
        model=parameters["model"],
        upstream=parameters["upstream"],
        ending="" if ending == RUNNING else ending,
        since=parameters.moment("since"),
        until=parameters.moment("until"),
        search=parameters["search"],
        before=parameters["before"],
        limit=parameters.limit(DEFAULT_ROWS, MAX_LISTED),
    )
    return which, parameters


class _Listed(Protocol):
    @property
    def id(self) -> str: ...


def _page(found: Sequence[_Listed], limit: int) -> JsonObject:
    shown = found[:limit]
    return {"object": "list", "data": shown, "has_more": len(found) > limit, "last_id": shown[-1].id if shown else None}


def _missing(what: str, name: str, next_step: str) -> RequestError:
    return RequestError(f"there is no {what} {excerpt(name)} that you may see; {next_step}", code=f"{what}_not_found", status=404)


def _file(pieces: AsyncIterator[bytes], name: str, form: str) -> StreamedReply:
    ending, kind = ("md", _MARKDOWN) if form == "markdown" else ("jsonl", _JSONL)
    headers = {**_AS_IT_IS, "content-disposition": f'attachment; filename="{name}.{ending}"'}
    return StreamedReply(pieces, kind, headers)


def _line(frame: RawFrame) -> bytes:
    """One read or write as a line of JSON: as text if it is UTF-8."""
    line: JsonObject = {"at": frame.at, "direction": frame.direction}
    try:
        line["text"] = frame.data.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(frame.data).decode()
    return msgspec.json.encode(line) + b"\n"


def session_routes(services: GatewayServices, access: Access, recording: Recording) -> list[APIRoute]:
    async def rename(call: RoutedCall, id: str) -> Reply:
        from ...store.queries import rename_session

        view = store_view_of(access, recording, call)
        found = (await view.session(id, 1, ""))["session"]
        body = await json_of(services, call)
        title = body.get("title")
        if not isinstance(title, str) or len(body) != 1:
            raise RequestError(f'send the new title as {{"title": "…"}}, not {excerpt(body)}')
        await rename_session(view.store.database, found.id, plain(title))
        return json_reply((await view.session(found.id, 1, ""))["session"])

    async def remove(call: RoutedCall, id: str) -> Reply:
        from ...store.retention import delete_session

        view = store_view_of(access, recording, call)
        found = (await view.session(id, 1, ""))["session"]
        return json_reply({"id": found.id, "turns": await delete_session(view.store.database, found.id)})

    return [
        APIRoute("PATCH", "/sessions/{id}", rename, "Renames a session"),
        APIRoute("DELETE", "/sessions/{id}", remove, "Removes a session with all its turns"),
    ]
