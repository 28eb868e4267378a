"""Who may use the gateway: keys, the origins and hosts of pages, and slots for requests that run at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ...config import DISABLED, LoadedConfig
from ...config.checks import LOOPBACK
from ...dialects import dialect
from ...upstream.routing.slots import ConcurrencyLimit
from ..http.call import Call, Reply
from ..http.origins import CORS, AllowedHosts
from ..services import RunningRequests
from .authenticator import Authenticator, Caller, StoredCallers
from .limits import Slot


class Access:
    """``authenticator`` knows the callers, ``stored`` those of the store's keys. ``prepare`` reads a configuration."""

    authenticator: Authenticator

    def __init__(self, requests: RunningRequests, environment: Mapping[str, str]) -> None:
        self.stored = StoredCallers()
        self._requests = requests
        self._environment = environment
        self._limit = ConcurrencyLimit(0, 0, "the gateway")

    def prepare(self, loaded: LoadedConfig, *, starting: bool) -> Callable[[], None]:
        """Refuses a bad configuration, and returns the step that applies a good one."""
        server = loaded.config.server
        self.stored.known |= loaded.config.store.url == DISABLED
        before = getattr(self, "authenticator", None)
        authenticator = Authenticator(server, self._environment, self.stored, before, starting)
        cors, hosts = CORS(server.origins, lambda: authenticator.asks), AllowedHosts(server.allowed_hosts)

        def apply() -> None:
            authenticator.take_effect()
            self.authenticator, self._cors, self._hosts, self._server = authenticator, cors, hosts, server
            self._limit.resize(server.concurrent, server.wait)

        return apply

    def screen(self, call: Call) -> Reply | None:
        """Answers a forbidden origin or host and a CORS preflight. Returns None for a call that goes on to its endpoint."""
        headers = call.headers
        host, origin = headers.get("host", ""), headers.get("origin", "")
        if origin and not self._cors.allows(origin, host):
            return self._cors.refuse(origin)
        if not self.authenticator.asks and not self._hosts.allows(host):
            return self._hosts.refuse(host)
        if not origin:
            return None
        call.extra_headers.update(self._cors.response_headers(origin))
        return self._cors.preflight(call.method, headers)

    def is_public(self, path: str, host: str) -> bool:
        """Whether this page can be read without a key, under this name of the host."""
        listed = self._server.public_paths
        return path in listed if listed is not None else self._server.host in LOOPBACK and self._hosts.allows(host)

    def slot(self, caller: Caller | None) -> Slot:
        """A slot that counts a request towards the limit of concurrent requests."""
        self._requests.check_open()
        return Slot(self._limit, caller)


def limits_told(caller: Caller | None, dialect_name: str, of_upstream: Mapping[str, str], now: float) -> dict[str, str]:
    """The headers that tell a client its rate limits: those of its key, or without keys those of the upstream."""
    if caller is None:
        return {**of_upstream}
    told: dict[str, str] = {}
    for what, left in caller.limits(now).items():
        told.update(dialect(dialect_name).limit_headers(what, *left, time.time()))
    return told
