"""The gateway: its parts put together, and each call given to the endpoint or the page that answers it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..config import LoadedConfig, ServerConfig, load
from ..dialects import DIALECTS
from ..engine.pool import UpstreamPool
from ..errors import ConfigError
from ..inband import FORMATS
from ..tasks import WriteLine
from ..upstream.providers import KNOWN_PROVIDERS
from .admission import Admission
from .auth.access import Access, limits_told
from .auth.authenticator import Authenticator, Caller
from .endpoints import COMPATIBLE, Endpoint, compatible, endpoint_for
from .handler import RequestHandler
from .http.asgi import Application, ASGICall, Receive, Scope, Send, refuse_websocket, run_asgi, run_lifespan
from .http.call import Call
from .http.http_call import HTTPCall
from .http.reply import Reply
from .lifecycle import Lifecycle
from .observe.live import Live
from .observe.log import Log
from .observe.recording import Recording
from .requests import RunningRequest, RunningRequests
from .services import GatewayServices

if TYPE_CHECKING:
    from ..batch.service import BatchService
    from ..store import Store

RESPONSES = "/v1/responses"
"""The path that is also served over WebSockets."""


class Gateway:
    """The application: an ASGI application, and that of our own server."""

    def __init__(
        self,
        loaded: LoadedConfig,
        environment: Mapping[str, str] | None = None,
        log: WriteLine | None = None,
    ) -> None:
        self._log = Log()
        environment = os.environ if environment is None else environment
        live = Live(time.time)
        self.services = GatewayServices(loaded, environment, log or self._log)
        self.requests = RunningRequests(self.services, live)
        self.access = Access(self.requests, environment)
        self.recording = Recording(self.services, live, environment)
        self.admission = Admission(self.services, self.access, self.recording)
        self.lifecycle = Lifecycle(loaded, environment, self.services, self.access, self.recording, self.requests, self.admission)
        self.stop, self.reload, self.log_fault = self.lifecycle.stop, self.lifecycle.reload, self.services.log_fault
        self._starlette: Application | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self.lifecycle.running():
                yield
        finally:
            self._log.close()

    async def check(self) -> None:
        """Raises a ConfigError if the gateway could not start, or if a package takes a name of ours."""
        for plugins in (DIALECTS, FORMATS, KNOWN_PROVIDERS):
            plugins.check_names()
        try:
            await self.lifecycle.check()
        finally:
            self._log.close()  # the event loop ends before the log would be flushed

    # --- ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await run_lifespan(self.running(), receive, send)
            return
        if scope["type"] == "websocket":
            await refuse_websocket(scope, send)
            return
        if scope["type"] != "http":
            raise ConfigError(f"the gateway serves the ASGI scopes http and lifespan, not {scope['type']!r}")
        if scope["path"].startswith(COMPATIBLE):
            scope = {**scope, "path": compatible(scope["path"])}
        call = ASGICall(scope, receive, send)
        refusal = self.access.screen(call)
        found = None if refusal is not None else self._endpoint(call)
        if refusal is not None:
            await call.send(refusal)
        elif found is not None:
            await self.exchange(found[0], call, found[1])
        else:
            await self._pages()(scope, receive, call.forward)

    def _pages(self) -> Application:
        """Returns the application for all paths but the endpoints of dialects. It is imported on first use."""
        if self._starlette is None:
            from .api.routes import pages

            self._starlette = pages(self)
        return self._starlette

    # --- our own server

    @property
    def stall_seconds(self) -> float:
        return self.services.server.stall_seconds

    def respond(self, call: HTTPCall) -> Coroutine[object, object, None]:
        """Answers a call: the endpoints of dialects directly, everything else as ASGI."""
        if call.path.startswith(COMPATIBLE):
            call.path = compatible(call.path)
        refusal = self.access.screen(call)
        if refusal is not None:
            return _send(call, refusal)
        found = self._endpoint(call)
        if found is not None:
            return self.exchange(found[0], call, found[1])
        return run_asgi(self._pages(), call)

    def converse(self, call: HTTPCall) -> Coroutine[object, object, None] | None:
        """Serves a WebSocket if this path has one; returns None otherwise."""
        if compatible(call.path) != RESPONSES:
            return None
        refusal = self.access.screen(call)
        if refusal is not None:
            return _send(call, refusal)
        from .responses_websocket import serve

        return serve(self.services, self.access, self.recording, self.requests, self.exchange, call)

    # --- routing

    def _endpoint(self, call: Call) -> tuple[Endpoint, str] | None:
        return endpoint_for(call.path, call.query) if call.method == "POST" else None

    def exchange(self, endpoint: Endpoint, call: Call, model_in_path: str) -> Coroutine[object, object, None]:
        return self.requests.serve(self.handler(endpoint, call, model_in_path))

    def handler(self, endpoint: Endpoint, call: Call, model_in_path: str = "") -> RequestHandler:
        return RequestHandler(self.services, self.admission, self.recording, endpoint, call, model_in_path)

    # --- for modules of ``api`` that take the whole gateway

    @property
    def pool(self) -> UpstreamPool:
        return self.services.pool

    @property
    def server(self) -> ServerConfig:
        return self.services.server

    @property
    def authenticator(self) -> Authenticator:
        return self.access.authenticator

    @property
    def store(self) -> Store | None:
        return self.recording.store

    @property
    def batches(self) -> BatchService | None:
        return self.lifecycle.batches

    @property
    def stopping(self) -> bool:
        return self.requests.stopping

    def open_requests(self, caller: Caller | None) -> list[RunningRequest]:
        return self.requests.seen_by(caller)

    def spawn(self, name: str, work: Coroutine[object, object, object]) -> None:
        self.services.tasks.spawn(name, work)

    def limits_told(self, caller: Caller | None, dialect_name: str, of_upstream: Mapping[str, str]) -> dict[str, str]:
        return limits_told(caller, dialect_name, of_upstream, self.services.clock())

    def metrics_page(self, accept: str = "") -> tuple[bytes, str]:
        self.recording.metrics.publish(len(self.requests.running))
        return self.recording.metrics.page(accept)

    def __getattr__(self, name: str) -> Any:  # Any: the parts' attributes
        for part in (self.services, self.access, self.recording, self.requests):
            if hasattr(part, name):
                return getattr(part, name)
        raise AttributeError(name)


async def _send(call: HTTPCall, reply: Reply) -> None:
    await call.send(reply)


def create(loaded: LoadedConfig | None = None) -> Gateway:
    """Creates the application for another ASGI server, such as uvicorn."""
    return Gateway(loaded or load())
