"""Pages, metrics, the cache, logs of contents, request ids, models without tools, TLS and proxies."""

from __future__ import annotations

import re
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.conftest import upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, asked, body_of, path_of, understood
from gateway.raw import raw
from gateway.running import Running, running
from gateway.scenarios import DONE, END, PLAIN, SCENARIOS, TEXT_AND_CALL, answer, text_chunk
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Until, hostile, sse, streamed, unfinished, whole
from streamglot.gateway.api.pages import description

CHAT = "/v1/chat/completions"


# --- pages


def test_health_and_readiness(gateway: Running) -> None:
    assert gateway.ask("/health").json() == {"status": "ok"}
    assert gateway.ask("/ready").json()["status"] == "ready"


def test_every_address_is_described(gateway: Running) -> None:
    described = gateway.ask("/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    assert described == description(gateway.gateway.router.routes)
    for path, methods in described["paths"].items():
        for method in methods:
            if path in ("/overview/events", "/approvals/events"):
                continue  # it does not end
            found = gateway.ask(path.replace("{model}", "replay"), {} if method == "post" else None, method=method.upper())
            assert found.status != 405, path
            missing = ("model", "store_off", "not_found")
            assert found.status != 404 or any(word in str(found.body) for word in missing), path
    page = gateway.ask("/docs").body.decode()
    assert "/v1/chat/completions" in page
    assert "http://" not in page.replace("http://127.0.0.1", "")
    assert "https://" not in page, "nothing is fetched from elsewhere"


def test_the_page_is_served(gateway: Running) -> None:
    """Its files hold nothing of this gateway; tests/web has what it does."""
    found = gateway.ask("/")
    assert found.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in found.headers["content-security-policy"]
    page = found.body.decode()
    assert "streamglot" in page
    for script in re.findall("<script[^>]*>", page):
        assert " src=" in script, "no inline script"
    for address in re.findall(r'(?:href|src)="([^"#]+)"', page):
        assert address.startswith("/"), "nothing is fetched from elsewhere"
        assert gateway.ask(address).status == 200
    tag = {"if-none-match": found.headers["etag"]}
    assert gateway.ask("/", headers=tag).status == 304


@pytest.mark.parametrize(
    "path",
    ["/web/../config/__init__.py", "/web/%2e%2e/config.py", "/web//etc/passwd", "/web/nothing.js", "/web/vendor/README.md"],
)
def test_the_page_has_its_own_files_only(gateway: Running, path: str) -> None:
    assert gateway.ask(path).status == 404


def test_an_unknown_path_is_refused(gateway: Running) -> None:
    for path, method in (("/v1/nothing", "GET"), ("/v1/nothing", "POST"), (CHAT, "GET"), ("/api/nothing", "GET")):
        found = gateway.ask(path, method=method)
        assert found.status in (404, 405)
        assert "there is no endpoint" in str(found.json()["error"])
    error = gateway.ask("/v1/nothing", headers={"anthropic-version": "2023-06-01"}).json()
    assert error["type"] == "error"


def test_metrics_are_served(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["measured"] = streamed(PLAIN)
    upstream.scripts["measured-cut"] = unfinished(sse(text_chunk("Hello")))
    for model in ("measured", "measured-cut"):
        asked(gateway, "openai_chat", f"work/{model}", x_request_id=model)
        gateway.line(model)
    page = gateway.ask("/metrics").body.decode()
    for line in (
        'streamglot_requests_total{dialect="openai_chat",ending="end",upstream="work"}',
        'streamglot_requests_total{dialect="openai_chat",ending="truncated",upstream="work"}',
        'streamglot_errors_total{code="upstream_truncated",upstream="work"}',
        'streamglot_tokens_total{direction="input",upstream="work"}',
        'streamglot_first_event_seconds_bucket{le="0.01",upstream="work"}',
        'streamglot_gap_seconds_count{upstream="work"}',
        "streamglot_streams_open ",
    ):
        assert line in page, line
    gateway.ask("/metrics")
    assert 'streamglot_upstream_open{upstream="work"} 0.0' in gateway.ask("/metrics").body.decode()


def test_a_request_has_a_log_line(gateway: Running, upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["logged"] = streamed(sse(text_chunk("Hello secret words")), Until(go_on), sse(END, DONE))
    with raw(gateway.port) as one:
        one.post("/v1/messages", body_of("anthropic", "work/logged"), {"x-request-id": "log-1"})
        one.read_until(b"secret words")
        time.sleep(0.05)
        go_on.set()
        one.read_until(b"message_stop")
    line = gateway.line("log-1")
    assert (line["dialect"], line["upstream"], line["upstream_dialect"]) == ("anthropic", "work", "openai_chat")
    assert (line["model"], line["stream"], line["ending"], line["attempts"]) == ("work/logged", True, "end", 1)
    assert 0 < line["first_event_seconds"] <= line["seconds"]
    assert line["longest_gap_seconds"] >= 0.04
    assert "secret words" not in str(line)


# --- request ids


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_request_ids(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["named"] = streamed(PLAIN)
    path, body = path_of(client, "work/named"), body_of(client, "work/named")
    assert gateway.ask(path, body, {"x-request-id": f"id-{client}"}).headers["x-request-id"] == f"id-{client}"
    assert upstream.requests("named")[-1].headers["x-request-id"] == f"id-{client}"
    ours = gateway.ask(path, body).headers["x-request-id"]
    assert len(ours) == 32
    assert len(gateway.ask(path, body, {"x-request-id": "x" * 5000}).headers["x-request-id"]) == 128


def test_headers_of_one_dialect_stay_in_it(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["beta"] = SCENARIOS["anthropic_all"].script
    headers = {"anthropic-beta": "context-1m", "cookie": "mine"}
    gateway.ask("/v1/messages", body_of("anthropic", "claude/beta"), headers)
    gateway.ask("/v1/messages", body_of("anthropic", "work/beta"), headers)
    first, second = upstream.requests("beta")
    assert first.headers["anthropic-beta"] == "context-1m"
    assert "anthropic-beta" not in second.headers
    assert "cookie" not in first.headers


# --- streams of what is whole, and the reverse


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_an_upstream_that_does_not_stream(gateway: Running, upstream: HostileUpstream, client: str) -> None:
    upstream.scripts["whole-only"] = whole(answer(content="Hello"))
    found = asked(gateway, client, "whole/whole-only")
    assert (found.text, found.finish or "end", found.error) == ("Hello", "end", None)
    assert not upstream.requests("whole-only")[-1].body.get("stream")


def test_the_array_of_a_client_without_events(gateway: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["array"] = streamed(PLAIN)
    found = gateway.ask(f"/v1beta/models/{UPSTREAM_NAMES['openai_chat']}/array:streamGenerateContent", body_of("gemini", "x"))
    assert found.headers["content-type"] == "application/json"
    assert (
        "".join(part["text"] for one in found.json() for part in one["candidates"][0]["content"].get("parts", []))
        == "Hello world"
    )


def test_generate(gateway: Running) -> None:
    found = gateway.ask("/api/generate", {"model": "replay", "prompt": "Hi", "stream": False})
    assert found.json()["response"] == "You said: Hi"
    assert gateway.ask("/api/version").json()["version"]


# --- the cache


@pytest.fixture(scope="module")
def caching(upstream: HostileUpstream) -> Iterator[Running]:
    route = {"models": ["kept*"], "to": [{"upstream": "work"}], "cache_seconds": 60}
    short = {"models": ["brief"], "to": [{"upstream": "work"}], "cache_seconds": 0.01}
    with running({"upstreams": upstreams_at(upstream.url), "routes": [route, short]}) as gateway:
        yield gateway


@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_an_answer_is_cached(caching: Running, upstream: HostileUpstream, client: str) -> None:
    model = f"kept-{client}"
    upstream.scripts[model] = streamed(PLAIN if client == "openai_completions" else TEXT_AND_CALL)
    path, body = path_of(client, model), body_of(client, model)
    first, second = caching.ask(path, body), caching.ask(path, body)
    assert (first.headers["x-streamglot-cache"], second.headers["x-streamglot-cache"]) == ("miss", "hit")
    assert len(upstream.requests(model)) == 1
    kept, fresh = understood(client, second), understood(client, first)
    assert (kept.text, kept.calls, kept.finish, kept.error) == (fresh.text, fresh.calls, fresh.finish, None)
    if client not in STREAMS_ONLY:
        whole_path, whole_body = path_of(client, model, False), body_of(client, model, False)
        third = caching.ask(whole_path, whole_body)
        assert third.headers["x-streamglot-cache"] == "hit"
        assert understood(client, third, False).text == fresh.text
    other = {
        **body,
        "messages": [{"id": "1", "role": "user", "content": "another", "parts": [{"type": "text", "text": "another"}]}],
    }
    if client not in ("gemini", "openai_responses", "openai_completions"):
        assert caching.ask(path, other).headers["x-streamglot-cache"] == "miss"


def test_broken_answers_are_not_cached(caching: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["kept-broken"] = unfinished(sse(text_chunk("Hello")))
    for _ in range(2):
        assert asked(caching, "openai_chat", "kept-broken").error is not None
    assert len(upstream.requests("kept-broken")) == 2


def test_expired_answers_are_not_served(caching: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["brief"] = streamed(PLAIN)
    for _ in range(2):
        assert asked(caching, "openai_chat", "brief").text == "Hello world"
        time.sleep(0.05)
    assert len(upstream.requests("brief")) == 2


def test_the_cache_is_bounded(upstream: HostileUpstream) -> None:
    route = {"models": ["bound*"], "to": [{"upstream": "work"}], "cache_seconds": 60}
    for number in range(6):
        upstream.scripts[f"bound-{number}"] = streamed(sse(text_chunk("x" * 1000), END, DONE))
    with running({"server": {"cache_bytes": 5000}, "upstreams": upstreams_at(upstream.url), "routes": [route]}) as gateway:
        for number in range(6):
            asked(gateway, "openai_chat", f"bound-{number}")
        assert gateway.ask(CHAT, body_of("openai_chat", "bound-5")).headers["x-streamglot-cache"] == "hit"
        assert gateway.ask(CHAT, body_of("openai_chat", "bound-0")).headers["x-streamglot-cache"] == "miss"


def test_cached_answers_are_not_shared_between_keys(upstream: HostileUpstream) -> None:
    from streamglot.gateway.auth.authenticator import digest_of

    keys = [{"name": name, "hash": digest_of(f"key-of-{name}")} for name in "ab"]
    route = {"models": ["mine*"], "to": [{"upstream": "work"}], "cache_seconds": 60}
    upstream.scripts["mine-only"] = streamed(PLAIN)
    with running({"server": {"keys": keys}, "upstreams": upstreams_at(upstream.url), "routes": [route]}) as gateway:
        hits = [
            gateway.ask(CHAT, body_of("openai_chat", "mine-only"), {"x-api-key": f"key-of-{name}"}).headers["x-streamglot-cache"]
            for name in "aab"
        ]
    assert hits == ["miss", "hit", "miss"]


# --- contents


def test_contents_are_logged_when_asked_for(upstream: HostileUpstream) -> None:
    upstream.scripts["content"] = streamed(sse(text_chunk("Write to bob@example.org, key sk-abcdefghijklmnopqrstuv"), END, DONE))
    upstream.scripts["content-cut"] = unfinished(sse(text_chunk("Half an answer")))
    settings = {"log_content": True, "redact": [r"[\w.]+@[\w.]+"]}
    with running({"server": settings, "upstreams": upstreams_at(upstream.url)}) as gateway:
        asked(gateway, "anthropic", "work/content", x_request_id="c1")
        line = gateway.log_line(lambda line: line.get("event") == "content")
        assert "Write to ••••, key ••••" in line["answered"]
        assert '"text":"q"' in line["asked"]
        asked(gateway, "anthropic", "work/content-cut", x_request_id="c2")
        partial = gateway.log_line(lambda line: line.get("event") == "content" and line["request_id"] == "c2")
        assert "Half an answer" in partial["answered"], "the partial answer is kept in the log"
        assert partial["error"] == "upstream_truncated"


# --- models that have no tools of their own


@pytest.mark.parametrize("client", ["openai_chat", "openai_responses", "anthropic", "gemini", "ollama", "agui"])
def test_tools_are_sent_as_text(upstream: HostileUpstream, client: str) -> None:
    call = '<tool_call>{"name":"weather","arguments":{"city":"Paris"}}</tool_call>'
    upstream.scripts["wordy"] = streamed(sse(text_chunk("Let me look."), text_chunk(call[:20]), text_chunk(call[20:]), END, DONE))
    wordy = {**upstreams_at(upstream.url)["work"], "tools": "prompt", "inband": "hermes"}
    with running({"upstreams": {"wordy": wordy}}) as gateway:
        found = asked(gateway, client, "wordy/wordy", True, ("weather",))
        assert (found.text, found.calls) == ("Let me look.", [("weather", {"city": "Paris"})])
    body = upstream.requests("wordy")[-1].body
    assert "tools" not in body
    assert "weather" in body["messages"][0]["content"]
    assert "<tool_call>" in body["messages"][0]["content"]


def test_tools_as_text_need_a_known_notation(upstream: HostileUpstream) -> None:
    wordy = {**upstreams_at(upstream.url)["work"], "tools": "prompt"}
    with running({"upstreams": {"wordy": wordy}}) as gateway:
        found = asked(gateway, "openai_chat", "wordy/unheard-of", True, ("weather",))
        assert found.status == 400
        assert found.error is not None
        assert "inband" in found.error


# --- TLS and proxies


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no openssl here")
    return key, certificate


def test_tls_is_verified(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with hostile(context) as secure:
        secure.scripts["sealed"] = streamed(PLAIN)
        trusting = upstreams_at(secure.url, ca_file=str(cert))["work"]
        strict = upstreams_at(secure.url)["work"]
        with running({"upstreams": {"trusting": trusting, "strict": strict}}) as gateway:
            assert asked(gateway, "openai_chat", "trusting/sealed").text == "Hello world"
            found = asked(gateway, "openai_chat", "strict/sealed")
            assert found.status == 502
            assert found.error is not None
            assert "certificate" in found.error.lower()
        assert len(secure.requests("sealed")) == 1


def test_requests_go_through_a_proxy(upstream: HostileUpstream) -> None:
    upstream.scripts["proxied"] = streamed(PLAIN)
    mine = {**upstreams_at("http://somewhere.invalid")["work"], "proxy": upstream.url}
    with running({"upstreams": {"mine": mine}}) as gateway:
        assert asked(gateway, "openai_chat", "mine/proxied").text == "Hello world"
    assert upstream.requests("proxied")[0].path == "http://somewhere.invalid/v1/chat/completions"


def test_a_conversation_is_compacted_by_any_upstream(upstream: HostileUpstream) -> None:
    upstream.scripts["compact"] = whole(answer(content="They said hello."))
    with running({"upstreams": upstreams_at(upstream.url)}) as gateway:
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k")
        done = client.responses.compact(model="work/compact", input=[{"role": "user", "content": "hi"}])
        assert [item.type for item in done.output] == ["message", "compaction"]
        assert done.usage.total_tokens is not None
        kept: Any = [item.model_dump(exclude_none=True) for item in done.output]
        client.responses.create(model="work/compact", input=[*kept, {"role": "user", "content": "go on"}])
    sent = [message["content"] for message in upstream.requests("compact")[-1].body["messages"]]
    assert "They said hello." in str(sent[1])
    assert len(sent) == 3
