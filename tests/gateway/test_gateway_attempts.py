"""Retries and fallbacks: attempts, pauses, weights, model names, circuit breakers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from gateway.conftest import SHORT_FIRST_BYTE, upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, path_of
from gateway.raw import raw
from gateway.running import running
from gateway.scenarios import PLAIN, SCENARIOS, TEXT_AND_CALL, text_chunk
from gateway.upstream import Cut, Hang, HostileUpstream, Reset, Script, sse, streamed, unfinished, whole
from streamglot import ConfigError
from streamglot.upstream.http import connection
from streamglot.upstream.routing.routes import Route, Routes, Target
from streamglot.upstream.settings import Upstream
from waiting import WAIT_SECONDS, until

BUSY = whole({"error": {"message": "busy"}}, 503)
FINE = streamed(PLAIN)
TOO_MANY = whole({"error": {"message": "slow down"}}, 429, retry_after="0.05")
FAULTS: dict[str, Script] = {
    "503": BUSY,
    "500": whole(b"oops", 500, "text/plain"),
    "429": TOO_MANY,
    "529": whole({"error": {"message": "overloaded"}}, 529),
    "cut": [Cut()],
    "reset": [Reset()],
    "empty": whole(b"", media_type="text/event-stream"),
    "error_in_200": whole({"error": {"message": "busy", "code": 503}}),
    "error_event": streamed(sse({"error": {"message": "busy", "code": 503}})),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_before_the_first_event_is_tried_again(upstream: HostileUpstream, fault: str) -> None:
    model = f"again-{fault}"
    upstream.scripts[model] = [FAULTS[fault], FAULTS[fault], FINE]
    with running({"upstreams": upstreams_at(upstream.url, attempts=3, pause=0.01)}) as gateway:
        found = asked(gateway, "anthropic", f"work/{model}", x_request_id=model)
        assert (found.text, found.error) == ("Hello world", None)
        assert gateway.line(model)["attempts"] == 3
    assert len(upstream.requests(model)) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_permanent_errors_are_not_retried(upstream: HostileUpstream, status: int) -> None:
    model = f"once-{status}"
    upstream.scripts[model] = whole({"error": {"message": "no"}}, status)
    with running({"upstreams": upstreams_at(upstream.url, attempts=3)}) as gateway:
        assert asked(gateway, "openai_chat", f"work/{model}").status == status
    assert len(upstream.requests(model)) == 1


def test_attempts_are_limited_and_their_delays_grow(upstream: HostileUpstream) -> None:
    upstream.scripts["bounded"] = BUSY
    with running({"upstreams": upstreams_at(upstream.url, attempts=4, pause=0.1)}) as gateway:
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/bounded"))
    assert answer.status == 503
    assert answer.headers["x-should-retry"] == "false", "the client must not multiply our attempts"
    times = [seen.at for seen in upstream.requests("bounded")]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) == 4
    # Timers count in milliseconds, and may be early by one.
    assert gaps[0] >= 0.045
    assert gaps[1] >= 0.095
    assert gaps[2] >= 0.195


def test_retry_after_is_respected(upstream: HostileUpstream) -> None:
    upstream.scripts["patient"] = [whole({"error": {"message": "slow down"}}, 429, retry_after="0.4"), FINE]
    upstream.scripts["impatient"] = [whole({"error": {"message": "slow down"}}, 429, retry_after="60"), FINE]
    with running({"upstreams": upstreams_at(upstream.url, attempts=3, pause=0.01)}) as gateway:
        assert asked(gateway, "openai_chat", "work/patient").text == "Hello world"
        answer = gateway.ask("/v1/messages", body_of("anthropic", "work/impatient"))
    first, second = upstream.requests("patient")
    assert second.at - first.at > 0.2  # as asked, and not the 0.01 of its own
    assert answer.status == 429
    assert answer.headers["retry-after"] == "60"
    assert len(upstream.requests("impatient")) == 1, "longer than a client waits: it is told instead"


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "300ms", "x-ratelimit-reset-tokens": "1m2s"},
        {"anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-requests-reset": "2001-01-01T00:00:00Z"},
        {"x-ratelimit-reset": "1000000000001"},
        {"retry-after": "0.3", "x-ratelimit-reset-requests": "1h"},
    ],
)
def test_a_rate_limit_is_waited_for(upstream: HostileUpstream, headers: dict[str, str]) -> None:
    model = f"limited-{next(iter(headers))}"
    fields = {name.replace("-", "_"): value for name, value in headers.items()}
    upstream.scripts[model] = [whole({"error": {"message": "slow down"}}, 429, **fields), FINE]
    with running({"upstreams": upstreams_at(upstream.url, attempts=2, pause=0.001)}) as gateway:
        assert asked(gateway, "anthropic", f"work/{model}").text == "Hello world"
    first, second = upstream.requests(model)
    if any("0.3" in value or "300ms" in value for value in headers.values()):
        assert second.at - first.at > 0.2, "as asked, and not the 0.001 of its own"


def test_retry_seconds_bounds_all_waits_of_a_request(upstream: HostileUpstream) -> None:
    upstream.scripts["bounded-wait"] = whole({"error": {"message": "slow down"}}, 429, retry_after="0.2")
    with running({"upstreams": upstreams_at(upstream.url, attempts=9, pause=0.001, retry_seconds=0.5)}) as gateway:
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/bounded-wait"))
    assert answer.status == 429
    assert answer.headers["retry-after"] == "1"
    assert len(upstream.requests("bounded-wait")) == 3


def test_a_wait_is_shown_while_it_lasts(upstream: HostileUpstream) -> None:
    upstream.scripts["shown-wait"] = whole({"error": {"message": "slow down"}}, 429, retry_after="25")
    with (
        running({"upstreams": upstreams_at(upstream.url, attempts=3)}) as gateway,
        raw(gateway.port) as one,
    ):
        one.post("/v1/chat/completions", body_of("openai_chat", "work/shown-wait"), {"x-request-id": "shown-wait"})
        until(lambda: any(row["wait"] for row in gateway.ask("/overview").json()["open"]))
        [row] = gateway.ask("/overview").json()["open"]
        with raw(gateway.port) as feed:
            feed.send(b"GET /approvals/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            seen = feed.read_until(b"shown-wait")
    assert row["wait"] == {"upstream": "work", "seconds": 25.0, "attempt": 2, "attempts": 3, "asked": True}
    assert b'"waits":[{"request_id":"shown-wait"' in seen


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_nothing_is_tried_again_once_an_event_has_left(upstream: HostileUpstream, client: str) -> None:
    model = f"left-{client}"
    upstream.scripts[model] = [unfinished(sse(text_chunk("Hello"))), FINE]
    with running({"upstreams": upstreams_at(upstream.url, attempts=3, pause=0.01)}) as gateway:
        found = asked(gateway, client, f"work/{model}")
    assert found.text == "Hello"
    assert found.error is not None
    assert len(upstream.requests(model)) == 1


def two(upstream: HostileUpstream, **more: Any) -> dict[str, Any]:
    """A first and a second upstream, of different dialects."""
    every = upstreams_at(upstream.url, **more)
    return {"first": every["work"], "second": every["claude"]}


def route(**more: Any) -> dict[str, Any]:
    target = {"upstream": "first", "model": "first-model"}
    return {"models": ["ours"], "to": [target], "fallbacks": [{"upstream": "second", "model": "second-model"}], **more}


@pytest.mark.parametrize("fault", [*FAULTS, "401", "404", "hang"])
def test_a_fallback_takes_over(upstream: HostileUpstream, fault: str) -> None:
    statuses: dict[str, Script] = {"401": whole({"error": "no"}, 401), "404": whole({"error": "no"}, 404), "hang": [Hang()]}
    upstream.scripts["first-model"] = {**FAULTS, **statuses}[fault]
    upstream.scripts["second-model"] = SCENARIOS["anthropic_all"].script
    upstreams = two(upstream)
    if fault == "hang":
        upstreams["first"]["timeouts"] = SHORT_FIRST_BYTE
    with running({"upstreams": upstreams, "routes": [route()]}) as gateway:
        answer = gateway.ask(path_of("openai_chat", "ours"), body_of("openai_chat", "ours", False), {"x-request-id": "fell-back"})
        assert answer.json()["choices"][0]["message"]["content"] == "Let me look."
        assert answer.headers["x-streamglot-upstream"] == "second"
        line = gateway.line("fell-back")
    assert (line["upstream"], line["upstream_dialect"], line["model"]) == ("second", "anthropic", "ours")


def test_a_bad_request_does_not_use_the_fallback(upstream: HostileUpstream) -> None:
    upstream.scripts["first-model"] = whole({"error": {"message": "bad field"}}, 400)
    before = len(upstream.requests("second-model"))
    with running({"upstreams": two(upstream), "routes": [route()]}) as gateway:
        assert asked(gateway, "openai_chat", "ours").status == 400
    assert len(upstream.requests("second-model")) == before


def test_no_fallback_once_an_event_has_left(upstream: HostileUpstream) -> None:
    upstream.scripts["first-model"] = unfinished(sse(text_chunk("Hello")))
    before = len(upstream.requests("second-model"))
    with running({"upstreams": two(upstream), "routes": [route()]}) as gateway:
        found = asked(gateway, "anthropic", "ours")
    assert found.text == "Hello"
    assert found.error is not None
    assert len(upstream.requests("second-model")) == before


def test_a_failing_upstream_opens_its_circuit_breaker(upstream: HostileUpstream) -> None:
    upstream.scripts["failing"] = BUSY
    upstreams = upstreams_at(upstream.url, breaker={"failures": 3, "seconds": 3600})
    with running({"upstreams": upstreams}) as gateway:
        for _ in range(3):
            assert asked(gateway, "openai_chat", "work/failing").status == 503
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/failing"))
        assert answer.status == 503
        assert answer.json()["error"]["code"] == "circuit_open"
        assert "busy" in answer.json()["error"]["message"], "the last real cause"
        assert 3000 < int(answer.headers["retry-after"]) <= 3600
        assert len(upstream.requests("failing")) == 3, "it was not asked"
        assert b'streamglot_upstream_open{upstream="work"} 1.0' in gateway.ask("/metrics").body
        assert gateway.ask("/ready").json()["upstreams"]["work"] == "open"
        pool = gateway.gateway.services.pool
        pool.breakers(pool.routes.upstreams["work"])._models["failing"].opened -= 3600  # an hour passes
        upstream.scripts["failing"] = FINE
        assert asked(gateway, "openai_chat", "work/failing").text == "Hello world"
        assert gateway.ask("/ready").json()["upstreams"]["work"] == "closed"


def test_client_errors_do_not_open_the_circuit_breaker(upstream: HostileUpstream) -> None:
    upstream.scripts["refusing"] = whole({"error": {"message": "no"}}, 400)
    with running({"upstreams": upstreams_at(upstream.url, breaker={"failures": 2, "seconds": 9})}) as gateway:
        assert [asked(gateway, "openai_chat", "work/refusing").status for _ in range(4)] == [400] * 4


def test_model_names_are_mapped_for_the_upstream(upstream: HostileUpstream) -> None:
    upstream.scripts["theirs"] = streamed(TEXT_AND_CALL)
    chat = {**upstreams_at(upstream.url)["work"], "models": {"ours": "theirs"}}
    with running({"server": {"fallback_model": "none"}, "upstreams": {"mine": chat}}) as gateway:
        assert asked(gateway, "openai_chat", "ours").text == "Let me look."
        assert asked(gateway, "openai_chat", "mine/ours").text == "Let me look."
        assert asked(gateway, "openai_chat", "nothing").status == 404
        assert [model["id"] for model in gateway.ask("/v1/models").json()["data"]] == ["ours", "replay"]
        assert gateway.ask("/v1/models/nothing").status == 404


def test_requests_are_distributed_by_weight() -> None:
    upstreams = [Upstream(name=name, base_url="http://x") for name in ("a", "b")]
    routes = Routes(upstreams, [Route(["*"], [Target("a", weight=1), Target("b", weight=3)])])
    chosen = [routes.find("m", lambda point=point: point / 100)[0].upstream.name for point in range(100)]  # type: ignore[misc]  # a default binds the variable
    assert chosen.count("a") == 25
    assert len(routes.find("m", lambda: 0.0)) == 2, "the other one is still there if the first fails"


@pytest.mark.parametrize("targets", [[], [Target("a", weight=-1)], [Target("a", weight=0)], [Target("nobody")]])
def test_a_route_without_an_upstream_is_refused(targets: list[Target]) -> None:
    with pytest.raises(ConfigError):
        Routes([Upstream(name="a", base_url="http://x")], [Route(["*"], targets)])


def test_a_narrow_pattern_takes_precedence_over_a_wide_one() -> None:
    wide, narrow = Upstream(name="wide"), Upstream(name="narrow", models=["claude-*"])
    named = Upstream(name="named", models=["claude-x"])
    routes = Routes([wide, narrow, named], [])
    assert [one.upstream.name for one in routes.find("claude-x", lambda: 0.0)] == ["named", "narrow"]
    assert [one.upstream.name for one in routes.find("other", lambda: 0.0)] == ["wide"]


def test_a_catch_all_gets_no_prompt_that_failed_elsewhere() -> None:
    first, second = Upstream(name="first", models={"*": "any"}), Upstream(name="second")
    named = [Upstream(name=name, models=["shared", "*"]) for name in ("one", "two")]
    assert [one.upstream.name for one in Routes([first, second], []).find("m", lambda: 0.0)] == ["first"]
    both = Routes([second, *named], []).find("shared", lambda: 0.0)
    assert [one.upstream.name for one in both] == ["one", "two"], "both name it: they are a route of two"


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_a_failed_prompt_stays_with_its_upstream_and_the_client_gets_that_error(upstream: HostileUpstream, client: str) -> None:
    model = f"own-{client}"
    upstream.scripts[model] = whole({"error": {"message": "the plan has run out"}}, 402)
    named = {**upstreams_at(upstream.url, attempts=1)["work"], "models": [model]}
    other = upstreams_at(upstream.url, attempts=1)["claude"]
    with running({"upstreams": {"work": named, "claude": other}}) as gateway:
        found = asked(gateway, client, model)
    assert found.status == 402
    assert "the plan has run out" in str(found.error)
    assert len(upstream.requests(model)) == 1


def test_if_all_of_a_route_fail_the_client_gets_the_first_error(upstream: HostileUpstream) -> None:
    upstream.scripts["first-model"] = whole({"error": {"message": "quota used up"}}, 429)
    upstream.scripts["second-model"] = whole({"error": {"message": "wrong key"}}, 401)
    with running({"upstreams": two(upstream, attempts=1), "routes": [route()]}) as gateway:
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "ours", False))
    assert answer.status == 429
    assert "quota used up" in answer.json()["error"]["message"]


def test_a_broken_model_does_not_block_the_others_of_its_upstream(upstream: HostileUpstream) -> None:
    upstream.scripts["broken"], upstream.scripts["sound"] = BUSY, FINE
    settings = {"attempts": 3, "pause": 0.001, "breaker": {"failures": 2, "seconds": 3600}}
    with running({"upstreams": upstreams_at(upstream.url, **settings)}) as gateway:
        for _ in range(2):
            asked(gateway, "openai_chat", "work/broken")
        assert len(upstream.requests("broken")) == 6, "the attempts of one request count once"
        assert asked(gateway, "openai_chat", "work/sound").text == "Hello world"
        blocked = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/broken"))
        assert blocked.json()["error"]["code"] == "circuit_open"
        assert len(upstream.requests("broken")) == 6
        states = {row["name"]: row for row in gateway.ask("/overview").json()["upstreams"]}
        assert states["work"]["state"] == "closed"
        assert list(states["work"]["blocked_models"]) == ["broken"]
        assert gateway.ask("/ready").status == 200


def test_an_upstream_that_cannot_be_reached_is_blocked_for_all_models() -> None:
    upstreams = upstreams_at("http://127.0.0.1:9", attempts=1, breaker={"failures": 2, "seconds": 3600})
    with running({"upstreams": {"box": upstreams["work"]}}) as gateway:
        codes = []
        for model in ("a", "b", "c"):
            answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", f"box/{model}"))
            codes.append(answer.json()["error"]["code"])
    assert codes == ["upstream_unreachable", "upstream_unreachable", "circuit_open"]
    assert "cannot be reached" in answer.json()["error"]["message"]


@pytest.mark.parametrize("cut", ["whole", "end_comes_later"])
def test_connections_are_used_again(upstream: HostileUpstream, monkeypatch: pytest.MonkeyPatch, cut: str) -> None:
    """The client has its answer before the upstream has ended its own: only after that can the connection be used again."""
    monkeypatch.setattr(connection, "DRAIN_SECONDS", WAIT_SECONDS)
    model = f"pooled-{cut}"
    upstream.scripts[model] = FINE if cut == "end_comes_later" else [b"".join(step for step in FINE if isinstance(step, bytes))]
    with running({"upstreams": upstreams_at(upstream.url)}) as gateway:
        for number in range(5):
            assert asked(gateway, "openai_chat", f"work/{model}", x_request_id=f"{model}-{number}").text == "Hello world"
            until(lambda: not gateway.gateway.requests.running)  # the rest of the answer is read after the line is logged
    assert len({seen.connection for seen in upstream.requests(model)}) == 1


def test_a_connection_that_was_closed_meanwhile_costs_no_attempt(
    upstream: HostileUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DRAIN_SECONDS", WAIT_SECONDS)
    upstream.scripts["stale"] = [FINE, [Cut()], FINE]
    with running({"upstreams": upstreams_at(upstream.url, attempts=1)}) as gateway:
        for name in ("fresh", "stale"):
            assert asked(gateway, "openai_chat", "work/stale", x_request_id=name).text == "Hello world"
            line = gateway.line(name)
            until(lambda: not gateway.gateway.requests.running)
    assert line["attempts"] == 1
    first, second, third = (seen.connection for seen in upstream.requests("stale"))
    assert first == second != third
