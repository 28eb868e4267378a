"""Secrets that an upstream repeats reach no client, log, store, export or page."""

from __future__ import annotations

import asyncio
import base64
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.conftest import LONG_TIMEOUTS, upstreams_at
from gateway.dialect_clients import CLIENT_DIALECTS, STREAMS_ONLY, body_of, path_of
from gateway.running import Running, running
from gateway.scenarios import DONE, END, text_chunk
from gateway.stored_turns import keeping, kept
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Seen, sse, streamed, unfinished, whole
from split_checks import random_cuts
from streamglot.client.capture import Capture, capture
from streamglot.config import Config, LoadedConfig, load, shown
from streamglot.engine.content_log import EDGE_CHARS, MAX_LOGGED_CHARS, ContentLog
from streamglot.errors import ConfigError
from streamglot.messages import Message, Request, Response, TextPart
from streamglot.store import Database, Filter, Queries, export_jsonl, export_markdown
from streamglot.upstream import Upstream
from streamglot.upstream.providers import PROVIDERS
from streamglot.upstream.secrets import HIDDEN, MAX_CHARS, MAX_ESCAPED_CHARS, SecretMask, hide, hide_in, secrets_in_url, shown_url
from waiting import WAIT_SECONDS

KEY = "zq-9f8e7d6c5b4a-0123456789"
HEADER = "t0k3n-of-the-header-1234"
PASSWORD = "pass word/of@the:address"
QUERY = "secret+of the/query"
IDS = ("e", "status", "Incorrect API key provided", KEY[:6], "model", "request id")
"""Request ids that a client may choose: words of the upstream's error."""
MESSAGE = f"Incorrect API key provided: {KEY}. You sent {HEADER}."


def refusals() -> dict[str, Any]:
    """Every way in which an upstream can repeat a key."""
    error = {"message": MESSAGE, "type": "authentication_error", "code": KEY, "param": {KEY: [KEY, {"deep": MESSAGE}]}}
    start = sse(text_chunk("Hello"))
    return {
        "status": whole({"error": error}, 401),
        "text": whole(MESSAGE.encode(), 403, "text/plain"),
        "cut": whole(b"x" * 285 + KEY.encode(), 400, "text/plain"),
        "excerpt": whole({"what": "y" * 180 + KEY}, 400),
        "first": streamed(sse({"error": error})),
        "later": streamed(start, sse({"error": error})),
        "stray": unfinished(start, b"error: " + msgspec.json.encode(error) + b"\n\n"),
        "truncated": unfinished(start, b'data: {"choices": "' + MESSAGE.encode()),
        "not_http": [f"SSH-2.0-{KEY}\r\n\r\n".encode()],
        "redirect": whole(b"", 302, "text/plain", location=f"https://{KEY}@elsewhere/?key={KEY}"),
        "finish": streamed(start, sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}], "error": error})),
    }


def everything(gateway: Running, *answers: Any) -> str:
    """All that anybody but the upstream sees."""
    seen = [str(gateway.lines), gateway.ask("/metrics").body.decode(), gateway.ask("/ready").body.decode()]
    return " ".join([*seen, *(f"{answer.headers} {answer.body.decode('utf-8', 'replace')}" for answer in answers)])


def no_secret_in(text: str, *secrets: str) -> None:
    for secret in (KEY, HEADER, *secrets):
        assert secret not in text
        assert secret[:14] not in text, "not even its beginning"


@pytest.fixture(scope="module")
def guarded(upstream: HostileUpstream) -> Iterator[Running]:
    upstreams = upstreams_at(upstream.url, key=KEY, headers={"x-auth-token": HEADER}, breaker={"failures": 10**9})
    with running({"upstreams": upstreams}) as gateway:
        yield gateway


@pytest.mark.parametrize("request_id", IDS)
@pytest.mark.parametrize("client", CLIENT_DIALECTS)
def test_a_client_cannot_read_the_key_whatever_it_calls_its_request(
    guarded: Running, upstream: HostileUpstream, client: str, request_id: str
) -> None:
    for name, script in refusals().items():
        upstream.scripts[f"leaky-{name}"] = script
        model = f"work/leaky-{name}"
        for stream in (True, False) if client not in STREAMS_ONLY else (True,):
            headers = {"x-request-id": request_id}
            answer = guarded.ask(path_of(client, model, stream), body_of(client, model, stream), headers)
            no_secret_in(everything(guarded, answer))
            assert "work" in answer.body.decode(), "the error names the upstream"


def test_an_upstream_cannot_fake_a_masked_error(guarded: Running, upstream: HostileUpstream) -> None:
    """It repeats the request id, which every error that we already sent contains."""

    def refuse(seen: Seen) -> Any:
        return whole({"error": {"message": f"{MESSAGE} (request id {seen.headers['x-request-id']})"}}, 401)

    upstream.scripts["repeating"] = refuse
    for client in CLIENT_DIALECTS:
        answer = guarded.ask(path_of(client, "work/repeating"), body_of(client, "work/repeating"))
        no_secret_in(everything(guarded, answer))
        assert HIDDEN in answer.body.decode()


def test_forwarded_requests_hide_the_key_too(guarded: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["embedder"] = whole({"error": {"message": MESSAGE}}, 401)
    for path in ("/v1/embeddings", "/v1/messages/count_tokens"):
        model = f"{'claude' if 'messages' in path else 'work'}/embedder"
        body = {"model": model, "input": "x", "messages": [{"role": "user", "content": "x"}]}
        answer = guarded.ask(path, body, {"x-request-id": "e"})
        assert answer.status == 401
        no_secret_in(everything(guarded, answer))


# --- the store


def test_store_and_exports_have_no_key(upstream: HostileUpstream, url: str) -> None:
    mine = upstreams_at(upstream.url, key=KEY, headers={"x-auth-token": HEADER})
    with keeping(upstream, url, upstreams=mine, store={"raw": True}) as gateway:
        cut = len(KEY) // 2
        error = msgspec.json.encode({"error": {"message": MESSAGE, "code": KEY}})
        place = error.index(KEY.encode()) + cut
        upstream.scripts["kept-refusal"] = whole({"error": {"message": MESSAGE, "code": KEY}}, 401)
        upstream.scripts["kept-stream"] = streamed(sse(text_chunk("Hello")), b"data: " + error[:place], error[place:] + b"\n\n")
        for model in ("kept-refusal", "kept-stream"):
            for stream in (True, False):
                body = {**body_of("openai_chat", f"work/{model}", stream)}
                no_secret_in(gateway.ask("/v1/chat/completions", body, {"x-request-id": "e"}).body.decode())
        kept(url, lambda found: len(found) == 4 and all(turn.ending for turn in found))
        shown_text = gateway.ask("/turns").body + b"".join(
            gateway.ask(f"/turns/{turn.id}{more}").body
            for turn in kept(url)
            for more in ("", "/raw?format=bytes", "/export", "/export?format=markdown")
        )
        no_secret_in(shown_text.decode("utf-8", "replace"))
    no_secret_in(asyncio.run(exported(url)))


async def exported(url: str) -> str:
    database = await Database.open(url)
    try:
        queries = Queries(database)
        lines = [line.decode() async for line in export_jsonl(queries, Filter())]
        pages = [page async for page in export_markdown(queries, Filter())]
        raw = [frame for turn in await queries.turns(Filter()) for frame in await queries.raw(turn.id)]
    finally:
        await database.close()
    assert any(b"Hello" in frame.data for frame in raw), "the bytes themselves are kept"
    joined = b"".join(frame.data for frame in raw).decode("utf-8", "replace")
    return " ".join([*lines, *pages, joined])


def test_the_log_of_contents_has_no_secret(upstream: HostileUpstream) -> None:
    upstream.scripts["talkative"] = streamed(sse(text_chunk(f"my key is {KEY}"), END, DONE))
    config = {"server": {"log_content": True}, "upstreams": upstreams_at(upstream.url, key=KEY)}
    with running(config) as gateway:
        gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/talkative"), {"x-request-id": "talk"})
        line = gateway.log_line(lambda line: line.get("event") == "content")
    assert "my key is" in line["answered"]
    no_secret_in(str(line))


def test_a_long_content_is_cut_without_showing_half_a_secret() -> None:
    secret = 'quo"ted-secret-0123456789'
    log = ContentLog([r"pin \d+"], lambda: [secret])

    def line(text: str) -> str:
        shown_text: str = log.line("id", Request("m", messages=[Message("user", [TextPart(text)])]), Response())["asked"]
        return shown_text

    assert secret[5:] not in line(f"a {secret} b pin 1234")
    assert "pin" not in line("pin 1234")
    whole_text = line("x" * (2 * MAX_LOGGED_CHARS - 100) + secret + "y" * MAX_LOGGED_CHARS)
    assert len(whole_text) < MAX_LOGGED_CHARS + 50
    shrunk = line((secret + " ") * (2 * MAX_LOGGED_CHARS // len(secret)) + "end " * EDGE_CHARS)
    assert "secret" not in shrunk
    assert "in all" in shrunk


CATASTROPHIC = """
from streamglot.engine.content_log import ContentLog
from streamglot.messages import Message, Request, Response, TextPart

def asked(pattern, text):
    return ContentLog([pattern]).line("id", Request("m", messages=[Message("user", [TextPart(text)])]), Response())["asked"]

for pattern, unit in ((r"(a+)+$", "a"), (r"(x+x+)+y", "x"), (r"(?:a|aa)+!", "a"), ("x*y|x", "x")):
    for size in (60, 100_000):
        asked(pattern, unit * size + "?")
print(asked("(a+)+!", "before " + "a" * 40 + "! after"))
"""


def test_a_pattern_that_backtracks_without_end_does_not_stop_the_gateway() -> None:
    """In a process of its own: a backtracking engine would not come back, and Python could not stop it."""
    done = subprocess.run([sys.executable, "-c", CATASTROPHIC], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True)
    assert f"before {HIDDEN} after" in done.stdout


# --- addresses with secrets in them


def with_secrets(address: str) -> str:
    user = f"someone-known:{PASSWORD.replace(' ', '%20').replace('/', '%2F').replace('@', '%40').replace(':', '%3A')}"
    return address.replace("http://", f"http://{user}@") + "?token=" + QUERY.replace("+", "%2B").replace(" ", "+")


def no_part_in(text: str) -> None:
    split = with_secrets("http://host")
    encoded = split.partition("//")[2].partition("@")[0]
    basic = base64.b64encode(f"someone-known:{PASSWORD}".encode()).decode()
    no_secret_in(text, PASSWORD, QUERY, encoded, basic, split.partition("=")[2], "someone-known", "secret%2Bof%20the%2Fquery")


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic", "gemini", "ollama"])
def test_the_full_address_is_used_and_shown_without_secrets(upstream: HostileUpstream, dialect: str) -> None:
    def repeat(seen: Seen) -> Any:
        return whole({"error": {"message": f"bad {seen.path} {seen.headers} {PASSWORD} {QUERY}"}}, 400)

    upstream.scripts["secretive"] = repeat
    upstreams = upstreams_at(upstream.url, breaker={"failures": 10**9})
    mine = {name: {**one, "base_url": with_secrets(one["base_url"])} for name, one in upstreams.items()}
    with running({"upstreams": mine}) as gateway:
        answers = [
            gateway.ask(
                path_of(client, f"{UPSTREAM_NAMES[dialect]}/secretive"), body_of(client, f"{UPSTREAM_NAMES[dialect]}/secretive")
            )
            for client in CLIENT_DIALECTS
        ]
        assert {answer.status for answer in answers} == {400}
        no_part_in(everything(gateway, *answers))
    seen = upstream.requests("secretive")[-1]
    assert seen.headers["authorization"] == "Basic " + base64.b64encode(f"someone-known:{PASSWORD}".encode()).decode()
    path, _, query = seen.path.partition("?")
    assert not path.endswith("query")
    assert "token=secret%2Bof+the/query" in query


def test_the_password_of_a_proxy_is_masked_in_answers(upstream: HostileUpstream) -> None:
    upstream.scripts["proxied"] = lambda seen: streamed(sse(text_chunk(seen.headers["proxy-authorization"]), END, DONE))
    proxy = f"http://someone:word-of-a-proxy-0123456789@127.0.0.1:{upstream.port}"
    one = {"base_url": "http://provider.example/v1", "dialect": "openai_chat", "proxy": proxy}
    with running({"upstreams": {"far": one}}) as gateway:
        answer = gateway.ask(path_of("openai_chat", "far/proxied"), body_of("openai_chat", "far/proxied"))
    assert answer.status == 200, answer.body
    sent = upstream.requests("proxied")[-1].headers["proxy-authorization"].partition(" ")[2]
    assert sent
    assert sent.encode() not in answer.body
    assert b"Basic ****" in answer.body


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/v1", "http://nowhere.invalid/v1", "http://127.0.0.1:99999/v1"])
def test_an_unreachable_upstream_is_reported_without_secrets(address: str) -> None:
    for more in ({}, {"headers": {"host": "other"}}, {"proxy": with_secrets("http://127.0.0.1:1")}):
        one = {"base_url": with_secrets(address), "attempts": 1, "timeouts": LONG_TIMEOUTS, **more}
        with running({"upstreams": {"far": one}}) as gateway:
            answers = [gateway.ask(path_of(client, "far/m"), body_of(client, "far/m")) for client in CLIENT_DIALECTS]
            assert {answer.status for answer in answers} <= {502, 503}
            no_part_in(everything(gateway, *answers))


def test_the_configuration_is_shown_without_the_secrets_of_addresses() -> None:
    values: Mapping[str, Any] = {
        "upstreams": {"up": {"base_url": with_secrets("http://host/v1"), "proxy": with_secrets("http://proxy"), "key": KEY}},
        "store": {"url": with_secrets("http://db").replace("http", "postgresql")},
        "valkey": {"url": with_secrets("http://cache").replace("http", "valkey")},
        "server": {"origins": [with_secrets("http://page")]},
    }
    rows = shown(LoadedConfig(msgspec.convert(values, Config)))
    no_part_in(str(rows))
    shown_text = {place: value for place, value, _ in rows}
    assert shown_text["upstreams.up.base_url"] == f'"http://{HIDDEN}@host/v1?token={HIDDEN}"'
    assert Upstream(base_url=with_secrets("http://host/v1")).place == f"http://{HIDDEN}@host/v1?token={HIDDEN}"


def test_a_refused_configuration_is_reported_without_secrets(tmp_path: Any) -> None:
    path = tmp_path / "streamglot.toml"
    path.write_text(f'[upstreams.up]\nbase_url = "{with_secrets("http://host").partition("//")[2]}"\n')
    with pytest.raises(ConfigError) as refusal:
        load(path, {})
    no_part_in(refusal.value.message)
    assert "host" in refusal.value.message


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("https://host/v1", "https://host/v1"),
        ("https://a:b@host:8080/v1?api-version=2024&key=x", f"https://{HIDDEN}@host:8080/v1?api-version=2024&key={HIDDEN}"),
        ("https://key@host/v1/@scope/x", f"https://{HIDDEN}@host/v1/@scope/x"),
        ("https://host/v1?onlyvalue", f"https://host/v1?{HIDDEN}"),
        ("https://a:b@c@host/", f"https://{HIDDEN}@host/"),
        ("https://a:b/c@host/v1", f"https://{HIDDEN}@host/v1"),
        ("a:b@host/v1", f"{HIDDEN}@host/v1"),
        ("https://host:port/v1?key=x", "https://host:port/v1"),
        ("file:/data/a@b", "file:/data/a@b"),
        ("sqlite:////data/a@b.db", "sqlite:////data/a@b.db"),
        ("sqlite:////data/a.db", "sqlite:////data/a.db"),
        ("", ""),
    ],
)
def test_addresses_are_shown_without_secrets(url: str, wanted: str) -> None:
    assert shown_url(url) == wanted


def test_secrets_of_an_address() -> None:
    assert set(secrets_in_url("https://us%65r:pa%20ss@host/?key=a%2Fb&api-version=1")) >= {
        "user",
        "pa ss",
        "pa%20ss",
        "a/b",
        "a%2Fb",
    }
    assert "1" not in set(secrets_in_url("https://host/?api-version=1"))
    assert set(secrets_in_url("https://host/?onlyvalue")) == {"onlyvalue"}
    assert set(secrets_in_url("https://a:b/c@host/")) == {"a:b/c"}


# --- texts


def test_secrets_are_hidden() -> None:
    assert hide("none of it", ["none"]) == "none of it"
    assert hide(f"<{KEY}>", [KEY]) == f"<{HIDDEN}>"
    assert hide(f"{KEY[:13]} … {KEY}{KEY}", [KEY]) == f"{HIDDEN} … {HIDDEN}{HIDDEN}"
    assert hide(KEY[:11], [KEY]) == KEY[:11]
    assert hide("sk-abcdefghijklmnop1234") == HIDDEN
    assert hide("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.abc") == HIDDEN
    slow = "eyJ" + "a" * 10
    assert hide("-".join([slow] * 20_000)).startswith("eyJ")


def test_secrets_in_values_are_hidden() -> None:
    quoted = 'a"quoted\\secret'
    assert hide_in({"a": [quoted, 1, None, True], quoted: (quoted,)}, [quoted]) == {
        "a": [HIDDEN, 1, None, True],
        HIDDEN: [HIDDEN],
    }
    assert hide_in(None) is None
    assert hide_in({"a": "x" * (MAX_CHARS + 1)}) is None
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    assert hide_in(deep) is None


def test_a_mask_hides_secrets_however_they_are_cut() -> None:
    secrets = [KEY, HEADER, KEY[:9], "short"]
    data = f"a {KEY} b {HEADER}{KEY} {KEY[:12]} {HEADER[:5]}".encode()
    wanted = SecretMask(secrets)
    whole_data = wanted.feed(data) + wanted.close()
    assert KEY.encode() not in whole_data
    assert HEADER.encode() not in whole_data
    assert len(whole_data) == len(data)
    for size in range(1, 40):
        mask = SecretMask(secrets)
        cut = b"".join(mask.feed(data[place : place + size]) for place in range(0, len(data), size)) + mask.close()
        assert cut == whole_data
    assert SecretMask([]).feed(b"abc") == b"abc"


@pytest.mark.parametrize(
    "secrets",
    [
        ("shared-1", "shared-1-and-more"),
        ("one-two-3", "two-3-four-5", "four-5-six"),
        ("aaaaaaaa", "aaaaaaaaaaab"),
        ("abcabcab", "cabcabca"),
    ],
)
def test_a_mask_hides_secrets_that_overlap_however_they_are_cut(secrets: tuple[str, ...]) -> None:
    glued = "one-two-3-four-5-six aaaaaaaaaaaaaab abcabcabcabca"
    data = " ".join([*secrets, "".join(secrets), glued, *reversed(secrets)]).encode()
    whole_mask = SecretMask(secrets)
    masked = whole_mask.feed(data) + whole_mask.close()
    assert not any(secret.encode() in masked for secret in secrets)
    for first in range(len(data)):
        for second in range(first, len(data)):
            mask = SecretMask(secrets)
            pieces = data[:first], data[first:second], data[second:]
            assert b"".join(map(mask.feed, pieces)) + mask.close() == masked


def test_a_mask_hides_a_secret_as_json_writes_it() -> None:
    mask = SecretMask(['quo"ted-secret'])
    assert (
        mask.feed(b'{"said": "quo\\"ted-secret"} quo"ted-secret') + mask.close() == b'{"said": "***************"} **************'
    )


def test_a_mask_hides_a_secret_whose_slash_is_escaped() -> None:
    mask = SecretMask(["ABSK/quoted+secret"])
    assert mask.feed(b'{"a": "ABSK\\/quoted+secret", "b": "ABSK/quoted+secret"}\n') == (
        b'{"a": "' + b"*" * 19 + b'", "b": "' + b"*" * 18 + b'"}\n'
    )


# --- secrets with escapes

BASE64 = "Ab3+Cd5/Ef7+Gh9/Ij1+Kl3MnOp5Qr=="


def escaped(text: str, chosen: str = "", backslashes: int = 1, upper: bool = False) -> str:
    """The text with these characters, or all, as JSON's escapes."""
    code = "{:04X}" if upper else "{:04x}"
    return "".join(
        "\\" * backslashes + "u" + code.format(ord(letter)) if not chosen or letter in chosen else letter for letter in text
    )


WRITINGS = [
    escaped(BASE64, "+", upper=True),
    escaped(BASE64, "+="),
    escaped(BASE64),
    escaped(BASE64, upper=True),
    escaped(BASE64, "A"),
    escaped(BASE64, backslashes=2),
    escaped(BASE64, "+", 2, upper=True).replace("/", "\\/"),
]


@pytest.mark.parametrize("written", WRITINGS)
def test_a_mask_hides_a_secret_with_escapes_however_it_is_cut(written: str) -> None:
    data = f'data: {{"a": "x{written}y", "b": "{written}{BASE64}"}}, {written[:-2]}'.encode()
    whole_mask = SecretMask([BASE64])
    masked = whole_mask.feed(data) + whole_mask.close()
    assert len(masked) == len(data)
    stars = re.sub(rb"\\{1,2}u002a", b"*", masked)
    end = masked.index(b"}, ") + len(b"}, ")
    assert masked[end:] == data[end:], "an incomplete secret is no secret"
    assert stars.count(b"*" * len(BASE64)) == 3
    for size in (1, 2, 3, 5, 7, 11):
        mask = SecretMask([BASE64])
        assert b"".join(mask.feed(data[place : place + size]) for place in range(0, len(data), size)) + mask.close() == masked
    for cut in range(len(data)):
        mask = SecretMask([BASE64])
        assert mask.feed(data[:cut]) + mask.feed(data[cut:]) + mask.close() == masked


@pytest.mark.parametrize(
    "secrets", [('a\\b"c1/2x',), ("abcabcab", "cabcabca"), ("aaaaaaaa", "aaaaaaaaaaab"), ("\\u0041b3x", "é-n-secret")]
)
def test_a_mask_with_odd_secrets_does_not_depend_on_cuts(secrets: tuple[str, ...]) -> None:
    source = random.Random(5)
    for _ in range(40):
        text = ""
        for _ in range(5):
            for letter in source.choice(secrets)[source.choice((0, 0, 2)) : source.choice((99, 99, 5))]:
                text += escaped(letter, "", source.choice((1, 2)), source.random() < 0.5) if source.random() < 0.4 else letter
            text += source.choice(("", " ", "\\", "\\\\", "\n", "x", "\\u4f60", "\\u00"))
        data = text.encode()
        whole_mask = SecretMask(secrets)
        masked = whole_mask.feed(data) + whole_mask.close()
        for pieces in ([data[place : place + 1] for place in range(len(data))], random_cuts(data, 1), random_cuts(data, 2)):
            mask = SecretMask(secrets)
            assert b"".join(map(mask.feed, pieces)) + mask.close() == masked


def test_a_masked_escape_is_valid_json_after_any_number_of_backslashes() -> None:
    for backslashes in range(1, 8):
        data = b'{"a": "' + b"\\" * (backslashes - 1) + escaped(BASE64).encode() + b'"}\n'
        assert BASE64 not in msgspec.json.decode(SecretMask([BASE64]).feed(data))["a"]


def test_a_mask_holds_back_no_more_than_a_secret() -> None:
    mask = SecretMask([BASE64])
    for letter in (escaped(BASE64, backslashes=2) * 3).encode():
        mask.feed(bytes((letter,)))
        assert len(mask.held) < 7 * len(BASE64)
    assert mask.feed(b"\\u4f60\\u597d ") == b"\\u4f60\\u597d "


def test_a_very_long_secret_with_escapes_loses_its_beginning() -> None:
    secret = BASE64 * 2000
    began = SecretMask([secret]).feed(escaped(secret).encode() + b"\n")
    assert began.startswith(b"\\u002a" * MAX_ESCAPED_CHARS)


def test_messages_hide_a_secret_with_escapes() -> None:
    for written in WRITINGS:
        assert hide(f"bad {written}, {written[:-14]}", [BASE64]).startswith(f"bad {HIDDEN}, {HIDDEN}")
    assert hide("\\u0041 and \\u002B", [BASE64]) == "\\u0041 and \\u002B"


# --- headers, options and paths


def test_every_header_is_secret_unless_its_name_is_public(upstream: HostileUpstream, url: str) -> None:
    secret = "PATsekret1234567890abcXYZ"
    headers = {"x-pat": secret, "x-stage": "production", "user-agent": "probe-of-2024-08-06/build-17"}
    upstream.scripts["names-headers"] = lambda seen: whole(
        {"error": {"message": f"bad {seen.headers['x-pat']} {seen.headers['x-stage']} {seen.headers['user-agent']}"}}, 401
    )
    with keeping(upstream, url, upstreams=upstreams_at(upstream.url, key=KEY, headers=headers)) as gateway:
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/names-headers"))
        assert answer.status == 401
        kept(url, lambda found: bool(found) and all(turn.ending for turn in found))
        no_secret_in(everything(gateway, answer) + gateway.ask("/turns").body.decode(), secret)
        assert f"bad {HIDDEN} production probe-of-2024-08-06/build-17" in answer.body.decode()


def test_headers_and_variables_are_shown_only_if_their_names_are_public() -> None:
    values: Mapping[str, Any] = {
        "upstreams": {
            "up": {"base_url": "http://host", "headers": {"X-Pat": "short", "Content-Type": "application/json", "x.y": "dotted"}},
            "headers": {"base_url": "http://host/two"},
        },
        "tools": {"mcp": {"x": {"command": ["x"], "env": {"GH_PAT": "pat", "NODE_ENV": "production"}, "headers": {"x-a": "b"}}}},
        "policies": [{"use": "http_judge", "headers": {"x-pat": "judge"}}],
    }
    rows = {place: value for place, value, _ in shown(LoadedConfig(msgspec.convert(values, Config)))}
    assert rows["upstreams.up.headers.X-Pat"] == HIDDEN
    assert rows["upstreams.up.headers.x.y"] == HIDDEN
    assert rows["upstreams.up.headers.Content-Type"] == '"application/json"'
    assert rows["upstreams.headers.base_url"] == '"http://host/two"'
    assert rows["tools.mcp.x.env.GH_PAT"] == HIDDEN
    assert rows["tools.mcp.x.env.NODE_ENV"] == '"production"'
    assert rows["tools.mcp.x.headers.x-a"] == HIDDEN
    assert rows["policies[0].headers.x-pat"] == HIDDEN


def test_options_with_a_secret_are_masked_in_answers() -> None:
    options = {"session_token": f"{KEY}-option", "api_version": "2024-08-06-preview-of-it", "number": 3}
    assert Upstream(options=options).live_secrets() == (f"{KEY}-option",)


RANDOM_PARTS = ["s3cr3tT0kenValue123", "QKEYq1w2e3r4t5y6u7i8o9p0", "9f86d081884c7d659a2feaa0c55ad015", "sk-abcdefghijklmnop1234"]
NAMES = """v1 v1beta openai deployments my-gpt-4o-deployment-2024-08-06 gpt4o20240806deployment MyGpt4oDeployment20240806
    databricks-meta-llama-3-1-70b-instruct anthropic.claude-3-5-sonnet-20241022-v2:0 Llama-3.3-70B-Instruct-Turbo us-central1
    gpt-35-turbo-16k-0613 my-project-123456 streamGenerateContent 3f0c9a52-7c1e-4a55-9d0f-0b6f2f6a1c11""".split()


@pytest.mark.parametrize("part", RANDOM_PARTS)
def test_a_part_of_a_path_that_looks_random_is_secret(part: str) -> None:
    address = f"https://host/{part}/v1"
    assert Upstream(base_url=address).place == f"https://host/{HIDDEN}/v1"
    assert part in set(Upstream(base_url=address).secrets())
    rows = shown(LoadedConfig(msgspec.convert({"upstreams": {"up": {"base_url": address}}}, Config)))
    assert part not in str(rows)
    assert shown_url(f"file:/data/{part}") == f"file:/data/{part}"


def test_names_in_headers_and_paths_stay_in_answers() -> None:
    """Tools run with what an answer says: a masked name of a project would be another one."""
    names = {
        "x-goog-user-project": "acme-research-prod-123456",
        "x-app-url": "https://app2.example.com",
        "helicone-model-override": "claude-3-5-sonnet-20241022",
    }
    path = "https://host/models/Qwen2p5Coder32BInstruct/v1"
    assert Upstream(name="a", base_url=path, headers=names).live_secrets() == ()
    token, hexadecimal = "Zk9rTq2LmW8vXc4NbY7eHd5s", "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    found = Upstream(name="a", base_url=f"https://host/{hexadecimal}/v1", headers={"x-pat": token}).live_secrets()
    assert set(found) == {token, hexadecimal}


def test_names_in_a_path_are_shown() -> None:
    for address in (*(provider.base_url for provider in PROVIDERS), *(f"https://host/{name}/v1" for name in NAMES)):
        assert shown_url(address) == address
        assert set(secrets_in_url(address)) <= {""}


# --- recordings


def recorded(upstream: HostileUpstream, **settings: Any) -> Capture:
    asked = Upstream(name="one", base_url=f"{upstream.url}/v1", dialect="openai_chat", key=KEY, headers={"x-token": HEADER})
    request = Request("recorded", messages=[Message("user", [TextPart("q")])])
    return asyncio.run(capture(asked, "recorded", request, settings))


def test_a_recording_has_no_secret(upstream: HostileUpstream, tmp_path: Path) -> None:
    body = sse(text_chunk(f"you sent {KEY} and {HEADER}"), END, DONE)
    cuts = [body.index(KEY.encode()) + 7, body.index(HEADER.encode()) + 3]
    upstream.scripts["recorded"] = streamed(body[: cuts[0]], body[cuts[0] : cuts[1]], body[cuts[1] :], x_echo=f"Bearer {KEY}")
    captured = recorded(upstream)
    captured.save(tmp_path / "recorded")
    assert (captured.status, captured.broken) == (200, "")
    assert len(captured.data) == len(body)
    assert captured.headers["x-echo"] == f"Bearer {HIDDEN}"
    no_secret_in(f"{captured} {(tmp_path / 'recorded').read_text()}")


def test_a_recording_that_breaks_off_keeps_all_bytes_that_came(upstream: HostileUpstream) -> None:
    upstream.scripts["recorded"] = unfinished(sse(text_chunk("Half")) + b"data: " + KEY[:9].encode())
    captured = recorded(upstream)
    assert captured.data.endswith(b"data: " + KEY[:9].encode()), "the beginning of a key is no key"
