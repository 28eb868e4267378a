"""Which web pages may use a gateway: cross-origin requests, and host checks against DNS rebinding.

A foreign page must not use the keys of this machine. A request without an Origin header does not come from a page and passes.
Pages of this machine and those in ``server.origins`` pass. If keys are required, pages that the gateway itself serves also pass,
under any host name.

A web page can point its own host name to 127.0.0.1. To the browser, requests to that name are same-origin: it sends no Origin
header and lets the page read the response. Only the Host header shows the difference. A gateway that requires keys is safe,
because the page has none. A gateway without keys answers only to names of this machine and to those in ``server.allowed_hosts``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from .call import Reply, error_reply

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


ANY: Final = "*"
KNOWN_HOSTS: Final = 64
"""Host headers that were found to be allowed and are not checked again: more than the names and ports of one machine."""
_LOOPBACK: Final = re.compile(r"(?:.+\.)?localhost|127(?:\.\d{1,3}){3}|\[::1\]")
"""Names and addresses that always mean this machine (RFC 6761, section 6.3)."""
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::\d*)?", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(?:[\w.~%!$&'()*+,;=-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
"""A host that can stand in a URL (RFC 3986, section 3.2)."""
PORTS: Final = {"http": 80, "https": 443}
"""The ports that a URL leaves out."""


class AllowedHosts:
    """The host names under which a gateway without keys may be addressed, with any port."""

    def __init__(self, listed: list[str]) -> None:
        self._any = ANY in listed
        self._names = frozenset(_name(host) for host in listed)
        self._allowed: set[str] = set()

    def allows(self, host: str) -> bool:
        """Whether the host is allowed. A request without a Host is allowed: it is not from a browser, because browsers always
        send one."""
        if self._any or not host or host in self._allowed:
            return True
        name = _name(host)
        allowed = _LOOPBACK.fullmatch(name) is not None or name in self._names
        if allowed and len(self._allowed) < KNOWN_HOSTS:
            self._allowed.add(host)
        return allowed

    def refuse(self, host: str) -> Reply:
        message = f"this gateway does not answer to the name {_name(host)[:200]!r}; add it to server.allowed_hosts if it should"
        return error_reply(403, "host_not_allowed", message, "permission_error")


def _name(host: str) -> str:
    """The name in a Host header: lower case, without its port and trailing dot. An invalid host stays unchanged."""
    found = _HOST.fullmatch(host)
    return (host if found is None else found[1].removesuffix(".")).lower()


def authority(host: str, server: tuple[str, int | None] | None, scheme: str = "http") -> str:
    """Host and port for a URL of this gateway: those of the Host header, or of its own address if the header has none."""
    if _AUTHORITY.fullmatch(host) is not None or server is None:
        return host
    name, port = server
    name = f"[{name}]" if ":" in name else name
    return name if port in (None, PORTS.get(scheme)) else f"{name}:{port}"
