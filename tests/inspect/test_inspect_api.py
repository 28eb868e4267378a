"""The inspector's API over real sockets: stored, running and pasted streams."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from gateway.conftest import UPSTREAM_DIALECTS
from gateway.running import Running
from gateway.stored_turns import chunk, keeping, kept, text_script
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Until, hostile, sse, streamed, whole
from inspected import Inspected, joined, of_answer, unzipped
from recordings import recordings
from store.tables import add
from streamglot.dialects import DIALECTS
from streamglot.engine.turn_recorder import TurnRecorder
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.store import Database, Queries
from waiting import WAIT_SECONDS

RAW = {"raw": True}


@pytest.fixture(scope="module")
def upstream() -> Iterator[HostileUpstream]:
    with hostile() as server:
        yield server


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path}/streamglot.db"


def asked(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello <b>you</b>"}], **more}


def inspected(gateway: Running, turn: str, query: str = "", **headers: str) -> Inspected:
    answer = gateway.ask(f"/turns/{turn}/inspect{query}", headers=headers)
    assert answer.status == 200, answer.body
    return of_answer(answer.body)


def test_a_stored_turn_has_all_three_columns_linked(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello", " world")
    with keeping(upstream, url, store=RAW) as gateway:
        written = gateway.ask("/v1/messages", asked("work/told", max_tokens=9)).body
        turn = kept(url)[-1]
        found = inspected(gateway, turn.id)
        as_other = inspected(gateway, turn.id, "?as=gemini")
    assert found.facts["recorded"] == {"upstream": True, "events": True, "client": True, "requests": True}
    assert "\n".join(found.rows["client"]["text"]).split() == written.decode().split()
    assert [text for text in found.kinds() if text == "text_delta"] == ["text_delta"] * 2
    hello = next(row for row, text in enumerate(found.rows["events"]["text"]) if '"Hello"' in text)
    assert '"Hello"' in found.rows["upstream"]["text"][found.rows["events"]["link"][hello]]
    assert any(
        '"Hello"' in text
        for text, link in zip(found.rows["client"]["text"], found.rows["client"]["link"], strict=True)
        if link == hello
    )
    assert all(mark & 4 == 0 for mark in found.rows["events"]["mark"])
    assert found.head["first_byte"] > 0
    assert found.head["attempts"][0]["upstream"] == "work"
    assert found.facts["requests"]["client"]["body"]["messages"][0]["content"] == "Hello <b>you</b>"
    assert found.facts["requests"]["upstream"][0]["body"]["model"] == "told"
    assert "candidates" in as_other.rows["client"]["text"][0]
    assert len(as_other.rows["upstream"]["at"]) == len(found.rows["upstream"]["at"])


@pytest.mark.parametrize("dialect", UPSTREAM_DIALECTS)
def test_a_stored_turn_of_every_dialect(upstream: HostileUpstream, url: str, dialect: str) -> None:
    recording = next(
        one for one in recordings() if one.dialect == dialect and one.name.startswith(("text", "stop", "plain", "hello"))
    )
    upstream.scripts["rec"] = streamed(recording.body, media_type=DIALECTS[dialect].media_type)
    with keeping(upstream, url, store=RAW) as gateway:
        gateway.ask("/v1/chat/completions", asked(f"{UPSTREAM_NAMES[dialect]}/rec"))
        found = inspected(gateway, kept(url)[-1].id)
    assert "text_delta" in found.kinds()
    row = found.kinds().index("text_delta")
    assert found.rows["events"]["link"][row] >= 0


def test_a_recording_of_many_commits_is_the_same(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello", " world")

    async def one_commit_for_each_frame(turn: str) -> None:
        database = await Database.open(url)
        frames = await Queries(database).raw(turn)
        await database.execute("DELETE FROM frames")
        for number, frame in enumerate(frames):
            row = {"turn_id": turn, "number": number, "body": msgspec.msgpack.encode([frame])}
            await add(database, "frames", row)
        await database.close()

    with keeping(upstream, url, store=RAW) as gateway:
        gateway.ask("/v1/messages", asked("work/told", max_tokens=9))
        turn = kept(url)[-1].id
        before = inspected(gateway, turn)
        asyncio.run(one_commit_for_each_frame(turn))
        after = inspected(gateway, turn)
    assert (after.rows, after.bars, after.facts["recorded"]) == (before.rows, before.bars, before.facts["recorded"])


def test_failed_attempts_are_in_the_waterfall(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["flaky"] = [whole({"error": {"message": "busy"}}, 503), text_script("Hi")]
    patient = {"work": {"dialect": "openai_chat", "base_url": f"{upstream.url}/v1", "attempts": 2, "pause": 0.01}}
    with keeping(upstream, url, store=RAW, upstreams=patient) as gateway:
        gateway.ask("/v1/chat/completions", asked("work/flaky"))
        found = inspected(gateway, kept(url)[-1].id)
    failed = [bar for bar in found.facts["bars"] if bar["kind"] == "failed"]
    assert [bar["label"].split()[:2] for bar in failed] == [["work", "503"]]
    assert [attempt["number"] for attempt in found.head["attempts"]] == [1, 2]
    assert set(found.rows["upstream"]["mark"]) == {2}


def test_a_turn_without_raw_bytes_shows_its_stored_answer(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello", " world")
    with keeping(upstream, url) as gateway:
        gateway.ask("/v1/chat/completions", asked("work/told"))
        found = inspected(gateway, kept(url)[-1].id)
    assert found.facts["recorded"] == {"upstream": False, "events": False, "client": False, "requests": False}
    assert [event["text"] for event in found.events() if event["type"] == "text_delta"] == ["Hello world"]
    assert found.rows["client"]["text"]
    text = next(bar for bar in found.bars if bar["kind"] == "text")
    assert 0 < text["begin"] <= text["end"]
    assert found.facts["requests"]["client"]["recorded"] is False


def followed(gateway: Running, turn: str, go_on: threading.Event) -> list[dict[str, Any]]:
    """The lines of a running turn, which goes on when its text "one" is shown."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
    connection.request("GET", f"/turns/{turn}/inspect")
    answer = connection.getresponse()
    lines: list[dict[str, Any]] = []
    while '"one"' not in json.dumps([line.get("rows") for line in lines]).replace("\\", ""):
        lines.append(json.loads(answer.readline()))
    go_on.set()
    lines += [json.loads(line) for line in answer.read().splitlines()]
    connection.close()
    return lines


def test_a_running_turn_is_followed_to_its_end(upstream: HostileUpstream, url: str) -> None:
    go_on = threading.Event()
    upstream.scripts["slow"] = streamed(chunk({"content": "one"}), Until(go_on), chunk({"content": "two"}, "stop"), sse("[DONE]"))
    with keeping(upstream, url, store=RAW) as gateway:
        thread = threading.Thread(target=gateway.ask, args=("/v1/chat/completions", asked("work/slow")))
        thread.start()
        turn = kept(url, lambda found: found)[-1]
        lines = followed(gateway, turn.id, go_on)
        thread.join(WAIT_SECONDS)
    assert lines[0]["turn"]["running"] is True
    found = joined(lines)
    assert [event["text"] for event in found.events() if event["type"] == "text_delta"] == ["one", "two"]
    assert found.facts["running"] is False
    assert found.facts["ending"] == "end"
    assert lines[-1] == {"end": True}
    assert "[DONE]" in found.rows["client"]["text"][-1]


def test_a_running_turn_without_raw_bytes_is_followed_by_what_its_client_gets(upstream: HostileUpstream, url: str) -> None:
    go_on = threading.Event()
    upstream.scripts["slow"] = streamed(chunk({"content": "one"}), Until(go_on), chunk({"content": "two"}, "stop"), sse("[DONE]"))
    with keeping(upstream, url) as gateway:
        thread = threading.Thread(target=gateway.ask, args=("/v1/messages", asked("work/slow", max_tokens=9)))
        thread.start()
        turn = kept(url, lambda found: found)[-1]
        lines = followed(gateway, turn.id, go_on)
        thread.join(WAIT_SECONDS)
    found = joined(lines)
    assert [event["text"] for event in found.events() if event["type"] == "text_delta"] == ["one", "two"]
    assert (found.facts["follows"], found.facts["running"], found.facts["ending"]) == ("client", False, "end")
    assert "message_stop" in found.rows["client"]["text"][-1]


def test_a_running_turn_without_raw_bytes_is_shown_when_it_has_ended(upstream: HostileUpstream, url: str) -> None:
    go_on = threading.Event()
    upstream.scripts["slow"] = streamed(chunk({"content": "one"}), Until(go_on), chunk({}, "stop"), sse("[DONE]"))
    with keeping(upstream, url) as gateway:
        thread = threading.Thread(target=gateway.ask, args=("/v1/chat/completions", asked("work/slow")))
        thread.start()
        turn = kept(url, lambda found: found)[-1]
        once = inspected(gateway, turn.id, "?follow=false")
        assert once.facts["running"] is True
        go_on.set()
        found = inspected(gateway, turn.id)
        thread.join(WAIT_SECONDS)
    assert [event["text"] for event in found.events() if event["type"] == "text_delta"] == ["one"]


# --- pasted


@pytest.mark.parametrize("recording", recordings(), ids=lambda one: f"{one.dialect}-{one.name}")
def test_a_pasted_stream_of_every_dialect(pasting: Running, recording: Any) -> None:
    answer = pasting.ask("/inspect", recording.body)
    assert answer.status == 200, answer.body
    found = of_answer(answer.body)
    assert found.facts["dialects"]["upstream"] == recording.dialect
    assert len(found.kinds()) == len(recording.expected())


@pytest.fixture(scope="module")
def pasting(upstream: HostileUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with keeping(upstream, f"sqlite:///{tmp_path_factory.mktemp('pasted')}/store.db") as gateway:
        yield gateway


def test_a_recording_that_was_downloaded_can_be_dropped(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello", " world")
    with keeping(upstream, url, store=RAW) as gateway:
        gateway.ask("/v1/messages", asked("work/told", max_tokens=9))
        turn = kept(url)[-1]
        recording = gateway.ask(f"/turns/{turn.id}/raw").body
        stored, dropped = inspected(gateway, turn.id), of_answer(gateway.ask("/inspect", recording).body)
    assert dropped.rows == stored.rows
    assert dropped.facts["dialects"] == {"upstream": "openai_chat", "client": "anthropic"}


def test_the_fault_of_a_pasted_stream_is_reported(pasting: Running) -> None:
    for path, body, words in (
        ("/inspect", b"hello", "cannot be recognised"),
        ("/inspect", b"", "nothing to look at"),
        ("/inspect?as=cohere", b"{}", "cannot be shown as"),
        ("/inspect?from=klingon", b"{}", "no dialect"),
        ("/inspect?inband=klingon", b"{}", "no in-band format"),
        ("/inspect?sideways=1", b"{}", "is not a parameter of this path"),
    ):
        answer = pasting.ask(path, body)
        assert answer.status == 400, (path, answer.body)
        assert words in answer.json()["error"]["message"]
    assert {one["name"] for one in pasting.ask("/inspect").json()["dialects"]} == set(DIALECTS)


def test_injections_come_through_as_text(pasting: Running) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u202e\x1b[2J"
    call = {"index": 0, "id": "c", "function": {"name": evil, "arguments": "{}"}}
    found = of_answer(pasting.ask("/inspect", chunk({"content": evil}) + chunk({"tool_calls": [call]}, "tool_calls")).body)
    shown = json.dumps([found.rows, found.bars], ensure_ascii=False)
    assert "onerror" in shown
    assert "\u202e" not in shown
    assert "\x1b" not in shown


# --- commands and tests


def test_a_turn_as_curl_and_as_a_test(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello")
    keyed = {"work": {"dialect": "openai_chat", "base_url": f"{upstream.url}/v1", "key": "sk-very-secret-1234567890"}}
    with keeping(upstream, url, store=RAW, upstreams=keyed) as gateway:
        gateway.ask("/v1/messages", asked("work/told", max_tokens=9))
        turn = kept(url)[-1].id
        client = gateway.ask(f"/turns/{turn}/inspect/curl").body.decode()
        up = gateway.ask(f"/turns/{turn}/inspect/curl?of=upstream").body.decode()
        files = unzipped(gateway.ask(f"/turns/{turn}/inspect/test").body)
        everything = inspected(gateway, turn)
    assert f"curl -N {gateway.url}/v1/messages" in client
    assert "Hello <b>you</b>" in client
    assert f"curl -N {upstream.url}/v1/chat/completions" in up
    assert '"authorization: Bearer $UPSTREAM_KEY"' in up
    for text in (client, up, msgspec.json.encode(everything.lines).decode()):
        assert "very-secret" not in text
    assert sorted(name.rpartition(".")[2] for name in files) == ["jsonl", "py", "sse", "times"]


def test_a_turn_without_recorded_bytes_cannot_become_a_test(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello")
    with keeping(upstream, url) as gateway:
        gateway.ask("/v1/chat/completions", asked("work/told"))
        turn = kept(url)[-1].id
        for path in ("test", "curl?of=upstream"):
            answer = gateway.ask(f"/turns/{turn}/inspect/{path}")
            assert (answer.status, answer.json()["error"]["code"]) == (404, "no_raw")
        assert "/v1/chat/completions" in gateway.ask(f"/turns/{turn}/inspect/curl").body.decode()


# --- rights


def test_a_key_sees_its_own_turns_only(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello")
    keys = [{"name": name, "hash": digest_of(f"key-of-{name}-123456")} for name in ("ann", "bob")]
    ann, bob = ({"authorization": f"Bearer key-of-{name}-123456"} for name in ("ann", "bob"))
    with keeping(upstream, url, store=RAW, server={"keys": keys}) as gateway:
        gateway.ask("/v1/chat/completions", asked("work/told"), ann)
        turn = kept(url)[-1].id
        for path in ("inspect", "inspect/curl", "inspect/test"):
            assert gateway.ask(f"/turns/{turn}/{path}", headers=ann).status == 200
            assert gateway.ask(f"/turns/{turn}/{path}", headers=bob).status == 404
            assert gateway.ask(f"/turns/{turn}/{path}").status == 401
        assert gateway.ask("/inspect", chunk({"content": "x"}), bob).status == 200
        assert gateway.ask("/inspect", chunk({"content": "x"})).status == 401
        assert "$STREAMGLOT_KEY" in gateway.ask(f"/turns/{turn}/inspect/curl", headers=ann).body.decode()


def test_a_body_that_is_too_large_is_refused(upstream: HostileUpstream, url: str) -> None:
    with keeping(upstream, url, server={"max_body_bytes": 1000}) as gateway:
        assert gateway.ask("/inspect", b"x" * 1001).status == 413


# --- stages


def test_a_change_of_a_policy_is_shown_beside_the_original(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["leaky"] = text_script("Write to ", "ann@example.org", " today")
    policies = [{"use": "redact", "detectors": ["email"], "store_original": True}]
    with keeping(upstream, url, store=RAW, policies=policies) as gateway:
        gateway.ask("/v1/chat/completions", asked("work/leaky"))
        found = inspected(gateway, kept(url)[-1].id)
    assert any("ann@example.org" in one["text"] for one in found.removed)
    assert not any("ann@example.org" in text for text in found.rows["events"]["text"] + found.rows["client"]["text"])
    assert found.facts["verdicts"][0]["policy"] == "redact"
    assert found.facts["verdicts"][0]["original"] == "ann@example.org"
    own = [row for row, mark in enumerate(found.rows["events"]["mark"]) if mark & 4]
    assert own


def test_steps_and_tool_runs_are_in_the_waterfall(upstream: HostileUpstream, url: str) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'}}
    upstream.scripts["sums"] = [
        streamed(chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), sse("[DONE]")),
        text_script("It is 42."),
    ]
    with keeping(upstream, url, store=RAW, tools={"enabled": ["calculator"]}) as gateway:
        headers = {"x-streamglot-tools": "calculator"}
        gateway.ask("/v1/chat/completions", asked("work/sums"), headers)
        found = inspected(gateway, kept(url)[-1].id)
    assert [attempt["number"] for attempt in found.head["attempts"]] == [1, 2]
    assert [bar["label"] for bar in found.facts["bars"] if bar["kind"] == "tool"] == ["calculator"]
    assert [bar["kind"] for bar in found.bars] == ["call", "result", "text"]
    assert found.bars[-1]["step"] == 1
    assert len(found.facts["requests"]["upstream"]) == 2
    result = found.kinds().index("tool_result")
    assert found.rows["events"]["link"][result] == -1
    text = found.kinds().index("text_delta")
    assert found.rows["upstream"]["mark"][found.rows["events"]["link"][text]] == 2


def test_times_of_bytes_count_from_when_the_request_came() -> None:
    class Turn:
        frames: ClassVar[list[tuple[str, float]]] = []

        def frame(self, direction: str, at: float, data: bytes) -> None:
            self.frames.append((direction, at))

    turn: Any = Turn()
    recorder = TurnRecorder(turn, raw=True, waited=100.0)
    assert recorder.received is not None
    recorder.received(b"x")
    assert [direction for direction, at in turn.frames if at >= 100.0] == ["up"]
