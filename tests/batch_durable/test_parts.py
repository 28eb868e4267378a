"""The pure parts: forms, bodies of message batches, the pace of an upstream, and the slots that live requests leave."""

from __future__ import annotations

import asyncio
import json

import pytest

from store.turns import asynchronous
from streamglot.batch.durable.background import BackgroundTraffic
from streamglot.batch.durable.pace import FIRST_PAUSE, UpstreamPace
from streamglot.batch.request_array import RequestArray
from streamglot.errors import RequestError
from streamglot.gateway.http.multipart import Multipart, PartData, PartEnd, PartStart, boundary_of
from streamglot.upstream import Upstream
from streamglot.upstream.routing.slots import ConcurrencyLimit

FORM = (
    b'ignored\r\n--edge\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--edge\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".jsonl"\r\nContent-Type: text/plain\r\n\r\n'
    b"line 1\r\n--edg\r\nline 2\n\r\n--edge\r\nContent-Disposition: form-data; name=empty\r\n\r\n\r\n--edge--\r\nbehind"
)


def read_form(data: bytes, size: int) -> list[tuple[str, str | None, bytes]]:
    form = Multipart(b"edge")
    parts = [part for start in range(0, len(data), size) for part in form.feed(data[start : start + size])]
    form.close()
    found: list[tuple[str, str | None, bytes]] = []
    for part in parts:
        if isinstance(part, PartStart):
            name, filename, value = part.name, part.filename, b""
        elif isinstance(part, PartData):
            value += part.data
        else:
            assert isinstance(part, PartEnd)
            found.append((name, filename, value))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 10_000])
def test_a_form_is_the_same_for_any_cut(size: int) -> None:
    assert read_form(FORM, size) == [
        ("purpose", None, b"batch"),
        ("file", 'a "b".jsonl', b"line 1\r\n--edg\r\nline 2\n"),
        ("empty", None, b""),
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        FORM[:-20],
        b"--edge\r\nContent-Type: text/plain\r\n\r\nno name\r\n--edge--",
        b"--edge and more\r\n\r\n",
        b"--edge\r\n" + b"x" * 20_000,
        b'--edge\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 70,
    ],
)
def test_a_broken_form_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError):
        read_form(data, 1000)


def test_the_boundary_of_a_form_is_read() -> None:
    assert boundary_of('Multipart/Form-Data; charset=utf-8; boundary="a b"') == b"a b"
    assert boundary_of("multipart/form-data; boundary=edge") == b"edge"
    for wrong in ("", "application/json", "multipart/form-data"):
        with pytest.raises(RequestError, match="boundary"):
            boundary_of(wrong)


REQUESTS = [{"custom_id": "ä", "params": {"text": 'a "quoted" }]', "more": [1, {"x": []}]}}, {"custom_id": "b", "params": {}}]


def read_array(data: bytes, size: int) -> list[object]:
    array = RequestArray(1000)
    lines = [one for start in range(0, len(data), size) for one in array.feed(data[start : start + size])]
    lines += array.close()
    assert not any(b"\n" in one for one in lines)
    return [json.loads(one) for one in lines]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_the_body_of_a_message_batch_is_the_same_for_any_cut(size: int) -> None:
    for indent in (None, 2):
        data = json.dumps({"requests": REQUESTS}, indent=indent, ensure_ascii=False).encode()
        assert read_array(data, size) == REQUESTS
    assert read_array(b'{"requests": []}', size) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"requests": [',
        b'{"requests": [1]}',
        b'{"requests": [{}',
        b'{"requests": [{} {}]}',
        b'{"requests": [{},]}',
        b'{"requests": [{}], "more": 1}',
        b'{"requests": [{}]} trailing',
        b'{"requests": [{"x": "' + b"y" * 2000 + b'"}]}',
        b" " * 2000,
    ],
)
def test_a_body_of_another_shape_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError):
        read_array(data, 10)


# --- the pace


def test_the_calls_at_once_are_halved_by_a_refusal_and_grow_back() -> None:
    pace = UpstreamPace(16)
    pace.throttled(100.0, None)
    pace.throttled(100.1, None)
    assert pace.allowed == 8, "refusals of the same moment are one"
    assert pace.delay(100.1) == pytest.approx(FIRST_PAUSE)
    assert pace.rests(100.5)
    pace.throttled(102.0, 7.0)
    assert pace.allowed == 4
    assert pace.delay(102.0) == pytest.approx(7.0)
    for _ in range(100):
        pace.succeeded(10)
    assert pace.allowed > 12


def test_no_more_calls_run_than_are_allowed() -> None:
    pace = UpstreamPace(2)
    pace.started(1.0)
    assert pace.delay(1.0) == 0
    pace.started(1.0)
    assert pace.delay(1.0) == float("inf")
    pace.ended()
    assert pace.delay(1.0) == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests": "10", "x-ratelimit-reset-requests": "20s"},
        {"x-ratelimit-remaining-requests": "10", "x-ratelimit-reset-requests": "0m20s"},
        {"vendor-ratelimit-requests-remaining": "10", "vendor-ratelimit-requests-reset": "1970-01-01T00:16:40Z"},
        {"x-ratelimit-remaining-tokens": "1000", "x-ratelimit-reset-tokens": "20"},
    ],
)
def test_the_rest_of_a_limit_is_spread_over_its_time(headers: dict[str, str]) -> None:
    pace = UpstreamPace(100)
    pace.succeeded(100)
    pace.learn(50.0, headers, wall_clock=980.0)
    pace.started(50.0)
    assert pace.delay(50.0) == pytest.approx(2.0), "10 calls in 20 seconds"
    pace.workers = 2
    pace.learn(60.0, headers, wall_clock=980.0)
    pace.started(60.0)
    assert pace.delay(60.0) == pytest.approx(4.0), "shared with another worker"


def test_a_used_up_limit_stops_calls_until_it_is_reset() -> None:
    pace = UpstreamPace(100)
    pace.learn(50.0, {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "500ms"}, wall_clock=0.0)
    assert pace.delay(50.0) == pytest.approx(0.5)
    assert pace.delay(50.6) == 0


@pytest.mark.parametrize("value", ["", "soon", "nan", "-5", "1e99", "inf"])
def test_nonsense_in_headers_changes_nothing(value: str) -> None:
    pace = UpstreamPace(100)
    pace.learn(50.0, {"x-ratelimit-remaining-requests": value, "x-ratelimit-reset-requests": value}, wall_clock=0.0)
    pace.started(50.0)
    assert pace.delay(50.0) == 0


def test_an_upstream_that_refuses_is_passed_over_by_claims() -> None:
    traffic = BackgroundTraffic(8, clock=lambda: 10.0)
    traffic.answered(Upstream(name="busy"), 429, {"retry-after": "3"})
    traffic.answered(Upstream(name="free"), 200, {})
    assert traffic.paused() == ["busy"]


# --- slots


@asynchronous
async def test_background_calls_take_only_what_live_requests_leave() -> None:
    limit = ConcurrencyLimit(10, 60.0, "the upstream")
    for _ in range(9):
        await limit.take_spare()
    waiting = asyncio.ensure_future(limit.take_spare())
    await asyncio.sleep(0)
    assert not waiting.done(), "one slot in ten is left for live requests"
    await limit.take()
    live = asyncio.ensure_future(limit.take())
    await asyncio.sleep(0)
    limit.give_back()
    await live
    assert not waiting.done(), "a live request that came later is first"
    limit.give_back()
    limit.give_back()
    await waiting
    assert limit.taken == 9


@asynchronous
async def test_a_background_call_that_is_given_up_takes_no_slot() -> None:
    limit = ConcurrencyLimit(1, 60.0, "the upstream")
    await limit.take_spare()
    given_up = asyncio.ensure_future(limit.take_spare())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    limit.give_back()
    assert limit.taken == 0
    late = asyncio.ensure_future(limit.take_spare())
    other = asyncio.ensure_future(limit.take_spare())
    await late
    limit.give_back()
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    assert limit.taken == 0


@pytest.mark.parametrize("data", [b"[]", b'{"requests": "x"}', b'{"more": 1, "requests": []}', b" " * 2000])
def test_a_body_of_another_shape_is_refused_with_the_expected_one(data: bytes) -> None:
    with pytest.raises(RequestError, match="it must begin with"):
        read_array(data, 7)
