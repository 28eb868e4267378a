"""Small requests that come together are sent as one, and their answer is split again."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from batch.mock import MockUpstream
from gateway.running import Answer, Running, running
from streamglot.batch import AsyncBatcher
from streamglot.errors import StreamglotError, UpstreamError, UpstreamProtocolError
from streamglot.gateway.merging import COMPLETIONS, EMBEDDINGS, MergeableRequest, RequestMerger, merge, mergeable, split
from waiting import WAIT_SECONDS, until


def embedding(given: object, **more: Any) -> MergeableRequest:
    found = mergeable(EMBEDDINGS, {"model": "m", "input": given, **more})
    assert found is not None
    return found


def answer(count: int, tokens: int = 10, reverse: bool = False, **more: Any) -> bytes:
    data = [{"object": "embedding", "index": place, "embedding": [place, 0.5]} for place in range(count)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    whole = {"object": "list", "data": data[::-1] if reverse else data, "model": "m-1", "usage": usage}
    return msgspec.json.encode({**whole, **more})


def test_texts_are_joined_and_answers_given_back() -> None:
    requests = [embedding("one"), embedding(["two", "three"]), embedding("4")]
    assert merge(requests) == {"model": "m", "input": ["one", "two", "three", "4"]}
    for reverse in (False, True):
        got = [msgspec.json.decode(one) for one in split(answer(4, 10, reverse), requests)]
        assert [[entry["embedding"][0] for entry in one["data"]] for one in got] == [[0], [1, 2], [3]]
        assert [[entry["index"] for entry in one["data"]] for one in got] == [[0], [0, 1], [0]]
        assert {one["model"] for one in got} == {"m-1"}
        assert sum(one["usage"]["prompt_tokens"] for one in got) == 10
        assert all(one["usage"]["total_tokens"] == one["usage"]["prompt_tokens"] for one in got)


def test_tokens_are_texts_too() -> None:
    assert embedding([1, 2, 3]).texts == [[1, 2, 3]]
    assert embedding([[1], [2, 3]]).texts == [[1], [2, 3]]
    assert embedding([1, 2]).group != embedding("a").group


@pytest.mark.parametrize("given", [None, 5, [], [True], ["a", 1], [[]], ["x"] * 9, "x" * 20_000, {"a": 1}])
def test_a_request_without_a_small_list_of_texts_is_sent_alone(given: object) -> None:
    assert mergeable(EMBEDDINGS, {"model": "m", "input": given}) is None


def test_requests_that_differ_are_not_merged() -> None:
    plain = embedding("a").group
    assert plain == embedding("b").group
    for more in ({"model": "other"}, {"dimensions": 5}, {"encoding_format": "base64"}, {"user": "u"}):
        assert embedding("a", **more).group != plain
    assert mergeable(COMPLETIONS, {"prompt": "a", "stream": True}) is None
    assert mergeable(COMPLETIONS, {"prompt": "a", "n": "2"}) is None


def test_completions_have_several_choices_for_each_prompt() -> None:
    made = [mergeable(COMPLETIONS, {"prompt": prompt, "n": 2}) for prompt in ("a", "b")]
    requests = [one for one in made if one is not None]
    choices = [{"text": str(place), "index": place, "finish_reason": "stop"} for place in range(4)]
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "details": {"x": 1}}
    got = [msgspec.json.decode(one) for one in split(msgspec.json.encode({"choices": choices, "usage": usage}), requests)]
    assert [[choice["text"] for choice in one["choices"]] for one in got] == [["0", "1"], ["2", "3"]]
    assert [sum(one["usage"][name] for one in got) for name in ("prompt_tokens", "completion_tokens", "total_tokens")] == [
        3,
        5,
        8,
    ]


@pytest.mark.parametrize(
    "broken",
    [
        b"no json",
        b"[]",
        b"{}",
        b'{"data": 5}',
        answer(1),
        answer(3),
        msgspec.json.encode({"data": [{"index": 0}, {"index": 0}]}),
        msgspec.json.encode({"data": [{"index": 0}, {"index": "1"}]}),
        msgspec.json.encode({"data": [{"index": 0}, {}]}),
    ],
)
def test_an_answer_that_does_not_fit_is_refused(broken: bytes) -> None:
    with pytest.raises(UpstreamProtocolError):
        split(broken, [embedding("a"), embedding("b")])


def test_answers_without_usage_or_index_are_split_as_well() -> None:
    for usage in ({"usage": None}, {"usage": "?"}, {}):
        data = [{"embedding": [1]}, {"embedding": [2]}]
        got = [
            msgspec.json.decode(one)
            for one in split(msgspec.json.encode({"data": data, **usage}), [embedding("a"), embedding("b")])
        ]
        assert [one["data"][0]["embedding"] for one in got] == [[1], [2]]


def run_together(count: int, fail: Any = None) -> tuple[list[Any], list[Any]]:
    """Sends requests, the first of which is under way while the others come. What was posted, and what each got. The batcher's
    clock advances only after all items arrived, so a slow machine changes nothing."""
    posted: list[Any] = []
    got: list[Any] = []
    now = 0.0

    async def run() -> None:
        nonlocal now
        merger, gate = RequestMerger(), asyncio.Event()

        async def post(body: dict[str, Any]) -> bytes:
            posted.append(body["input"])
            if len(posted) == 1:
                await gate.wait()
            if fail is not None:
                fail(body)
            texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
            data = [{"index": place, "embedding": text} for place, text in enumerate(texts)]
            return msgspec.json.encode({"data": data})

        async def one(text: str) -> Any:
            try:
                return msgspec.json.decode(await merger.send("me", embedding(text), post, 0.001))["data"][0]["embedding"]
            except StreamglotError as error:
                return error

        tasks = [asyncio.ensure_future(one(f"t{number}")) for number in range(count)]
        await asyncio.sleep(0)
        now = 1.0
        await asyncio.gather(*tasks[1:])
        gate.set()
        got.extend(await asyncio.gather(*tasks))
        assert not merger._groups

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncBatcher, "clock", lambda _self: now)
        asyncio.run(run())
    return posted, got


def test_the_first_goes_at_once_and_the_others_together() -> None:
    posted, got = run_together(40)
    assert got == [f"t{number}" for number in range(40)]
    assert posted[0] == "t0"
    assert [len(one) for one in posted[1:]] == [32, 7]


def test_one_bad_text_fails_alone() -> None:
    def fail(body: dict[str, Any]) -> None:
        if "t3" in body["input"]:
            raise UpstreamError("too long", status=400)

    posted, got = run_together(6, fail)
    assert [isinstance(one, StreamglotError) for one in got] == [False, False, False, True, False, False]
    assert len(posted) == 1 + 1 + 5


def test_an_upstream_that_is_down_is_not_asked_for_each() -> None:
    def fail(body: dict[str, Any]) -> None:
        if body["input"] != "t0":
            raise UpstreamError("down", status=503)

    posted, got = run_together(6, fail)
    assert len(posted) == 2
    assert len({id(one) for one in got[1:]}) == 5
    assert {one.status for one in got[1:]} == {503}


# --- through the gateway

MERGE_SECONDS = 0.5
"""Seconds that requests wait for others where a test expects them to be merged: as long as a busy machine may take to send two."""


@contextmanager
def serving(upstream: MockUpstream, names: tuple[str, ...] = (), **settings: Any) -> Iterator[Running]:
    keys = [{"name": name, "hash": hashlib.sha256(name.encode()).hexdigest()} for name in names]
    mock = {"base_url": upstream.url, "attempts": 1, "merge_seconds": 0.01, **settings}
    with running({"upstreams": {"mock": mock}, "server": {"keys": keys}}) as gateway:
        yield gateway


def together(gateway: Running, upstream: MockUpstream, bodies: list[tuple[str, dict[str, Any]]], path: str) -> list[Answer]:
    """Sends the first request, then the others while it is under way."""
    upstream.hold = threading.Event()
    answers: list[Answer | None] = [None] * len(bodies)

    def ask(number: int) -> None:
        name, body = bodies[number]
        answers[number] = gateway.ask(path, body, {"authorization": f"Bearer {name}"} if name else {})

    threads = [threading.Thread(target=ask, args=[number]) for number in range(len(bodies))]
    threads[0].start()
    until(lambda: len(upstream.bodies) == 1)
    for thread in threads[1:]:
        thread.start()
    until(lambda: sum(_count(body) for body in upstream.bodies) == len(bodies))
    upstream.hold.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    return [answer for answer in answers if answer is not None]


def _count(body: dict[str, Any]) -> int:
    given = body.get("input", body.get("prompt"))
    return len(given) if isinstance(given, list) else 1


def test_embeddings_are_merged_and_each_gets_its_own(upstream: MockUpstream) -> None:
    with serving(upstream, merge_seconds=MERGE_SECONDS) as gateway:
        bodies = [("", {"model": "e", "input": "x" * (number + 1)}) for number in range(9)]
        answers = together(gateway, upstream, bodies, "/v1/embeddings")
        assert [one.json()["data"][0]["embedding"] for one in answers] == [[number + 1] for number in range(9)]
        assert [one.json()["data"][0]["index"] for one in answers] == [0] * 9
        assert sum(one.json()["usage"]["prompt_tokens"] for one in answers) == 27
        assert len(upstream.bodies) < 9


@pytest.mark.parametrize("settings", [{"merge": []}, {}])
def test_nothing_is_merged_across_keys_or_where_it_is_switched_off(upstream: MockUpstream, settings: dict[str, Any]) -> None:
    names = ("ada", "bob", "eve") if not settings else ("ada",)
    with serving(upstream, names, **settings) as gateway:
        bodies = [(names[number % len(names)], {"model": "e", "input": f"t{number}"}) for number in range(3)]
        together(gateway, upstream, bodies, "/v1/embeddings")
        assert [_count(body) for body in upstream.bodies] == [1, 1, 1]


def completion(seen: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    prompts = seen["prompt"] if isinstance(seen["prompt"], list) else [seen["prompt"]]
    choices = [{"text": f"re: {text}", "index": place, "finish_reason": "stop"} for place, text in enumerate(prompts)]
    usage = {"prompt_tokens": len(prompts), "completion_tokens": len(prompts), "total_tokens": 2 * len(prompts)}
    return 200, {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


@pytest.mark.parametrize("merge", [["completions"], []])
def test_text_completions_are_merged_where_the_upstream_says_so(
    upstream: MockUpstream, merge: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def respond(_path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        upstream.bodies.append(body)
        assert upstream.hold is not None
        upstream.hold.wait(WAIT_SECONDS)
        return completion(body)

    monkeypatch.setattr(upstream, "answer", respond)
    with serving(upstream, dialect="openai_completions", merge=merge, merge_seconds=MERGE_SECONDS) as gateway:
        bodies = [("", {"model": "m", "prompt": f"p{number}", "max_tokens": 5}) for number in range(9)]
        answers = together(gateway, upstream, bodies, "/v1/completions")
    assert [one.json()["choices"][0]["text"] for one in answers] == [f"re: p{number}" for number in range(9)]
    assert all(one.json()["usage"]["total_tokens"] == 2 for one in answers)
    assert (len(upstream.bodies) < 9) is bool(merge)
