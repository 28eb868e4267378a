"""The API for changes to sessions. A key changes its own sessions; without keys, every caller is the operator and changes all.

PATCH  /sessions/{id}    {"title": "…"}
DELETE /sessions/{id}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from ...errors import RequestError, excerpt
from ..http.asgi import read_body
from ..http.call import json_object
from .query_string import plain
from .store_view import id_in, json_reply, store_view_of

if TYPE_CHECKING:
    from ..app import Gateway


def session_routes(gateway: Gateway) -> list[Route]:
    async def rename(http: HttpRequest) -> Response:
        from ...store.titles import rename_session

        view, server = store_view_of(gateway, http), gateway.server
        found = (await view.session(id_in(http), 1, ""))["session"]
        body = json_object(
            await read_body(http.receive, http.headers, server.max_body_bytes, gateway.within(server.body_seconds))
        )
        title = body.get("title")
        if not isinstance(title, str) or len(body) != 1:
            raise RequestError(f'send the new title as {{"title": "…"}}, not {excerpt(body)}')
        await rename_session(view.store.database, found.id, plain(title))
        return json_reply((await view.session(found.id, 1, ""))["session"])

    async def remove(http: HttpRequest) -> Response:
        from ...store.prune import delete_session

        view = store_view_of(gateway, http)
        found = (await view.session(id_in(http), 1, ""))["session"]
        return json_reply({"id": found.id, "turns": await delete_session(view.store.database, found.id)})

    return [Route("/sessions/{id}", rename, methods=["PATCH"]), Route("/sessions/{id}", remove, methods=["DELETE"])]
