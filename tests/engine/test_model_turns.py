"""One model turn: bytes to events without waiting, and the functions that ask for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from split_checks import every_cut
from streamglot import check, collect
from streamglot.engine.answer import ErrorContext, EventSource, Pipeline, UpstreamAnswer
from streamglot.engine.ask import AskForTurn, Captured, Passthrough, ResponseCache, cached, captured, received, resumed
from streamglot.engine.conversation import ConversationState
from streamglot.engine.stats import ExchangeRecord
from streamglot.errors import ConfigError, UpstreamRefused, UpstreamTruncated
from streamglot.events import Event, StreamEnd, StreamError, StreamStart, TextDelta, TextEnd, TextStart
from streamglot.messages import Message, Request, Response, ResponseChoice, TextPart
from streamglot.upstream import Upstream
from streamglot.upstream.routing.routes import Candidate, Route, Routes, Target

pytestmark = pytest.mark.anyio

SECRET = "sk-the-key-of-this-upstream-0123456789"
BYTES = (
    b"".join(
        b"data: " + msgspec.json.encode({"id": "c", "model": "m", "choices": [{"index": 0, **choice}]}) + b"\n\n"
        for choice in (
            {"delta": {"content": "one "}},
            {"delta": {"content": f"my key is {SECRET}"}},
            {"delta": {}, "finish_reason": "stop"},
        )
    )
    + b"data: [DONE]\n\n"
)
ASKED = Request(model="m", messages=[Message("user", [TextPart("hello")])], stream=True)


def answer_of(upstream: Upstream, received: Callable[[bytes], None] | None = None) -> UpstreamAnswer:
    candidate = Candidate(upstream, "m")
    errors = ErrorContext(candidate, "r1")
    return UpstreamAnswer(candidate, {}, Pipeline(upstream, "m", ASKED), errors, received)


def upstream_of(name: str = "work", key: str = "") -> Upstream:
    return Upstream(name=name, dialect="openai_chat", base_url="http://127.0.0.1:1/v1", key=key, models=["m"], inband="none")


def test_an_answer_is_read_by_plain_calls_for_any_cut() -> None:
    events = every_cut(lambda: answer_of(upstream_of()), BYTES)
    check(events)
    assert collect(events).text == f"one my key is {SECRET}"


def test_a_secret_does_not_pass_an_answer_however_it_is_cut() -> None:
    upstream = upstream_of(key=SECRET)
    assert SECRET not in collect(every_cut(lambda: answer_of(upstream), BYTES)).text
    for size in (1, 3, 100_000):
        recorded: list[bytes] = []
        answer = answer_of(upstream, recorded.append)
        for at in range(0, len(BYTES), size):
            answer.feed(BYTES[at : at + size])
        answer.close()
        assert SECRET.encode() not in b"".join(recorded)
        assert b"".join(recorded).endswith(b"data: [DONE]\n\n")


def test_an_answer_that_breaks_off_names_its_upstream_and_is_over() -> None:
    answer = answer_of(upstream_of())
    begun = answer.feed(BYTES[:80])
    assert not answer.over
    last = answer.broken(UpstreamTruncated("the connection broke"))
    assert answer.over
    check([*begun, *last])
    assert isinstance(last[-1], StreamError)
    assert "upstream 'work'" in last[-1].message
    stopped = answer_of(upstream_of())
    assert stopped.feed(BYTES[:90])
    assert stopped.stop()[-1] == StreamEnd("cancelled")


# --- functions


class Pool:
    """The routes of two upstreams, and an ``ask`` that counts."""

    def __init__(self, seconds: float = 0.0) -> None:
        routes = [Route(models=["m"], to=[Target("work", "m")], cache_seconds=seconds)]
        self.routes = Routes([upstream_of(), upstream_of("other")], routes)
        self.now = 0.0
        self.turns: list[Turn] = []

    def clock(self) -> float:
        return self.now

    def new_id(self) -> str:
        return "0" * 32

    async def ask(
        self, request: Request, record: ExchangeRecord, conversation: ConversationState | None, passthrough: Passthrough, /
    ) -> EventSource:
        self.turns.append(Turn())
        return self.turns[-1]


class Turn:
    def __init__(self) -> None:
        self.name, self.model = "work", "m"
        self.upstream: Upstream | None = None
        self.dropped: list[str] = []
        self._events: list[Event] | None = [StreamStart(), TextStart(), TextDelta("live"), TextEnd(), StreamEnd("end")]

    async def read(self) -> list[Event] | None:
        events, self._events = self._events, None
        return events

    def broken(self, error: Any) -> list[Event]:
        return [error.as_event()]

    def stop(self) -> list[Event]:
        return []

    async def drain(self) -> None: ...

    def close(self) -> None: ...


async def text_of(ask: AskForTurn, record: ExchangeRecord | None = None) -> str:
    turn = await ask(ASKED, record or ExchangeRecord("r1", "openai_chat", 0.0, "m"), None, Passthrough())
    events: list[Event] = []
    while (read := await turn.read()) is not None:
        events += read
    check(events)
    return collect(events).text


async def test_the_cache_and_a_resumed_call_stand_in_front_of_the_upstreams_in_any_order() -> None:
    pool, cache = Pool(seconds=10.0), ResponseCache(10_000)
    ask = cached(pool.ask, cache, "me", pool)
    records = [ExchangeRecord("r", "openai_chat", 0.0, "m") for _ in range(4)]
    assert [await text_of(ask, record) for record in records[:2]] == ["live", "live"]
    assert ([record.cache for record in records[:2]], len(pool.turns)) == (["miss", "hit"], 1)
    pool.now = 11.0
    assert await text_of(cached(pool.ask, cache, "you", pool), records[2]) == "live", "another caller"
    assert await text_of(ask, records[3]) == "live"
    assert ([record.cache for record in records[2:]], len(pool.turns)) == (["miss", "miss"], 3)
    known = Response(choices=[ResponseChoice(0, [TextPart("decided")], "end")])
    first = resumed(ask, known)
    assert [await text_of(first) for _ in range(2)] == ["decided", "live"]
    assert len(pool.turns) == 3, "the second turn came from the cache"


async def test_a_provider_s_batch_gives_a_body_and_an_answer() -> None:
    pool = Pool()
    with pytest.raises(Captured) as caught:
        await text_of(captured(pool, "work"))
    assert (caught.value.body["model"], caught.value.body["messages"]) == ("m", [{"role": "user", "content": "hello"}])
    whole = {"id": "c", "choices": [{"index": 0, "message": {"content": "batched"}, "finish_reason": "stop"}]}
    record = ExchangeRecord("r1", "openai_chat", 0.0, "m")
    ask = received(pool.ask, pool, "work", 200, msgspec.json.encode(whole))
    assert await text_of(ask, record) == "batched"
    assert (record.upstream, record.attempts) == ("work", 1)
    assert await text_of(ask) == "live", "later turns go to the upstreams"
    refused = received(pool.ask, pool, "work", 429, b'{"error": {"message": "slow down"}}')
    with pytest.raises(UpstreamRefused) as slow:
        await text_of(refused)
    assert "upstream 'work', model 'm', status 429: slow down" in slow.value.message
    with pytest.raises(ConfigError, match="no longer serves"):
        await text_of(captured(pool, "gone"))
