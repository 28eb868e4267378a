"""``prepare``, and requests that are written by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from streamglot import Built, ConfigError, RequestError, Unsupported, UpstreamEndpoint, dialect, prepare, read
from streamglot.dialects import DIALECTS
from streamglot.upstream.providers import PROVIDERS, VENDORS
from vocabulary import *

HELLO = Request("m", "Hello")
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}


# --- by hand


def test_requests_and_messages_are_written_in_one_line() -> None:
    hello = Message("user", [TextPart("Hello")])
    assert Request("m", "Hello") == Request("m", [hello]) == Request("m", hello) == Request("m", (hello,))
    assert Request("m", "Hello") == Request(model="m", messages="Hello") == Request("m", [Message("user", "Hello")])
    assert Message("user", "Hello") == Message("user", TextPart("Hello")) == Message("user", ["Hello"]) == hello
    picture = MediaPart(url="https://example.com/a.png")
    assert Message("user", [TextPart("x"), picture]).parts == [TextPart("x"), picture]
    assert Message("user", ["x", picture, "y"]).parts == [TextPart("x"), picture, TextPart("y")]
    assert Message("user", iter([picture])).parts == [picture]
    assert ToolResultPart("c", "22 °C") == ToolResultPart("c", [TextPart("22 °C")])
    assert ToolResultPart("c", (TextPart("a"),)).text == "a"
    assert Message("tool", ToolResultPart("c", "22 °C")).parts[0] == ToolResultPart("c", [TextPart("22 °C")])


def test_a_request_can_be_written_as_json_and_read_again() -> None:
    request = Request("m", [Message("user", "Hello"), Message("tool", ToolResultPart("c", "x"))], max_tokens=5)
    assert msgspec.json.decode(msgspec.json.encode(request), type=Request) == request


@pytest.mark.parametrize("wrong", [5, None, b"Hello", {"type": "text"}, [5], [["x"]], [{"type": "text", "text": "x"}]], ids=repr)
def test_parts_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="part"):
        Message("user", wrong)


@pytest.mark.parametrize("wrong", [5, None, b"Hello", {"role": "user"}, ["Hello"], [{"role": "user", "content": "x"}]], ids=repr)
def test_messages_that_are_none_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"messages of a request|parse_request"):
        Request("m", wrong)


# --- prepare


def test_a_request_is_prepared_with_everything_that_is_sent() -> None:
    ready = prepare(Request("m", "Hello", stream=True, seed=1), "anthropic", base_url="https://x.example", key="k1")
    assert ready.url == "https://x.example/v1/messages"
    assert ready.headers["x-api-key"] == "k1"
    assert ready.headers["content-type"] == "application/json"
    assert ready.body["messages"] == [{"role": "user", "content": "Hello"}]
    assert json.loads(ready.content) == ready.body
    assert isinstance(ready.content, bytes)
    assert ready.dropped == ["seed"]
    assert (ready.dialect, ready.provider) == ("anthropic", "anthropic")


@pytest.mark.parametrize("given", [BODY, json.dumps(BODY), json.dumps(BODY).encode()], ids=["dict", "str", "bytes"])
def test_the_body_of_a_client_is_prepared(given: Any) -> None:
    ready = prepare(given, "anthropic", source="openai_chat", key="k1", model="other")
    assert ready.url == "https://api.anthropic.com/v1/messages"
    assert ready.body["model"] == "other"
    assert ready.body["stream"] is True
    assert prepare(given, "anthropic", source="openai_chat", stream=False).body.get("stream") is not True


@pytest.mark.parametrize("target", sorted(name for name in DIALECTS if DIALECTS[name].has_body))
def test_every_upstream_dialect_is_prepared_as_its_dialect_does(target: str) -> None:
    wire, model = dialect(target), "anthropic.claude" if target == "bedrock_invoke" else "m"
    request = Request(model, "Hello", stream=True)
    ready = prepare(request, target, base_url="https://x.example", key="k")
    built, place = wire.build_request(request), wire.endpoint("https://x.example", request, "k")
    assert isinstance(built, Built)
    assert isinstance(place, UpstreamEndpoint)
    assert (ready.url, ready.body, ready.dropped) == (place.url, built.body, built.dropped)
    assert ready.headers.items() >= place.headers.items()


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("openai_chat", "https://api.openai.com/v1/chat/completions"),
        ("openai_responses", "https://api.openai.com/v1/responses"),
        ("anthropic", "https://api.anthropic.com/v1/messages"),
        ("gemini", "https://generativelanguage.googleapis.com/v1beta/models/m:generateContent"),
        ("cohere", "https://api.cohere.com/v2/chat"),
        ("ollama", "http://127.0.0.1:11434/api/chat"),
    ],
)
def test_the_address_of_the_dialects_own_vendor_is_known(target: str, url: str) -> None:
    assert prepare(HELLO, target).url == url


def test_the_vendors_are_rows_of_the_provider_table() -> None:
    assert set(VENDORS.values()) <= {row.name for row in PROVIDERS}
    assert set(VENDORS) <= set(DIALECTS)


@pytest.mark.parametrize("row", PROVIDERS, ids=lambda row: row.name)
def test_the_address_of_every_provider_is_known(row: Any) -> None:
    assert prepare(HELLO, row.dialect, provider=row.name).url.startswith(row.base_url)
    assert prepare(HELLO, provider=row.name) == prepare(HELLO, row.dialect, provider=row.name)


def test_what_a_provider_does_not_accept_is_left_out() -> None:
    ready = prepare(Request("m", "Hello", seed=1, max_tokens=5), "openai_chat", provider="mistral")
    assert "seed" in ready.dropped
    own_limit = prepare(Request("m", "Hello", max_tokens=5), provider="groq").body
    assert own_limit["max_completion_tokens"] == 5


def test_options_headers_and_addresses_are_passed_on() -> None:
    ready = prepare(HELLO, "anthropic", max_tokens=7, version="2024-01-01", headers={"x-team": "a"})
    assert ready.body["max_tokens"] == 7
    assert ready.headers["anthropic-version"] == "2024-01-01"
    assert ready.headers["x-team"] == "a"
    assert prepare(HELLO, "openai_chat", base_url="http://localhost:1/v1", provider="mine").provider == "mine"


@pytest.mark.parametrize(("owner", "returns"), [("anthropic", True), ("another", False)])
def test_opaque_state_returns_to_its_provider(owner: str, returns: bool) -> None:
    """State names its maker, whatever the upstream is called."""
    thought = ReasoningPart("Hm.", echo=Echo(owner, {"signature": "signed"}))
    request = Request("m", [Message("user", "x"), Message("assistant", [thought, "Yes."]), Message("user", "y")])
    ready = prepare(request, "anthropic", base_url="https://x.example", provider="mine")
    assert ("signed" in str(ready.body)) == returns


def test_the_key_is_not_shown() -> None:
    ready = prepare(HELLO, "anthropic", key="sk-secret-1", base_url="https://user:pw@x.example")
    assert "sk-secret-1" not in f"{ready} {ready!r}"
    assert "pw@" not in f"{ready}"


def test_faults_are_named() -> None:
    with pytest.raises(TypeError, match="source='…'"):
        prepare(BODY, "anthropic")
    with pytest.raises(TypeError, match="not int"):
        prepare(5, "anthropic")  # type: ignore[arg-type]  # that is what is tested
    with pytest.raises(TypeError, match="needs the dialect of the upstream"):
        prepare(HELLO)
    with pytest.raises(TypeError, match="the request builder of 'anthropic' has no option 'foo'; it has version"):
        prepare(HELLO, "anthropic", foo=1)  # type: ignore[call-arg]  # that is what is tested
    with pytest.raises(ConfigError, match=r"did you mean 'anthropic'\?"):
        prepare(HELLO, "antropic")
    with pytest.raises(ConfigError, match=r"did you mean 'openai_chat'\?"):
        prepare(BODY, "anthropic", source="openai-chat")
    with pytest.raises(ConfigError, match=r"did you mean 'openrouter'\?"):
        prepare(HELLO, "openai_chat", provider="openroutr")
    with pytest.raises(ConfigError, match="pass base_url"):
        prepare(HELLO, "bedrock_converse")
    with pytest.raises(ConfigError, match="the provider 'openrouter' speaks 'openai_chat'"):
        prepare(HELLO, "gemini", provider="openrouter")
    with pytest.raises(ConfigError, match="only clients speak it"):
        prepare(HELLO, "agui", base_url="http://x")
    with pytest.raises(RequestError, match="not JSON"):
        prepare("{", "anthropic", source="openai_chat")
    with pytest.raises(RequestError, match="not an object"):
        prepare("[]", "anthropic", source="openai_chat")
    with pytest.raises(Unsupported):
        prepare(Request("m", "x", n=2), "anthropic")


def test_what_is_read_with_the_names_of_the_prepared_request_returns_to_the_provider() -> None:
    ready = prepare(HELLO, provider="openrouter")
    body = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    stream = read(body, ready.dialect, provider=ready.provider)
    list(stream)
    assert stream.response().text == "Hi"


# --- the signatures of a dialect


def test_model_and_stream_of_a_parsed_request_can_be_given() -> None:
    chat = dialect("openai_chat")
    assert (chat.parse_request(BODY).model, chat.parse_request(BODY).stream) == ("m", True)
    given = chat.parse_request(BODY, model="other", stream=False)
    assert (given.model, given.stream) == ("other", False)
    of_url = dialect("gemini").parse_request({"contents": [{"parts": [{"text": "Hi"}]}]}, model="g", stream=True)
    assert (of_url.model, of_url.stream) == ("g", True)
    with pytest.raises(TypeError, match=r"decode it with json\.loads"):
        chat.parse_request(b"{}")  # type: ignore[arg-type]  # that is what is tested
