"""The client: ``async with`` for asynchronous programs, plain ``with`` for all others, through the same code."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from ..config import Loaded
from ..errors import ConfigError
from ..messages import Message, Request
from ..upstream import Upstream
from .desk import Desk
from .request import make_request
from .stream import Stream
from .worker import Worker


class Client:
    """Knows the upstreams of the configuration, those that are found (keys in the environment, servers on this machine),
    the local model, and ``upstreams`` given here. Where some are given, nothing else is looked for unless ``discover``."""

    def __init__(
        self,
        *,
        upstreams: Iterable[Upstream] = (),
        config: Loaded | None = None,
        environment: Mapping[str, str] | None = None,
        discover: bool | None = None,
    ) -> None:
        self._desk = Desk(config, upstreams, environment, discover)
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._worker: Worker | None = None
        self._opened = False

    @property
    def desk(self) -> Desk:
        return self._desk

    def stream(
        self,
        request: Request | None = None,
        /,
        *,
        model: str = "",
        messages: str | Iterable[Message | dict[str, Any]] = (),
        system: str = "",
        dialect: str = "",
        **fields: Any,
    ) -> Stream:
        """The answer to a request: a whole ``Request``, or its fields. Messages may be one text, messages of ours, or those
        of a ``dialect`` with its other fields."""
        if not self._opened:
            raise ConfigError("the client is not open: use it inside `async with Client() as client` or `with`")
        made = make_request(request, model, messages, system, dialect, fields)
        stream = Stream(self._desk, made, self._worker.run if self._worker else None)
        self._streams.add(stream)
        return stream

    # --- life

    async def __aenter__(self) -> Self:
        await self._desk.open()
        self._opened = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._opened = False
        for stream in list(self._streams):
            stream.hang_up()
        await self._desk.close()

    def __enter__(self) -> Self:
        self._worker = Worker("streamglot client")
        try:
            self._worker.run(self.__aenter__())
        except BaseException:
            self._worker.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            try:
                worker.run(self.__aexit__(kind, value, trace))
            finally:
                worker.stop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that a plain ``with`` runs in the background."""
        return self._worker.loop if self._worker else None
