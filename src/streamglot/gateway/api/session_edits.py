"""The API for changes to sessions. A key changes its own sessions; without keys, every caller is the operator and changes all.

PATCH  /sessions/{id}    {"title": "…"}
DELETE /sessions/{id}
"""

from __future__ import annotations

from ...errors import RequestError, excerpt
from ..auth.access import Access
from ..http.call import RoutedCall
from ..http.reply import Reply
from ..observe.recording import Recording
from ..services import GatewayServices
from .router import APIRoute, json_of, json_reply, plain
from .store_view import store_view_of


def session_routes(services: GatewayServices, access: Access, recording: Recording) -> list[APIRoute]:
    async def rename(call: RoutedCall, id: str) -> Reply:
        from ...store.titles import rename_session

        view = store_view_of(access, recording, call)
        found = (await view.session(id, 1, ""))["session"]
        body = await json_of(services, call)
        title = body.get("title")
        if not isinstance(title, str) or len(body) != 1:
            raise RequestError(f'send the new title as {{"title": "…"}}, not {excerpt(body)}')
        await rename_session(view.store.database, found.id, plain(title))
        return json_reply((await view.session(found.id, 1, ""))["session"])

    async def remove(call: RoutedCall, id: str) -> Reply:
        from ...store.prune import delete_session

        view = store_view_of(access, recording, call)
        found = (await view.session(id, 1, ""))["session"]
        return json_reply({"id": found.id, "turns": await delete_session(view.store.database, found.id)})

    return [
        APIRoute("PATCH", "/sessions/{id}", rename, "Renames a session"),
        APIRoute("DELETE", "/sessions/{id}", remove, "Removes a session with all its turns"),
    ]
