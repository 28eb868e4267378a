"""Cross-origin requests: decides which web pages may use the gateway. A foreign page must not use the keys of this machine.

A request without an Origin header does not come from a page and passes. Pages of this machine and those in ``server.origins``
pass. If keys are required, pages that the gateway itself serves also pass, under any host name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from .reply import Reply, error_reply

_THIS_MACHINE: Final = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?")
PREFLIGHT_SECONDS: Final = 600
"""Seconds that a browser may cache the answer to its preflight request."""
EXPOSED: Final = (
    "x-request-id, x-streamglot-upstream, x-streamglot-model, x-streamglot-dropped, x-streamglot-cache, retry-after, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
"""Response headers that a page may read."""


class CORS:
    """``requires_key`` returns whether keys are required now."""

    def __init__(self, allowed: list[str], requires_key: Callable[[], bool]) -> None:
        self._allowed = frozenset(origin.rstrip("/") for origin in allowed)
        self._requires_key = requires_key

    def allows(self, origin: str, host: str) -> bool:
        if "*" in self._allowed or origin in self._allowed or _THIS_MACHINE.fullmatch(origin):
            return True
        return self._requires_key() and bool(host) and origin.partition("://")[2] == host

    def response_headers(self, origin: str) -> dict[str, str]:
        """The headers that allow the page to read the response."""
        return {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED, "vary": "origin"}

    def refuse(self, origin: str) -> Reply:
        message = f"pages of {origin[:200]!r} may not use this gateway; add the origin to server.origins if they should"
        return error_reply(403, "origin_not_allowed", message, "permission_error")

    def preflight(self, method: str, headers: Mapping[str, str]) -> Reply | None:
        """The answer to a browser's preflight request; None if the request is not one."""
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
