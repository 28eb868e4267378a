"""Batches in memory: the interfaces for threads and asyncio."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from batch.mock import MockUpstream
from streamglot import Client, ConfigError, Upstream
from streamglot.batch import (
    AsyncBatcher,
    AsyncRequestBatch,
    HybridBatcher,
    RequestBatch,
    RetryPolicy,
    SizeBasedBatcher,
    TimeBasedBatcher,
    stream_with_batching,
)
from streamglot.batch.runner import run_all
from streamglot.messages import Message, TextPart
from streamglot.upstream.settings import BreakerSettings
from waiting import WAIT_SECONDS, soon

AT_ONCE = RetryPolicy(first=0.001)


def get_markdown(scope: str) -> dict[str, str]:
    """The document."""
    return {"markdown": f"# {scope}"}


def fail(why: str) -> str:
    raise ValueError(why)


def test_responses_come_in_order_with_the_text_of_the_answer(upstream: MockUpstream) -> None:
    with Client(upstreams=[upstream.upstream()], tools=[get_markdown]) as client:
        batch = RequestBatch(max_size=3, client=client)
        ids = [batch.add_chat_request(f"hello {number}", model="m") for number in range(7)]
        ids.append(batch.add_tool_call("get_markdown", {"scope": "full"}))
        responses = batch.flush()
    assert ids == list(range(1, 9))
    assert [response["request_id"] for response in responses] == ids
    assert [response["result"] for response in responses[:7]] == [f"re: hello {number}" for number in range(7)]
    assert responses[7] == {"request_id": 8, "result": {"markdown": "# full"}, "error": None}


def test_a_full_batch_is_sent_without_a_flush(upstream: MockUpstream) -> None:
    with Client(upstreams=[upstream.upstream()]) as client:
        batch = RequestBatch(max_size=2, flush_timeout=1000.0, client=client)
        first, second = batch.add_chat_request("a", model="m"), batch.add_chat_request("b", model="m")
        third = batch.add_chat_request("c", model="m")
        assert batch.future(first).result(WAIT_SECONDS)["result"] == "re: a"
        assert batch.future(second).result(WAIT_SECONDS)["result"] == "re: b"
        assert not batch.future(third).done()
        assert [request["payload"]["prompt"] for request in batch.requests] == ["c"]
        assert [response["result"] for response in batch.flush()] == ["re: a", "re: b", "re: c"]
        assert batch.flush() == []


def test_a_batch_is_sent_when_its_time_is_over(upstream: MockUpstream) -> None:
    with Client(upstreams=[upstream.upstream()]) as client:
        batch = TimeBasedBatcher(flush_interval=0.01, client=client)
        future = batch.add({"type": "chat_completion", "payload": {"prompt": "a", "model": "m"}})
        assert future.result(WAIT_SECONDS)["result"] == "re: a"


def test_each_strategy_has_its_settings() -> None:
    def answer(batch: dict[str, Any]) -> dict[str, Any]:
        return {"responses": [{"request_id": one["id"], "result": len(batch["requests"])} for one in batch["requests"]]}

    by_size, hybrid = SizeBasedBatcher(2, send=answer), HybridBatcher(max_size=2, flush_interval=1000.0, send=answer)
    for batcher in (by_size, hybrid):
        futures = [batcher.add({"type": "chat_completion", "payload": {}}) for _ in range(3)]
        assert [future.result(WAIT_SECONDS)["result"] for future in futures[:2]] == [2, 2]
        assert len(batcher.batch) == 1
        assert [response["result"] for response in batcher.flush()] == [2, 2, 1]
        assert batcher.max_size == 2
        batcher.close()


def test_many_threads_add_at_once_without_a_deadlock(upstream: MockUpstream) -> None:
    """A class that flushes while it holds its own lock waits for itself at the first full batch."""
    with Client(upstreams=[upstream.upstream()]) as client:
        batch = RequestBatch(max_size=3, flush_timeout=0.001, client=client)
        threads = [threading.Thread(target=lambda: [batch.add_chat_request("x", model="m") for _ in range(10)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        responses = batch.flush()
    assert sorted(response["request_id"] for response in responses) == list(range(1, 41))
    assert upstream.asked["x"] == 40


def test_an_item_that_fails_has_its_own_error(upstream: MockUpstream) -> None:
    upstream.fails = lambda prompt, times: 400 if prompt == "bad" else 0
    with Client(upstreams=[upstream.upstream()], tools=[get_markdown, fail]) as client:
        batch = RequestBatch(client=client)
        batch.add_chat_request("good", model="m")
        batch.add_chat_request("bad", model="m")
        batch.add_request("chat_completion", {"prompt": 5})
        batch.add_request("no_such_type", {})
        batch.add_tool_call("no_such_tool")
        batch.add_tool_call("get_markdown", {"scope": [1]})
        batch.add_tool_call("fail", {"why": "because"})
        good, *failed = batch.flush()
    assert good["error"] is None
    assert [response["result"] for response in failed] == [None] * 6
    codes = [response["error"]["code"] for response in failed]
    assert codes == ["mock_failure", "invalid_request", "invalid_request", "tool_not_found", "invalid_arguments", "tool_error"]
    assert "because" in failed[5]["error"]["message"]


def test_only_what_may_help_is_retried(upstream: MockUpstream) -> None:
    def fails(prompt: str, times: int) -> int:
        return {"flaky": 503 if times < 3 else 0, "bad": 400, "down": 503}.get(prompt, 0)

    upstream.fails = fails
    with Client(upstreams=[upstream.upstream(breaker=BreakerSettings(failures=1000))]) as client:
        batch = RequestBatch(client=client, retry=RetryPolicy(retries=3, first=0.001), model="m")
        for prompt in ("fine", "flaky", "bad", "down"):
            batch.add_chat_request(prompt)
        errors = [response["error"] is not None for response in batch.flush()]
    assert errors == [False, False, True, True]
    assert upstream.asked == {"fine": 1, "flaky": 3, "bad": 1, "down": 4}


def test_retry_delays_double_and_respect_retry_after() -> None:
    policy = RetryPolicy(first=1.0, longest=10.0)
    assert [policy.pause(attempt, None, 1.0) for attempt in (1, 2, 3, 4, 9)] == [1.0, 2.0, 4.0, 8.0, 10.0]
    assert policy.pause(1, None, 0.0) == 0.5
    assert policy.pause(1, 7.0, 0.0) == 7.0
    assert policy.pause(1, 1000.0, 0.0) == 10.0


def test_a_whole_chat_request_gives_a_whole_completion(upstream: MockUpstream) -> None:
    with Client(upstreams=[upstream.upstream()]) as client:
        batch = RequestBatch(client=client)
        batch.add_chat_request([{"role": "user", "content": "q"}], model="m", temperature=0.5)
        (response,) = batch.flush()
    assert response["result"]["choices"][0]["message"]["content"] == "re: q"
    assert response["result"]["usage"]["total_tokens"] == 12
    assert upstream.bodies[0]["temperature"] == 0.5


def test_a_batch_that_cannot_be_sent_gives_every_item_an_error() -> None:
    def broken(_batch: dict[str, Any]) -> dict[str, Any]:
        raise OSError("no line")

    senders: list[tuple[Any, str]] = [
        (broken, "no line"),
        (lambda batch: {"responses": []}, "without a response"),
        (lambda batch: [], "object"),
    ]
    for send, words in senders:
        with RequestBatch(send=send) as batch:
            batch.add_chat_request("a")
            (response,) = batch.flush()
        assert response["result"] is None
        assert words in response["error"]["message"]


def test_the_model_of_the_batch_is_sent_with_its_timestamps() -> None:
    sent: list[dict[str, Any]] = []

    def send(batch: dict[str, Any]) -> dict[str, Any]:
        sent.extend(batch["requests"])
        return {"responses": [{"request_id": one["id"], "result": "ok"} for one in batch["requests"]]}

    before = time.time()
    with RequestBatch(flush_timeout=1000.0, send=send, model="ours") as batch:
        batch.add_chat_request("a")
        batch.add_chat_request("b", model="theirs")
        batch.add_tool_call("t", {})
        queued = batch.requests
        batch.flush()
    assert [one["payload"].get("model") for one in sent] == ["ours", "theirs", None]
    assert [one["timestamp"] for one in queued] == [one["timestamp"] for one in sent]
    assert all(before <= one["timestamp"] <= time.time() for one in queued)


def test_a_failed_item_is_sent_again_alone() -> None:
    sent: list[list[str]] = []
    errors: dict[str, Any] = {
        "busy": "overloaded",
        "wrong": {"message": "no such field", "type": "invalid_request_error"},
        "lost": {"message": "down", "type": "server_error"},
    }

    def send(batch: dict[str, Any]) -> dict[str, Any]:
        prompts = [one["payload"].get("prompt", "") for one in batch["requests"]]
        sent.append(prompts)
        if len([each for each in sent if "busy" in each]) > 2:
            errors.pop("busy", None)
        responses = []
        for one, prompt in zip(batch["requests"], prompts, strict=True):
            error = {"message": "it broke", "code": "tool_error"} if one["type"] == "tool_call" else errors.get(prompt)
            responses.append({"request_id": one["id"], "result": None if error else f"re: {prompt}", "error": error})
        return {"responses": responses}

    with RequestBatch(flush_timeout=1000.0, send=send, retry=RetryPolicy(retries=2, first=0.001)) as batch:
        for prompt in ("fine", "busy", "wrong", "lost"):
            batch.add_chat_request(prompt)
        batch.add_tool_call("t")
        responses = batch.flush()
    assert [response["result"] for response in responses] == ["re: fine", "re: busy", None, None, None]
    assert responses[3]["error"]["message"] == "down"
    assert sent[0] == ["fine", "busy", "wrong", "lost", ""]
    assert sorted(sent[1:]) == [["busy"], ["busy"], ["lost"], ["lost"]]


def test_a_function_of_the_program_runs_the_calls_of_the_batch() -> None:
    document = object()

    def execute_tool(name: str, arguments: dict[str, Any]) -> object:
        if name == "broken":
            raise OSError("no document")
        return {"name": name, "arguments": arguments, "document": document}

    async def execute_later(name: str, arguments: dict[str, Any]) -> object:
        return (name, arguments)

    with RequestBatch(execute_tool=execute_tool) as batch:
        batch.add_tool_call("get_markdown", {"scope": "full"})
        batch.add_tool_call("broken")
        found, failed = batch.flush()
    assert found["result"]["document"] is document
    assert found["result"]["arguments"] == {"scope": "full"}
    assert failed["error"]["message"].startswith("the tool 'broken' failed: OSError: no document")
    with RequestBatch(execute_tool=execute_later) as batch:
        batch.add_tool_call("t", {"a": 1})
        assert batch.flush()[0]["result"] == ("t", {"a": 1})
    with pytest.raises(ConfigError, match="not both"):
        RequestBatch(execute_tool=execute_tool, send=lambda given: given)


def test_batches_take_messages_of_the_library(upstream: MockUpstream) -> None:
    spoken = Message("user", [TextPart("hello")])
    earlier: list[Message | dict[str, Any]] = [
        Message("system", [TextPart("be brief")]),
        {"role": "user", "content": "q"},
        Message("assistant", [TextPart("a")]),
    ]
    with Client(upstreams=[upstream.upstream()]) as client:
        with RequestBatch(client=client, model="m") as batch:
            batch.add_chat_request(spoken)
            batch.add_chat_request([*earlier, spoken])
            responses = batch.flush()
        results = list(client.batch([spoken, [*earlier, spoken]], model="m"))
    assert [response["result"]["choices"][0]["message"]["content"] for response in responses] == ["re: hello"] * 2
    assert [result.text for result in results] == ["re: hello"] * 2
    roles = [[message["role"] for message in body["messages"]] for body in upstream.bodies]
    assert roles.count(["system", "user", "assistant", "user"]) == 2


def test_an_open_batch_is_sent_when_it_is_closed(upstream: MockUpstream) -> None:
    with Client(upstreams=[upstream.upstream()]) as client:
        with RequestBatch(flush_timeout=1000.0, client=client) as batch:
            number = batch.add_chat_request("a", model="m")
        assert batch.future(number).result(0)["result"] == "re: a"
        with pytest.raises(ConfigError):
            batch.future(99)


def test_waiting_on_the_thread_that_sends_is_refused() -> None:
    batch = RequestBatch(send=lambda given: {"responses": []})
    faults: list[BaseException] = []
    done = threading.Event()

    def flush(_: object) -> None:
        try:
            batch.flush()
        except ConfigError as error:
            faults.append(error)
        done.set()

    batch.future(batch.add_chat_request("a")).add_done_callback(flush)
    assert done.wait(WAIT_SECONDS)
    assert "another thread" in str(faults[0])


def test_asyncio(upstream: MockUpstream) -> None:
    async def run() -> None:
        async with Client(upstreams=[upstream.upstream()], tools=[get_markdown]) as client:
            with pytest.raises(ConfigError):
                RequestBatch(client=client)
            async with AsyncRequestBatch(2, 1000.0, client=client, model="m", retry=AT_ONCE) as batch:
                first = batch.add_chat_request("a")
                batch.add_tool_call("get_markdown", {"scope": "x"})
                assert (await first)["result"] == "re: a"
                third = batch.add_chat_request("c")
                assert [request["id"] for request in batch.requests] == [3]
                assert [one["result"] for one in await batch.flush()] == ["re: a", {"markdown": "# x"}, "re: c"]
                assert third.done()

    asyncio.run(run())


def test_a_batcher_gives_every_future_an_end() -> None:
    async def run() -> None:
        async def half(items: list[int]) -> AsyncIterator[tuple[int, int]]:
            yield 0, items[0] * 10

        async def never(_items: list[int]) -> AsyncIterator[tuple[int, int]]:
            await asyncio.Event().wait()
            yield 0, 0

        batcher = AsyncBatcher(half, max_size=2)
        first, second = batcher.add(1), batcher.add(2)
        assert await first == 10
        with pytest.raises(Exception, match="no result"):
            await second
        stuck = AsyncBatcher(never, max_size=1)
        future = stuck.add(1)
        await soon(lambda: stuck._sending)
        for task in stuck._sending:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(run())


def test_items_run_so_many_at_once_and_the_source_is_read_no_faster() -> None:
    async def run(ordered: bool) -> None:
        read, gate, order = 0, asyncio.Event(), list(range(200))

        def source() -> Any:
            nonlocal read
            for number in order:
                read += 1
                yield number

        async def one(number: int) -> int:
            if number == 0:
                await gate.wait()
            return number

        results = run_all(source(), one, concurrent=3, ordered=ordered)
        if not ordered:
            assert [await anext(results) for _ in range(50)] == list(range(1, 51))
            assert read <= 60
        else:
            waiting = asyncio.ensure_future(anext(results))
            await soon(lambda: read >= 12)
            await asyncio.sleep(0)
            assert read == 12
            gate.set()
            assert await waiting == 0
        gate.set()
        rest = [number async for number in results]
        assert len(rest) == (150 if not ordered else 199)
        assert rest == sorted(rest) if ordered else 0 in rest

    asyncio.run(run(True))
    asyncio.run(run(False))


def test_an_exception_ends_the_batch_and_leaves_nothing_running() -> None:
    async def run() -> None:
        async def one(number: int) -> int:
            if number == 3:
                raise KeyError(number)
            await asyncio.sleep(0)
            return number

        with pytest.raises(KeyError):
            async for _ in run_all(range(100), one, concurrent=2):
                pass
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


@pytest.mark.parametrize("ordered", [True, False])
def test_chunks_are_pairs_and_know_their_request(upstream: MockUpstream, ordered: bool) -> None:
    upstream.fails = lambda prompt, times: 400 if prompt == "bad" else 0
    messages = ["one", "bad", {"role": "user", "content": "three"}, 5, Message("user", [TextPart("five")])]
    with Client(upstreams=[upstream.upstream()]) as client:
        got = list(stream_with_batching(client, messages, model="m", ordered=ordered))
    assert list(map(tuple, got)).count(("stream_done", None)) == 1
    assert (got[-1].kind, got[-1].data, got[-1].request) == ("stream_done", None, None)
    texts = ["".join(one.data for one in got if one.kind == "chunk" and one.request == number) for number in (1, 2, 3, 4, 5)]
    assert texts == ["re: one", "", "re: three", "", "re: five"]
    assert sorted(one.request or 0 for one in got if one.kind == "error") == [2, 4]
    if ordered:
        numbers = [one.request for one in got if one.request]
        assert numbers == sorted(numbers)


def test_the_loop_of_the_document_runs_as_pasted(upstream: MockUpstream) -> None:
    with Client(upstreams=[upstream.upstream()]) as client:
        text, done = "", 0
        for kind, data in stream_with_batching(client, ["one", "two"], model="m"):
            if kind == "chunk":
                text += data
            elif kind == "error":
                raise AssertionError(data)
            elif kind == "stream_done":
                assert data is None
                done += 1
    assert (text, done) == ("re: onere: two", 1)


def test_thoughts_and_calls_are_kinds_of_their_own(tmp_path: Path) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "rm", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"path": "/"}'}}
    deltas = [{"reasoning_content": "hmm"}, {"content": "well"}, {"tool_calls": [call]}, {"tool_calls": [rest]}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    (tmp_path / "caller").write_text("".join([*lines, "data: [DONE]\n\n"]))
    with Client(upstreams=[Upstream(name="recorded", base_url=f"file:{tmp_path}")]) as client:
        got = [tuple(pair) for pair in stream_with_batching(client, ["x"], model="caller")]
    function = {"name": "rm", "arguments": '{"path": "/"}'}
    assert got == [
        ("reasoning", "hmm"),
        ("chunk", "well"),
        ("tool_call", {"id": "c1", "type": "function", "function": function}),
        ("stream_done", None),
    ]


def test_chunks_in_asyncio_may_be_left_in_the_middle(upstream: MockUpstream) -> None:
    async def run() -> None:
        async with Client(upstreams=[upstream.upstream()]) as client:
            stream = stream_with_batching(client, ["w" * 600] * 20, model="m", concurrent=3)
            with pytest.raises(ConfigError):
                list(stream)
            chunks = aiter(stream)
            assert (await anext(chunks))[0] == "chunk"
            await chunks.aclose()
        await soon(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(run())
    assert sum(upstream.asked.values()) < 20
