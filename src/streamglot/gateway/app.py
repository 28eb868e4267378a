"""The gateway: its parts put together, and each call given to the endpoint or the page that answers it."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ..config import LoadedConfig, load
from ..dialects import DIALECTS
from ..errors import ConfigError
from ..inband import FORMATS
from ..tasks import WriteLine
from ..upstream.providers import KNOWN_PROVIDERS
from .admission import Admission
from .auth.access import Access
from .endpoints import Endpoint, compatible, endpoint_for
from .handler import RequestHandler
from .http.asgi import ASGICall, Receive, Scope, Send, refuse_websocket, run_lifespan
from .http.call import Call, Reply, RoutedCall
from .http.http_call import HTTPCall
from .lifecycle import Lifecycle
from .observe.live import Live
from .observe.log import Log
from .observe.recording import Recording
from .services import GatewayServices, RunningRequests

if TYPE_CHECKING:
    from .api.router import Router

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
        self._router: Router | None = None

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
        await self.respond(ASGICall(scope, receive, send))

    @property
    def router(self) -> Router:
        """All routes but the endpoints of dialects. They are imported on first use."""
        if self._router is None:
            from .api.router import Router
            from .api.table import table

            self._router = Router(
                table(self.services, self.access, self.admission, self.recording, self.requests, self.lifecycle)
            )
        return self._router

    # --- our own server

    @property
    def stall_seconds(self) -> float:
        return self.services.server.stall_seconds

    def respond(self, call: RoutedCall) -> Coroutine[object, object, None]:
        """Answers a call: an endpoint of a dialect, or a route."""
        call.path = compatible(call.path)
        refusal = self.access.screen(call)
        if refusal is not None:
            return _send(call, refusal)
        found = self._endpoint(call)
        if found is not None:
            return self.exchange(found[0], call, found[1])
        return self.router.answer(call)

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


async def _send(call: RoutedCall, reply: Reply) -> None:
    await call.send(reply)


def create(loaded: LoadedConfig | None = None) -> Gateway:
    """Creates the application for another ASGI server, such as uvicorn."""
    return Gateway(loaded or load())
