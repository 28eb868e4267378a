"""Cross-origin requests: which web pages may use the gateway. A page of a stranger must not spend the keys of this machine.

A request without an Origin header comes from no page and passes. Pages of this machine pass, those that ``server.origins``
names too, and where keys are required also those that the gateway itself serves under whatever name it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from .reply import Reply, error_reply

_THIS_MACHINE: Final = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?")
PREFLIGHT_SECONDS: Final = 600
"""Seconds that a browser may remember the answer to its preflight request."""
EXPOSED: Final = "x-request-id, x-streamglot-upstream, x-streamglot-model, x-streamglot-dropped, x-streamglot-cache, retry-after"
"""Response headers that a page may read."""


class CORS:
    """``requires_key`` tells whether keys are required at the moment."""

    def __init__(self, allowed: list[str], requires_key: Callable[[], bool]) -> None:
        self._allowed = frozenset(origin.rstrip("/") for origin in allowed)
        self._requires_key = requires_key

    def allows(self, origin: str, host: str) -> bool:
        if "*" in self._allowed or origin in self._allowed or _THIS_MACHINE.fullmatch(origin):
            return True
        return self._requires_key() and bool(host) and origin.partition("://")[2] == host

    def response_headers(self, origin: str) -> dict[str, str]:
        """What tells the browser that the page may read the response."""
        return {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED, "vary": "origin"}

    def refuse(self, origin: str) -> Reply:
        message = f"pages of {origin[:200]!r} may not use this gateway; add the origin to server.origins if they should"
        return error_reply(403, "origin_not_allowed", message, "permission_error")

    def preflight(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """The answer to a browser that asks before it sends a request; None where this is no such question."""
        if method != "OPTIONS" or "access-control-request-method" not in headers:
            return None
        fields = {
            "access-control-allow-methods": "GET, POST, PATCH, DELETE",
            "access-control-allow-headers": headers.get("access-control-request-headers", "*"),
            "access-control-max-age": str(PREFLIGHT_SECONDS),
        }
        if headers.get("access-control-request-private-network") == "true":
            fields["access-control-allow-private-network"] = "true"
        return Reply(204, headers=fields)
