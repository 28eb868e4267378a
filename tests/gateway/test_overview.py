"""The overview, and changes to sessions: what the page needs beside the dialects."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Generator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.archived import with_store
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, path_of
from gateway.raw import RawClient
from gateway.running import Running, running
from gateway.scenarios import DONE, PLAIN, called, calls, text_chunk
from gateway.stored_turns import chunk, keeping, kept, text_script
from gateway.upstream import Hang, HostileUpstream, Until, sse, streamed, unfinished, whole
from streamglot.gateway.observe.live import MAX_WATCHERS
from streamglot.messages import TextPart
from waiting import WAIT_SECONDS, until

CHAT = path_of("openai_chat", "m")
KEYS = [{"name": name, "hash": sha256(name.encode()).hexdigest()} for name in ("ada", "bob")]


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept.db"


def states(
    gateway: Running, headers: dict[str, str] | None = None, path: str = "/overview/events"
) -> Generator[dict[str, Any], None, None]:
    """The states that a watcher is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=WAIT_SECONDS)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        assert answer.status == 200
        for line in answer:
            if line.startswith(b"data: "):
                yield msgspec.json.decode(line[6:])
    finally:
        connection.close()


def test_a_running_stream_is_seen_and_stopped(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["slow"] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url) as gateway:
        client = RawClient(gateway.port)
        client.post(CHAT, body_of("openai_chat", "work/slow"), {"x-request-id": "watched"})
        client.read_until(b"first")
        seen = next(state for state in states(gateway) if state["open"])
        (running_now,) = seen["open"]
        assert running_now["request_id"] == "watched"
        assert running_now["model"] == "work/slow"
        assert running_now["upstream"] == "work"
        assert running_now["turn_id"]
        assert running_now["first_event"] > 0
        assert gateway.ask("/overview/nothing/stop", {}).status == 404
        assert gateway.ask("/overview/watched/stop", {"own": True}).json() == {"id": "watched", "stopping": True}
        upstream.wait_for("slow", lambda seen: seen.closed)
        assert b'"finish_reason":"stop"' in client.read_until(b"[DONE]")
        after = next(state for state in states(gateway) if not state["open"])
        assert after["totals"]["requests"] == 1
        assert after["totals"]["p50"] > 0
        client.hang_up()
        (turn,) = kept(url)
        assert turn.ending == "cancelled"


def test_a_whole_answer_that_is_stopped_does_not_look_complete(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["slow"] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url) as gateway:
        answers: list[Any] = []
        body = body_of("openai_chat", "work/slow", stream=False)
        asking = threading.Thread(target=lambda: answers.append(gateway.ask(CHAT, body, headers={"x-request-id": "watched"})))
        asking.start()
        until(lambda: any(row["upstream"] for row in gateway.ask("/overview").json()["open"]))
        assert gateway.ask("/overview/watched/stop", {"own": True}).json() == {"id": "watched", "stopping": True}
        asking.join()
        upstream.wait_for("slow", lambda seen: seen.closed)
        (answer,) = answers
        assert (answer.status, answer.json()["error"]["code"]) == (499, "cancelled")
        (turn,) = kept(url)
        assert turn.error is not None
        assert turn.error.code == "cancelled"


def test_an_answer_whose_upstream_does_not_close_disappears_from_the_state(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["slow-to-close"] = unfinished(PLAIN, end=Hang())
    with keeping(upstream, url) as gateway:
        watching = states(gateway)
        next(watching)
        gateway.ask(CHAT, body_of("openai_chat", "work/slow-to-close"))
        assert next(state for state in watching if state["totals"]["requests"] and not state["open"])


@pytest.mark.parametrize(
    ("dialect", "body"),
    [*((dialect, {}) for dialect in sorted(CLIENT_DIALECTS)), ("openai_chat", None), ("openai_chat", {"own": "yes"})],
)
def test_a_stream_that_the_operator_stopped_ends_with_an_error(
    upstream: HostileUpstream, url: str, dialect: str, body: dict[str, Any] | None
) -> None:
    """Its client did not ask for that, and must not take the answer for a complete one."""
    go_on = threading.Event()
    upstream.scripts["stopped-by-operator"] = text_script("first", Until(go_on))
    with keeping(upstream, url) as gateway:
        found: list[Any] = []
        model = "work/stopped-by-operator"
        asking = threading.Thread(target=lambda: found.append(asked(gateway, dialect, model, x_request_id="watched")))
        asking.start()
        until(lambda: any(row["first_event"] for row in gateway.ask("/overview").json()["open"]))
        assert gateway.ask("/overview/watched/stop", body, method="POST").status == 200
        asking.join()
        upstream.wait_for("stopped-by-operator", lambda seen: seen.closed)
        go_on.set()
        (answer,) = found
        assert "cancelled by the operator" in answer.error
        (turn,) = kept(url)
        assert turn.ending == "error"
        assert turn.error is not None
        assert turn.error.code == "cancelled_by_operator"
        assert turn.response is not None
        assert turn.response.choices[0].parts == [TextPart("first")], "the partial answer is stored"


@pytest.mark.parametrize("on_error", ["refuse", "forward"])
@pytest.mark.parametrize("own", [False, True])
def test_a_held_call_is_not_released_when_its_request_is_stopped(
    upstream: HostileUpstream, url: str, own: bool, on_error: str
) -> None:
    """The upstream has finished its answer, but the client does not have all of it."""
    upstream.scripts["stopped-held"] = streamed(
        sse(text_chunk("Hm."), calls(called(0, "call_a", "weather", "{}"), finish="tool_calls"), DONE)
    )
    policies = [{"use": "human_approval", "on_error": on_error}]
    with keeping(upstream, url, policies=policies) as gateway:
        found: list[Any] = []
        model = "work/stopped-held"
        asking = threading.Thread(
            target=lambda: found.append(asked(gateway, "anthropic", model, tools=("weather",), x_request_id="held"))
        )
        asking.start()
        until(lambda: gateway.ask("/approvals").json()["approvals"])
        gateway.ask("/overview/held/stop", {"own": own})
        asking.join()
        (answer,) = found
        assert (answer.text, answer.calls) == ("Hm.", [])
        assert ("cancelled by the operator" in (answer.error or "")) is not own
        (turn,) = kept(url)
        assert turn.ending == ("cancelled" if own else "error")
        assert gateway.ask("/approvals").json()["approvals"] == []


def test_a_request_that_the_operator_stops_before_its_first_word_is_refused(upstream: HostileUpstream, url: str) -> None:
    go_on = threading.Event()
    upstream.scripts["stopped-early"] = text_script(Until(go_on))
    with keeping(upstream, url) as gateway:
        for stream in (True, False):
            found: list[Any] = []
            body = body_of("openai_chat", "work/stopped-early", stream)
            asking = threading.Thread(
                target=lambda body=body, found=found: found.append(gateway.ask(CHAT, body, {"x-request-id": "watched"}))
            )
            asking.start()
            until(lambda: gateway.ask("/overview").json()["open"])
            assert gateway.ask("/overview/watched/stop", {}).status == 200
            asking.join()
            assert found[0].status == 403
            assert found[0].json()["error"]["code"] == "cancelled_by_operator"
            assert found[0].headers["x-should-retry"] == "false"
        go_on.set()


def test_errors_are_counted_and_link_to_their_turns(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["refused"] = whole({"error": {"message": "no such <b>model</b>"}}, 404)
    upstream.scripts["told"] = text_script("Hello")
    with keeping(upstream, url) as gateway:
        for model in ("refused", "told", "told"):
            gateway.ask(CHAT, body_of("openai_chat", f"work/{model}"))
        state = gateway.ask("/overview").json()
        assert state["operator"]
        assert (state["totals"]["requests"], state["totals"]["errors"]) == (3, 1)
        assert state["totals"]["output_tokens"] == 8
        assert sum(minute["requests"] for minute in state["minutes"]) == 3
        assert {row["name"]: row["requests"] for row in state["by_model"]} == {"work/refused": 1, "work/told": 2}
        (error,) = state["last_errors"]
        assert error["turn_id"]
        assert error["error"] == state["errors"][0]["code"]
        assert "no such <b>model</b>" in error["message"]
        assert {row["name"]: row["state"] for row in state["upstreams"]}["work"] == "closed"


def test_embeddings_are_counted_too(upstream: HostileUpstream, url: str) -> None:
    answer = {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 5, "total_tokens": 5}}
    upstream.scripts["vectors"] = whole(answer)
    with keeping(upstream, url) as gateway:
        assert gateway.ask("/v1/embeddings", {"model": "work/vectors", "input": "q"}).status == 200
        totals = gateway.ask("/overview").json()["totals"]
        assert (totals["requests"], totals["input_tokens"]) == (1, 5)


def test_a_key_sees_its_own_exchanges_alone(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello")
    upstream.scripts["slow"] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url, server={"keys": KEYS}) as gateway:
        assert gateway.ask("/overview").status == 401
        gateway.ask(CHAT, body_of("openai_chat", "work/told"), bearer("ada"))
        client = RawClient(gateway.port)
        client.post(CHAT, body_of("openai_chat", "work/slow"), {"x-request-id": "adas", **bearer("ada")})
        client.read_until(b"first")
        mine = gateway.ask("/overview", headers=bearer("ada")).json()
        assert not mine["operator"]
        assert (mine["totals"]["requests"], len(mine["open"])) == (1, 1)
        others = gateway.ask("/overview", headers=bearer("bob")).json()
        assert (others["totals"]["requests"], others["open"], others["upstreams"]) == (0, [], [])
        assert gateway.ask("/overview/adas/stop", {}, bearer("bob")).status == 404
        assert gateway.ask("/overview/adas/stop", {}, bearer("ada")).status == 200
        client.hang_up()


def test_a_key_in_the_query_string_is_ignored(upstream: HostileUpstream, url: str) -> None:
    with keeping(upstream, url, server={"keys": KEYS}) as gateway:
        assert gateway.ask("/overview?key=ada").status == 401
        assert gateway.ask("/overview", headers=bearer("ada")).status == 200


def test_a_watcher_that_is_not_admitted_any_more_is_sent_nothing(url: str) -> None:
    with running({"store": {"url": url}}) as gateway:
        overview, approvals = states(gateway), states(gateway, path="/approvals/events")
        assert next(overview)["operator"]
        assert next(approvals) == {"approvals": []}
        secret = with_store(url, lambda store: store.keys.add("ada"))[1]
        until(lambda: gateway.ask("/overview").status == 401)
        assert gateway.ask(CHAT, body_of("openai_chat", "replay"), bearer(secret)).status == 200
        assert all(state["totals"]["requests"] == 0 for state in overview), "a key's exchange is not for those without one"
        assert list(approvals) == []
        assert "Traceback" not in str(gateway.lines)


def test_watchers_are_limited_and_leave_no_trace(gateway: Running) -> None:
    open_now = [states(gateway) for _ in range(MAX_WATCHERS["overview"])]
    for watcher in open_now:
        assert next(watcher)["version"]
    refused = gateway.ask("/overview/events")
    assert (refused.status, refused.json()["error"]["code"]) == (503, "too_many_watchers")
    for watcher in open_now:
        watcher.close()
    until(lambda: not gateway.gateway.recording.live.watchers("overview"), lambda: "a watcher that is gone is still counted")


def test_the_models_with_what_is_known_of_them(gateway: Running) -> None:
    found = gateway.ask("/overview/models").json()
    replay = next(model for model in found["models"] if model["name"] == "replay")
    assert replay["upstream"] == "replay"
    assert {row["upstream"] for row in found["patterns"]} >= {"work"}
    assert found["tools"] == []


@pytest.mark.parametrize(
    ("models", "shown"),
    [(["gpt-*"], {"one"}), (["claude-3"], {"two"}), (["two/*"], {"two"}), (["*"], {"one", "two"}), (["x"], set()), ([], set())],
)
def test_a_key_sees_the_patterns_that_have_a_model_for_it(models: list[str], shown: set[str]) -> None:
    at = {"base_url": "http://127.0.0.1:9/v1", "dialect": "openai_chat"}
    upstreams = {"one": {**at, "models": ["gpt-4*"]}, "two": {**at, "models": ["claude-?"]}}
    keys = [{"name": "ada", "hash": sha256(b"ada").hexdigest(), "models": models}]
    with running({"server": {"keys": keys}, "upstreams": upstreams}) as gateway:
        found = gateway.ask("/overview/models", headers=bearer("ada")).json()
        assert {row["upstream"] for row in found["patterns"]} == shown


def test_a_session_gets_another_title(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello")
    with keeping(upstream, url) as gateway:
        answer = gateway.ask(CHAT, body_of("openai_chat", "work/told"))
        kept(url)
        path = f"/sessions/{answer.headers['x-streamglot-session']}"
        assert gateway.ask(path).json()["session"]["title"] == "q"
        assert gateway.ask(path, {"title": "  Ünder \n way "}, method="PATCH").json()["title"] == "Ünder way"
        assert gateway.ask("/sessions").json()["data"][0]["title"] == "Ünder way"
        assert gateway.ask(path, {"title": ""}, method="PATCH").json()["title"] == "q"
        for wrong in ({}, {"title": 1}, {"title": "a", "name": "b"}):
            assert gateway.ask(path, wrong, method="PATCH").status == 400
        assert gateway.ask("/sessions/ses_none", {"title": "a"}, method="PATCH").status == 404


def test_a_session_is_removed_with_its_messages(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello")
    upstream.scripts["slow"] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url) as gateway:
        answer = gateway.ask(CHAT, body_of("openai_chat", "work/told"))
        kept(url)
        id = answer.headers["x-streamglot-session"]
        client = RawClient(gateway.port)
        client.post(CHAT, body_of("openai_chat", "work/slow"), {"x-streamglot-session": id, "x-request-id": "slow"})
        client.read_until(b"first")
        kept(url, lambda found: len(found) == 2)
        busy = gateway.ask(f"/sessions/{id}", method="DELETE")
        assert (busy.status, busy.json()["error"]["code"]) == (409, "session_busy")
        gateway.ask("/overview/slow/stop", {})
        kept(url)
        assert gateway.ask(f"/sessions/{id}", method="DELETE").json() == {"id": id, "turns": 2}
        assert gateway.ask(f"/sessions/{id}").status == 404
        assert gateway.ask("/turns").json()["data"] == []
        assert gateway.ask("/search?q=first").json()["data"] == []
        client.hang_up()


def test_a_key_changes_its_own_sessions_alone(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello")
    with keeping(upstream, url, server={"keys": KEYS}) as gateway:
        answer = gateway.ask(CHAT, body_of("openai_chat", "work/told"), bearer("ada"))
        kept(url)
        path = f"/sessions/{answer.headers['x-streamglot-session']}"
        assert gateway.ask(path, {"title": "mine"}, bearer("bob"), method="PATCH").status == 404
        assert gateway.ask(path, headers=bearer("bob"), method="DELETE").status == 404
        assert gateway.ask(path, headers=bearer("ada"), method="DELETE").status == 200


def test_nothing_is_changed_where_nothing_is_kept() -> None:
    with running() as gateway:
        assert gateway.ask("/sessions/x", {"title": "a"}, method="PATCH").status == 404
        assert gateway.ask("/sessions/x", method="DELETE").status == 404


def test_approvals_are_announced_and_withdrawn(upstream: HostileUpstream, url: str) -> None:
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "deploy", "arguments": "{}"}}
    upstream.scripts["held"] = streamed(chunk({"tool_calls": [call]}), chunk({}, "tool_calls"), sse("[DONE]"))
    policies = [{"use": "human_approval", "tools": ["deploy"]}]
    with keeping(upstream, url, policies=policies, server={"keys": KEYS}) as gateway:
        assert gateway.ask("/approvals/events").status == 401
        mine, others = states(gateway, bearer("ada"), "/approvals/events"), states(gateway, bearer("bob"), "/approvals/events")
        assert next(mine) == next(others) == {"approvals": []}
        client = RawClient(gateway.port)
        client.post(CHAT, body_of("openai_chat", "work/held"), bearer("ada"))
        (asked,) = next(mine)["approvals"]
        assert asked["tool"] == "deploy"
        assert gateway.ask(f"/approvals/{asked['id']}", {"approved": True}, bearer("bob")).status == 404
        assert gateway.ask(f"/approvals/{asked['id']}", {"approved": True}, bearer("ada")).status == 200
        assert next(mine) == {"approvals": []}
        client.read_until(b"[DONE]")
        client.hang_up()
        mine.close()
        others.close()


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"host": "evil.example"}])
def test_other_pages_change_and_see_nothing(upstream: HostileUpstream, url: str, headers: dict[str, str]) -> None:
    with keeping(upstream, url) as gateway:
        for method, path in (
            *(("GET", path) for path in ("/overview", "/overview/events", "/overview/models", "/approvals/events", "/sessions")),
            *(("POST", path) for path in ("/overview/x/stop", "/approvals/x", "/agui")),
            *((method, "/sessions/x") for method in ("PATCH", "DELETE")),
        ):
            assert gateway.ask(path, None if method == "GET" else {}, headers, method).status == 403, path
