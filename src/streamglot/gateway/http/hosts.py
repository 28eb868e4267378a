"""Host checks against DNS rebinding.

A web page can point its own host name to 127.0.0.1. To the browser, requests to that name are same-origin: it sends no Origin
header and lets the page read the response. Only the Host header shows the difference. A gateway that requires keys is safe,
because the page has none. A gateway without keys answers only to names of this machine and to those in ``server.allowed_hosts``.
"""

from __future__ import annotations

import re
from typing import Final

from .reply import Reply, error_reply

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
