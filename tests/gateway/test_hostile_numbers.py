"""Numbers, names and codes that an upstream or a client makes up: every request is answered, and the gateway continues."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gateway.conftest import LONG_TIMEOUTS, upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, asked, body_of, path_of, understood
from gateway.running import Running, running
from gateway.scenarios import DONE, END, PLAIN, text_chunk
from gateway.upstream import UPSTREAM_NAMES, Hang, HostileUpstream, Script, Seen, head, sse, streamed, whole
from streamglot.engine.attempts import check_headers, retry_after_of
from streamglot.engine.content_log import ContentLog
from streamglot.engine.stats import ID_CHARS, ExchangeRecord, clean_id
from streamglot.errors import RequestError, StreamglotError, UpstreamRefused
from streamglot.events import StreamError
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.gateway.observe import log as logs
from streamglot.gateway.observe.log import Log
from streamglot.upstream.rate_limits import LONGEST_RETRY, retry_seconds
from streamglot.upstream.routing.routes import MODEL_CHARS, Route, Routes, Target
from streamglot.upstream.settings import Upstream
from waiting import until

CHAT = "/v1/chat/completions"


# --- usage below zero, and the clock


def used(prompt: Any, completion: Any) -> dict[str, Script]:
    """The same answer of an upstream of each dialect, with this usage."""
    text = {"type": "output_text", "text": "Hello", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    response = {
        "id": "r",
        "object": "response",
        "status": "completed",
        "output": [message],
        "usage": {"input_tokens": prompt, "output_tokens": completion, "total_tokens": -7},
    }
    return {
        "openai_chat": streamed(
            sse(
                text_chunk("Hello"),
                END,
                {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}},
                DONE,
            )
        ),
        "openai_completions": streamed(
            sse(
                {"choices": [{"index": 0, "text": "Hello", "finish_reason": "stop"}]},
                {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}},
                DONE,
            )
        ),
        "openai_responses": streamed(sse({"type": "response.completed", "response": response})),
        "anthropic": streamed(
            sse(
                {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": prompt, "output_tokens": 1}}},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Hello"}},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": completion}},
                {"type": "message_stop"},
            )
        ),
        "gemini": streamed(
            sse(
                {
                    "candidates": [{"content": {"parts": [{"text": "Hello"}]}, "finishReason": "STOP"}],
                    "usageMetadata": {"promptTokenCount": prompt, "candidatesTokenCount": completion},
                }
            )
        ),
        "ollama": streamed(
            msgspec.json.encode({"message": {"content": "Hello"}, "done": False})
            + b"\n"
            + msgspec.json.encode(
                {"message": {"content": ""}, "done": True, "prompt_eval_count": prompt, "eval_count": completion}
            )
            + b"\n",
            media_type="application/x-ndjson",
        ),
    }


@pytest.mark.parametrize("dialect", list(used(1, 1)))
def test_usage_below_zero_does_not_stop_the_clock(upstream: HostileUpstream, dialect: str) -> None:
    """Timeouts, keep-alives and metrics continue: all of them depend on one periodic task."""
    upstream.scripts["below"] = used(-5, -(10**30))[dialect]
    upstream.scripts["silent"] = [head(), sse(text_chunk("Hello")), Hang()]
    upstreams = upstreams_at(upstream.url, timeouts={**LONG_TIMEOUTS, "idle": 2.0})
    with running({"server": {"keep_alive_seconds": 0.01}, "upstreams": upstreams}) as gateway:
        for client in CLIENT_DIALECTS:
            found = asked(gateway, client, f"{UPSTREAM_NAMES[dialect]}/below", x_request_id="below")
            assert found.text == "Hello"
            assert found.usage is None or all(count is None or count >= 0 for count in found.usage)
        page = gateway.ask("/metrics").body.decode()
        assert not [line for line in page.splitlines() if line.startswith("streamglot") and " -" in line]
        assert (gateway.line("below")["input_tokens"] or 0) >= 0
        silent = gateway.ask(CHAT, body_of("openai_chat", "work/silent"))
        assert b"\n:" in b"\n" + silent.body, "no sign of life"
        assert b"timeouts.idle" in silent.body
        assert not [line for line in gateway.lines if line.get("event") in ("task_failed", "fault")]


def test_a_step_of_the_clock_that_fails_does_not_stop_the_others(
    upstream: HostileUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts["silent"] = [head(), sse(text_chunk("Hello")), Hang()]
    with running({"upstreams": upstreams_at(upstream.url, timeouts={**LONG_TIMEOUTS, "idle": 0.4})}) as gateway:
        core = gateway.gateway

        def broken(*_: object) -> None:
            raise ValueError("a fault of the clock")

        monkeypatch.setattr(core.services.pool._deadlines, "tick", broken)
        monkeypatch.setattr(core.lifecycle._memory, "tick", broken)
        monkeypatch.setattr(core.recording.metrics, "publish", broken)
        found = asked(gateway, "openai_chat", "work/silent")
        assert found.error is not None
        assert "timeouts.idle" in found.error
        failed = {line["task"] for line in gateway.lines if line.get("event") == "task_failed"}
        assert failed == {"deadlines", "memory", "metrics"}
        monkeypatch.undo()


def test_a_failing_deadline_check_does_not_affect_other_exchanges(
    upstream: HostileUpstream,
) -> None:
    upstream.scripts["silent"] = [head(), sse(text_chunk("Hello")), Hang()]
    with running({"upstreams": upstreams_at(upstream.url, timeouts={**LONG_TIMEOUTS, "idle": 0.4})}) as gateway:
        core = gateway.gateway

        class Broken:
            def tick(self, _: float) -> None:
                raise ValueError("a fault of one exchange")

            def interrupt(self, _: object) -> None:
                """The gateway stops."""

        core.requests.running.update(Broken() for _ in range(20))  # type: ignore[misc]  # stands for an exchange
        assert asked(gateway, "openai_chat", "work/silent").error is not None
        core.requests.running.clear()


def test_failing_observers_do_not_break_an_exchange(upstream: HostileUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream.scripts["watched"] = streamed(PLAIN)
    with running({"server": {"log_content": True}, "upstreams": upstreams_at(upstream.url)}) as gateway:
        core = gateway.gateway

        def broken(*_: object) -> None:
            raise ValueError("a fault of who watches")

        monkeypatch.setattr(core.recording.metrics, "note", broken)
        monkeypatch.setattr(ContentLog, "line", broken)
        for stream in (True, False):
            assert asked(gateway, "openai_chat", "work/watched", stream, x_request_id=f"w{stream}").error is None
            gateway.line(f"w{stream}")
        assert len([line for line in gateway.lines if line.get("event") == "observer_failed"]) == 4
        until(lambda: all(limit.taken == 0 for limit in core.services.pool._limits.values()), lambda: "a slot is still taken")


# --- Retry-After, statuses


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "999999999999"}, LONGEST_RETRY),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 -0000"}, 0.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, LONGEST_RETRY),
        *(
            ({"retry-after": text}, None)
            for text in (
                "",
                "inf",
                "-inf",
                "nan",
                "1e400",
                "1e5",
                "-5",
                "0x10",
                "1_000",
                "٣",
                "9" * 400,
                "tomorrow",
                "\0",
                ",",
                "7;8",
            )
        ),
        *(
            ({"retry-after": text}, None)
            for text in ("Mon, 01 Jan 99999 00:00:00 GMT", "Mon, 99 Jan 2026 99:99:99 GMT", "Mon, 01 Jan 2026 00:00:00 +9999")
        ),
        ({}, None),
    ],
)
def test_retry_after_in_headers(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_seconds(headers) == seconds


@pytest.mark.parametrize(
    ("sent_by_upstream", "seconds"),
    [
        (5, 5.0),
        (float("inf"), LONGEST_RETRY),
        (10**400, LONGEST_RETRY),
        (float("nan"), None),
        (-1, None),
        (True, None),
        ("7", None),
        (None, None),
        ([], None),
    ],
)
def test_retry_after_in_an_error_object(sent_by_upstream: Any, seconds: float | None) -> None:
    assert retry_after_of(UpstreamRefused("x", detail={"retry_after": sent_by_upstream})) == seconds
    assert retry_after_of(UpstreamRefused("x", retry_after=sent_by_upstream)) == seconds
    assert retry_after_of(StreamglotError("x")) is None


RETRIES = ("inf", "1e400", "-5", "nan", "9" * 300, "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 +2359")


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_every_odd_refusal_is_an_answer(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    for place, after in enumerate(RETRIES):
        for status in (429, 503):
            upstream.scripts[f"odd-{place}-{status}"] = whole({"error": {"message": "wait"}}, status, retry_after=after)
            model = f"work/odd-{place}-{status}"
            answer = gateway.ask(path_of(client, model), body_of(client, model))
            assert answer.status == status
            assert int(answer.headers.get("retry-after", "1")) <= LONGEST_RETRY
    for status in (300, 304, 399, 418, 451, 599, 600, 700, 999):
        upstream.scripts[f"status-{status}"] = whole({"error": {"message": "odd"}}, status)
        model = f"work/status-{status}"
        answer = gateway.ask(path_of(client, model), body_of(client, model))
        assert 400 <= answer.status < 600
        assert (answer.status == status) == (400 <= status < 600)
        assert understood(client, answer).error
    for body in (
        b'{"error": {"message": "x", "retry_after": 1e999, "code": 999}}',
        b'{"error": {"message": "x", "retry_after": ' + b"9" * 400 + b"}}",
        '{"error": {"message": "x", "code": "²", "status": "²²²"}}'.encode(),
        b'{"error": {"message": "\\ud800", "code": "\\ud800"}}',
        b'{"error": [[[]]]}',
        b"[" * 5000,
        b"\xff\xfe\x00",
    ):
        for script in (
            whole(body, 429),
            streamed(b"data: " + body + b"\n\n"),
            streamed(sse(text_chunk("Hello")), b"data: " + body + b"\n\n"),
        ):
            upstream.scripts["odd-body"] = script
            answer = gateway.ask(path_of(client, "work/odd-body"), body_of(client, "work/odd-body"))
            error = understood(client, answer).error
            assert error
            assert "internal error of the gateway" not in error


def test_an_internal_error_is_answered(upstream: HostileUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if the error handler itself fails."""
    upstream.scripts["refusing"] = whole({"error": {"message": "no"}}, 400)
    with running({"upstreams": upstreams_at(upstream.url)}) as gateway:
        from streamglot.gateway import handler

        def broken(_: object) -> float:
            raise OverflowError("cannot convert float infinity to integer")

        monkeypatch.setattr(handler, "retry_after_of", broken)
        for client in CLIENT_DIALECTS:
            answer = gateway.ask(path_of(client, "work/refusing"), body_of(client, "work/refusing"))
            assert answer.status == 500
            assert b"internal error of the gateway" in answer.body
        assert [line for line in gateway.lines if line.get("event") == "fault"]


# --- names of models in addresses

ESCAPES = ("..", ".", "../secret", "a/../../secret", "a/./b", "a//b", "/a", "a/", "models/../secret", "models/models/../x")


@pytest.fixture(scope="module")
def addressed(upstream: HostileUpstream) -> Iterator[Running]:
    """Upstreams whose addresses name the model, and a key that may use some models."""
    upstreams = {
        name: {"dialect": dialect, "base_url": f"{upstream.url}/base", "attempts": 1, "timeouts": LONG_TIMEOUTS}
        for name, dialect in (
            ("google", "gemini"),
            ("aws", "bedrock_converse"),
            ("amazon", "bedrock_invoke"),
            ("web", "qwen_web"),
        )
    }
    keys = [{"name": "some", "hash": digest_of("some"), "models": ["google/flash*", "flash*", "m*"]}]
    with running({"server": {"keys": keys}, "upstreams": upstreams}) as gateway:
        yield gateway


@pytest.mark.parametrize("dialect", ["gemini", "bedrock_converse", "bedrock_invoke"])
@pytest.mark.parametrize("name", ESCAPES)
def test_a_model_cannot_mean_another_address(upstream: HostileUpstream, dialect: str, name: str) -> None:
    upstreams = {"mine": {"dialect": dialect, "base_url": f"{upstream.url}/base", "attempts": 1, "timeouts": LONG_TIMEOUTS}}
    with running({"upstreams": upstreams}) as gateway:
        before = len(upstream.seen)
        answer = gateway.ask(CHAT, body_of("openai_chat", f"mine/{name}"))
        for seen in upstream.seen[before:]:
            segments = seen.path.partition("?")[0].split("/")
            assert segments[1] == "base"
            assert not {"..", ".", ""} & set(segments[1:])
        if len(upstream.seen) == before:
            assert answer.status == 400
            assert b"cannot be part of an upstream" in answer.body


@pytest.mark.parametrize(
    "name", ["flash/../../secret", "flash/../ultra", "models/ultra", "models/models/ultra", "google/flash/../../secret"]
)
def test_a_key_may_use_what_its_patterns_say_and_no_more(addressed: Running, upstream: HostileUpstream, name: str) -> None:
    """``m*`` allows models that begin so, and not every model because of a folder that the upstream's address has anyway."""
    before = len(upstream.seen)
    answer = addressed.ask(CHAT, body_of("openai_chat", name), {"authorization": "Bearer some"})
    assert answer.status in (400, 403)
    assert upstream.seen[before:] == []


def test_a_name_is_the_same_for_the_key_and_for_the_address(addressed: Running, upstream: HostileUpstream) -> None:
    for name in ("flash 2.5?x#y", "models/flash 2.5?x#y", "google/models/flash 2.5?x#y"):
        before = len(upstream.seen)
        addressed.ask(CHAT, body_of("openai_chat", name, stream=False), {"authorization": "Bearer some"})
        assert upstream.seen[before].path == "/base/models/flash%202.5%3Fx%23y:generateContent"


def test_names_of_models_have_an_end_and_no_control_characters(gateway: Running) -> None:
    for name in ("x" * (MODEL_CHARS + 1), "a\nb", "a\0b", "a\r\nx: y", "\u202egpt"):
        for client in ("openai_chat", "anthropic", "openai_responses", "ollama"):
            answer = gateway.ask(path_of(client, "m"), body_of(client, f"work/{name}"))
            assert answer.status == 400
            assert b"name of the model" in answer.body
            assert len(answer.body) < 2000
        for path in ("/v1/embeddings", "/v1/messages/count_tokens"):
            body = {"model": name, "input": "x", "messages": [{"role": "user", "content": "x"}]}
            assert gateway.ask(path, body).status == 400


def test_the_name_of_a_recording_that_no_file_system_takes(tmp_path: Any) -> None:
    (tmp_path / "one.sse").write_bytes(b"data: [DONE]\n\n")
    with running({"upstreams": {"recorded": {"base_url": f"file:{tmp_path}"}}}) as gateway:
        for name in ("x" * 1000, "..", "../one", "/etc/passwd"):
            answer = gateway.ask(CHAT, body_of("openai_chat", f"recorded/{name}"))
            assert answer.status in (200, 400), answer.body
            assert not [line for line in gateway.lines if line.get("event") == "fault"]
        (tmp_path / "one.sse.times").write_text("soon 5\n")
        answer = gateway.ask(CHAT, body_of("openai_chat", "recorded/one"))
        assert answer.status == 502
        assert b"cannot be read" in answer.body


def test_routes_know_one_name_for_a_model() -> None:
    upstreams = [
        Upstream(name="g", dialect="gemini", base_url="http://a", models=["flash*"]),
        Upstream(name="local", base_url="http://b", models=["models/7B/x.gguf"]),
    ]
    routes = Routes(upstreams, [], "flash-1")
    assert routes.named("") == "flash-1"
    assert routes.named("models/7B/x.gguf") == "models/7B/x.gguf", "that is its name there"
    assert routes.named("g/models/flash") == "g/flash"
    assert routes.named("unknown") == "unknown"
    mixed = Routes(
        [Upstream(name="g", dialect="gemini", base_url="http://a"), Upstream(name="o", base_url="http://b")],
        [Route(["models/*"], [Target("o")], [Target("g")])],
    )
    assert mixed.named("models/models/x") == "x"
    with pytest.raises(RequestError):
        routes.find("x" * 5000, lambda: 0.0)


# --- headers that are passed on


def test_invalid_header_values_are_refused() -> None:
    check_headers({"anthropic-beta": "a, b\tc é"})
    for value in ("a\r\nb: c", "a\0", "a\x7f", "€"):
        with pytest.raises(RequestError, match="anthropic-beta"):
            check_headers({"anthropic-beta": value})


def test_request_ids_are_valid_header_values(gateway: Running, upstream: HostileUpstream) -> None:
    assert clean_id("a b\r\nc: d\0é") == "abc:d"
    assert len(clean_id("x" * 10**6)) == ID_CHARS
    upstream.scripts["ids"] = whole({"data": []})
    gateway.ask("/v1/embeddings", {"model": "work/ids", "input": "x"}, {"x-request-id": "a\tb c"})
    assert upstream.requests("ids")[-1].headers["x-request-id"] == "abc"


# --- metrics


def test_upstream_error_codes_are_not_used_as_metric_labels(gateway: Running, upstream: HostileUpstream) -> None:
    def refuse(seen: Seen) -> Script:
        number = len(upstream.requests(seen.body["model"]))
        error = {"message": "x", "code": f"made_up_{number}", "type": f"Made.Up-{number}"}
        return whole({"error": error}, (400, 429, 500)[number % 3])

    upstream.scripts["inventive"] = refuse
    before = {line.partition(" ")[0] for line in gateway.ask("/metrics").body.decode().splitlines()}
    for _ in range(30):
        answer = gateway.ask(CHAT, body_of("openai_chat", "work/inventive"))
        assert b"made_up_" in answer.body, "the client gets the error"
    after = {line.partition(" ")[0] for line in gateway.ask("/metrics").body.decode().splitlines()}
    assert not [line for line in after if "made_up" in line.lower()]
    assert len(after - before) < 10


@pytest.mark.parametrize(
    ("code", "status", "origin", "kind"),
    [
        ("rate_limit_exceeded", 429, "upstream", "rate_limit_exceeded"),
        ("ThrottlingException", 429, "upstream", "throttlingexception"),
        ("upstream_truncated", 502, "upstream", "upstream_truncated"),
        ("made_up", 429, "upstream", "rate_limit"),
        ("made_up", 418, "upstream", "upstream_error"),
        ("model_not_allowed", 403, "client", "model_not_allowed"),
        ("limit_line_bytes", 413, "gateway", "limit_line_bytes"),
    ],
)
def test_kinds_of_errors(code: str, status: int, origin: Any, kind: str) -> None:
    record = ExchangeRecord("id", "openai_chat", 0.0)
    record.failed(StreamError(code, "message", origin, status=status))
    assert (record.error, record.error_kind) == (code, kind)


# --- the log


def test_a_log_that_cannot_be_written_does_not_end_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        fails = True
        text = ""

        def write(self, text: str) -> None:
            if self.fails:
                raise BrokenPipeError
            self.text += text

        def flush(self) -> None: ...

    broken = Broken()
    monkeypatch.setattr(sys, "stderr", broken)
    log = Log()
    log({"event": "one"})
    log({"event": "two"})
    broken.fails = False
    log({"event": "three", "odd": "\ud800"})
    lines = [msgspec.json.decode(line) for line in broken.text.splitlines()]
    assert lines[0] == {"event": "log_lost", "lines": 2}
    assert lines[1]["event"] == "log_fault"
    assert len(logs._encoded({"odd": object(), "long": "x" * 10**6})) < 2 * logs.REPR_CHARS


def test_a_failed_background_task_is_logged_without_secrets(upstream: HostileUpstream) -> None:
    key = "zq-9f8e7d6c5b4a-0123456789"
    with running({"upstreams": upstreams_at(upstream.url, key=key)}) as gateway:
        done = threading.Event()

        async def failing() -> None:
            try:
                raise OSError(f"no route for {key}")
            finally:
                done.set()

        loop = gateway.server.loop
        loop.call_soon_threadsafe(lambda: gateway.gateway.services.tasks.spawn("example", failing()))
        until(done.is_set)
        line = gateway.log_line(lambda line: line.get("event") == "task_failed")
    assert line["task"] == "example"
    assert key not in str(line)
