"""A connection is reused at the moment in which its first request is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

from streamglot.upstream.http import UpstreamResponse
from streamglot.upstream.http.connection import UpstreamConnection
from waiting import WAIT_SECONDS

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Line(asyncio.Transport):
    """A transport that only remembers whether it was cut."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = False

    def write(self, data: Any) -> None:
        """Goes nowhere."""

    def is_closing(self) -> bool:
        return self.cut

    def abort(self) -> None:
        self.cut = True

    def get_write_buffer_size(self) -> int:
        return 0


def test_cancelling_a_complete_answer_keeps_the_connection_usable() -> None:
    async def test() -> None:
        idle: list[UpstreamConnection] = []
        connection = UpstreamConnection(idle.append, lambda lost: None)
        line = Line()
        connection.connection_made(line)
        first = asyncio.ensure_future(connection.ask(b"first", b""))
        await asyncio.sleep(0)
        connection.data_received(WHOLE)
        assert idle == [connection], "it may be used again"
        second: asyncio.Task[UpstreamResponse] = asyncio.ensure_future(connection.ask(b"second", b""))
        first.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert first.cancelled()
        assert not line.cut
        connection.data_received(WHOLE)
        async with asyncio.timeout(WAIT_SECONDS):
            assert await (await second).read() == b"hello"

    asyncio.run(test())


def test_cancelling_a_pending_answer_closes_the_connection() -> None:
    async def test() -> None:
        connection = UpstreamConnection(lambda idle: None, lambda lost: None)
        line = Line()
        connection.connection_made(line)
        asked = asyncio.ensure_future(connection.ask(b"first", b""))
        await asyncio.sleep(0)
        asked.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert asked.cancelled()
        assert line.cut

    asyncio.run(test())
