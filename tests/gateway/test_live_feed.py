"""The feeds of the overview and of approvals: a state, sent again when it has changed."""

from __future__ import annotations

import asyncio
import time

from streamglot.errors import RequestError
from streamglot.framing import sse
from streamglot.gateway.observe.live import Live, live_feed


async def busy(live: Live) -> None:
    """Other streams are running, so watchers are woken all the time."""
    while True:
        live.changed()
        await asyncio.sleep(0)


def test_a_watcher_gets_keep_alives_while_only_other_things_change() -> None:
    async def scenario() -> None:
        live = Live(time.time)
        feed = live_feed(live, "approvals", lambda: {"approvals": []}, lambda: False, quiet=0.25)
        assert await anext(feed) == b'event: approvals\ndata: {"approvals":[]}\n\n'
        others = asyncio.create_task(busy(live))
        assert [await anext(feed) for _ in range(3)] == [sse.comment("ping")] * 3
        others.cancel()
        await feed.aclose()  # type: ignore[attr-defined]  # an async generator
        assert live.watchers("approvals") == 0

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_state_is_sent_again_only_when_it_has_changed() -> None:
    async def scenario() -> None:
        live, states = Live(time.time), iter(["a", "a", "b", "b", "c"])
        others = asyncio.create_task(busy(live))
        feed = live_feed(live, "overview", lambda: next(states, "c"), lambda: False, quiet=60.0, pause=0.001)
        assert [await anext(feed) for _ in range(3)] == [b'event: overview\ndata: "%b"\n\n' % word for word in (b"a", b"b", b"c")]
        others.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_watcher_whose_key_was_revoked_gets_no_more() -> None:
    def state() -> str:
        raise RequestError("the key was revoked")

    async def scenario() -> None:
        live = Live(time.time)
        assert [piece async for piece in live_feed(live, "approvals", state, lambda: False, quiet=60.0)] == []
        assert [piece async for piece in live_feed(live, "approvals", lambda: 1, lambda: True, quiet=60.0)] == []

    asyncio.run(asyncio.wait_for(scenario(), 60))
