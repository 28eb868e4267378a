"""Pages in browsers: which of them may use the gateway. A page of a stranger must not spend the keys of this machine.

A request without an Origin comes from no page and passes. Pages of this machine pass, those that ``server.origins`` names
too, and where keys are asked for also those that the gateway itself serves under whatever name it has.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from .call import Receive, Scope, Send

_THIS_MACHINE: Final = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?")
PREFLIGHT_SECONDS: Final = 600
"""How long a browser may remember that it asked."""
SHOWN: Final = b"x-request-id, x-streamglot-upstream, x-streamglot-dropped, x-streamglot-cache, retry-after"


def origin_of(scope: Scope) -> str:
    """The page that a request comes from; nothing where it comes from none."""
    for name, value in scope["headers"]:
        if name == b"origin":
            return str(value, "latin-1")
    return ""


class Origins:
    """``keyed``: are keys asked for?"""

    def __init__(self, allowed: list[str], keyed: Callable[[], bool]) -> None:
        self._allowed = frozenset(origin.rstrip("/") for origin in allowed)
        self._keyed = keyed

    def allows(self, origin: str, host: str) -> bool:
        if "*" in self._allowed or origin in self._allowed or _THIS_MACHINE.fullmatch(origin):
            return True
        return self._keyed() and bool(host) and origin.partition("://")[2] == host

    async def guard(self, origin: str, scope: Scope, receive: Receive, send: Send, inner: Callable[..., Awaitable[None]]) -> None:
        """Refuses a page that may not, answers a browser that asks first, and tells it with the answer that it may read it."""
        headers = {bytes(name): bytes(value) for name, value in scope["headers"]}
        if not self.allows(origin, headers.get(b"host", b"").decode("latin-1")):
            message = f"pages of {origin[:200]!r} may not use this gateway; add the origin to server.origins if they should"
            body = msgspec.json.encode({"error": {"message": message, "type": "permission_error", "code": "origin_not_allowed"}})
            await _reply(send, 403, [(b"content-type", b"application/json")], body)
            return
        words = [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", SHOWN),
            (b"vary", b"origin"),
        ]
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            words += [
                (b"access-control-allow-methods", b"GET, POST, DELETE"),
                (b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")),
                (b"access-control-max-age", str(PREFLIGHT_SECONDS).encode()),
            ]
            if headers.get(b"access-control-request-private-network") == b"true":
                words.append((b"access-control-allow-private-network", b"true"))
            await _reply(send, 204, words, b"")
            return

        async def told(message: Scope) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *words]
            await send(message)

        await inner(scope, receive, told)


async def _reply(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
