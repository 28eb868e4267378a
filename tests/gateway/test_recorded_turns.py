"""The gateway stores its exchanges: turns with their endings, sessions, and state that returns to its provider."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.dialect_clients import CLIENT_DIALECTS, body_of, path_of
from gateway.raw import RawClient
from gateway.running import running
from gateway.stored_turns import chunk, keeping, kept, text_script
from gateway.upstream import Cut, HostileUpstream, Until, sse, streamed, unfinished, whole
from streamglot.messages import ReasoningPart, TextPart
from web_chat import web_chat

pytestmark = pytest.mark.usefixtures("patient_lookups")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept.db"


@pytest.mark.parametrize("dialect", CLIENT_DIALECTS)
@pytest.mark.parametrize("stream", [True, False])
def test_a_turn_is_stored_completely(upstream: HostileUpstream, url: str, dialect: str, stream: bool) -> None:
    upstream.scripts["told"] = text_script("Hello", " world")
    with keeping(upstream, url) as gateway:
        answer = gateway.ask(path_of(dialect, "work/told", stream), body_of(dialect, "work/told", stream))
        assert answer.status == 200
        (turn,) = kept(url)
    assert turn.ending == "end"
    assert turn.id == answer.headers["x-streamglot-turn"]
    assert turn.session_id == answer.headers["x-streamglot-session"]
    assert turn.dialects == {"client": dialect, "upstream": "openai_chat"}
    assert (turn.model, turn.upstream, turn.upstream_model) == ("work/told", "work", "told")
    assert turn.request is not None
    assert turn.request.messages[-1].text == "q"
    assert turn.upstream_request is not None
    assert turn.upstream_request.model == "told"
    assert turn.response is not None
    assert turn.response.choices[0].text == "Hello world"
    assert turn.usage is not None
    assert (turn.usage.input_tokens, turn.usage.output_tokens) == (3, 4)
    assert turn.duration is not None
    assert turn.timings["first_event"] > 0


def test_every_turn_has_its_real_ending(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["cut"] = unfinished(chunk({"content": "half an"}), end=Cut())
    upstream.scripts["refused"] = whole({"error": {"message": "no such model"}}, 404)
    upstream.scripts["long"] = streamed(chunk({"content": "on and"}), chunk({}, "length"), sse("[DONE]"))
    upstream.scripts["slow"] = text_script("first", Until(threading.Event()))
    with keeping(upstream, url) as gateway:
        for model in ("cut", "refused", "long"):
            gateway.ask(path_of("openai_chat", model), body_of("openai_chat", f"work/{model}"))
        client = RawClient(gateway.port)
        client.post("/v1/chat/completions", body_of("openai_chat", "work/slow"))
        client.read_until(b"first")
        client.hang_up()
        found = {
            turn.upstream_model or turn.model: turn for turn in kept(url, lambda found: len(found) == 4 and found[-1].ending)
        }
    endings = {name: turn.ending for name, turn in found.items()}
    assert endings == {"cut": "truncated", "work/refused": "error", "long": "length", "slow": "client_gone"}
    for name, text in (("cut", "half an"), ("long", "on and"), ("slow", "first")):
        response = found[name].response
        assert response is not None
        assert response.choices[0].text == text
    assert found["cut"].error is not None
    assert found["cut"].error.code == "upstream_truncated"
    refusal = found["work/refused"].error
    assert refusal is not None
    assert refusal.status == 404
    assert "no such model" in refusal.message


def test_without_content_only_facts_are_stored(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("secret words")
    upstream.scripts["quotes"] = whole({"error": {"message": "bad word: secret", "code": "bad_word"}}, status=400)
    with keeping(upstream, url, store={"content": False}) as gateway:
        answer = gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/told"))
        assert b"secret" in gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/quotes")).body
        turn, failed = kept(url, lambda found: len(found) == 2 and all(turn.ending for turn in found))
        assert "x-streamglot-stream" not in answer.headers
    assert failed.error is not None
    assert (failed.error.code, failed.error.status, failed.error.detail) == ("bad_word", 400, None)
    assert (turn.ending, turn.request, turn.response, turn.upstream_request) == ("end", None, None, None)
    assert turn.usage is not None
    assert turn.usage.output_tokens == 4
    assert b"secret" not in b"".join(path.read_bytes() for path in Path(url.removeprefix("sqlite:///")).parent.iterdir())
    with running({"store": {"url": "none"}}) as gateway:
        off = gateway.ask("/v1/streams/x")
        assert (off.status, off.json()["error"]["code"]) == (404, "store_off")


# --- sessions


def chat_request(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"model": "work/told", "messages": messages, "stream": True}


def test_a_conversation_is_one_session(upstream: HostileUpstream, url: str) -> None:
    """Sessions are found by their content or by the client's id, and never across callers."""
    upstream.scripts["told"] = text_script("Hello", " world")
    with keeping(upstream, url) as gateway:

        def session(body: dict[str, Any], **headers: str) -> str:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return gateway.ask("/v1/chat/completions", body, sent).headers["x-streamglot-session"]

        first = session(chat_request("one"))
        assert session(chat_request("one", "Hello world", "two")) == first
        assert session(chat_request("one", "  Hello   world", "two again")) == first
        assert session(chat_request("another")) != first
        assert session(chat_request("one", "Hello world", "two"), x_api_key="somebody") != first
        named = session(chat_request("x"), x_streamglot_session="mine")
        assert session(chat_request("y"), x_streamglot_session="mine") == named != first
        assert session(chat_request("y"), x_streamglot_session="mine", x_api_key="somebody") != named


def test_an_answer_is_continued_by_its_id(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello", " world")
    with keeping(upstream, url) as gateway:
        body = {"model": "work/told", "input": "one", "instructions": "Be brief."}
        first = gateway.ask("/v1/responses", body)
        second = gateway.ask(
            "/v1/responses",
            {"model": "work/told", "input": "two", "previous_response_id": first.json()["id"], "instructions": "Sing."},
        )
        assert second.status == 200, second.body
        third = gateway.ask(
            "/v1/responses", {"model": "work/told", "input": "three", "previous_response_id": second.json()["id"]}
        )
        assert third.json()["previous_response_id"] == second.json()["id"]
        sent = [one.body["messages"] for one in upstream.requests("told")[-2:]]
        unknown = gateway.ask("/v1/responses", {"model": "work/told", "input": "x", "previous_response_id": "resp_no"})
        assert unknown.status == 400
        assert unknown.json()["error"]["code"] == "previous_response_not_found"
    conversation = [("user", "one"), ("assistant", "Hello world"), ("user", "two")]
    assert [(one["role"], one["content"]) for one in sent[0]] == [("system", "Sing."), *conversation]
    later = [*conversation, ("assistant", "Hello world"), ("user", "three")]
    assert [(one["role"], one["content"]) for one in sent[1]] == later


def test_a_conversation_is_continued_by_its_id(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["told"] = text_script("Hello", " world")
    with keeping(upstream, url) as gateway:
        for question in ("one", "two"):
            body = {"model": "work/told", "input": question, "conversation": {"id": "conv_1"}}
            assert gateway.ask("/v1/responses", body).status == 200
            kept(url, lambda found: found and all(turn.ending for turn in found))
        sent = upstream.requests("told")[-1].body["messages"]
    assert [one["content"] for one in sent] == ["one", "Hello world", "two"]


# --- state of providers


ANTHROPIC = (
    sse({"type": "message_start", "message": {"id": "m", "model": "c", "role": "assistant", "content": [], "usage": {}}}),
    sse({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
    sse({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}}),
    sse({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "signed"}}),
    sse({"type": "content_block_stop", "index": 0}),
    sse(
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
        }
    ),
    sse({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"city": "Rome"}'}}),
    sse({"type": "content_block_stop", "index": 1}),
    sse({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}),
    sse({"type": "message_stop"}),
)
GEMINI_PART = {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "Z2VtaW5p"}
GEMINI = sse(
    {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": [GEMINI_PART]}, "finishReason": "STOP"}],
        "responseId": "g",
        "modelVersion": "g",
    }
)


def test_signatures_survive_a_client_that_drops_them(upstream: HostileUpstream, url: str) -> None:
    """A tool conversation over two providers, by a chat client that knows no signatures: each gets its own back, no other's."""
    upstream.scripts["signs"] = [streamed(*ANTHROPIC), streamed(*ANTHROPIC), streamed(*ANTHROPIC)]
    upstream.scripts["signs-too"] = [streamed(GEMINI), streamed(GEMINI)]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather?"}]
    tools = body_of("openai_chat", "x", tools=("weather",))["tools"]
    with keeping(upstream, url) as gateway:
        for model in ("claude/signs", "google/signs-too", "claude/signs", "google/signs-too"):
            answer = gateway.ask("/v1/chat/completions", {"model": model, "messages": messages, "tools": tools}).json()
            call = answer["choices"][0]["message"]["tool_calls"][0]
            plain = {"id": call["id"], "type": "function", "function": call["function"]}
            messages.append({"role": "assistant", "content": None, "tool_calls": [plain]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "rain"})
        claude = upstream.requests("signs")[-1].body["messages"]
        google = upstream.requests("signs-too")[-1].body["contents"]
        assert len({turn.session_id for turn in kept(url, lambda found: len(found) == 4 and found[-1].ending)}) == 1
    own = [block for one in claude if one["role"] == "assistant" for block in one["content"]]
    assert [block.get("signature") for block in own if block["type"] == "thinking"] == ["signed"]
    assert [block["input"]["city"] for block in own if block["type"] == "tool_use"] == ["Rome", "Oslo"]
    parts = [part for one in google if one["role"] == "model" for part in one["parts"] if "functionCall" in part]
    assert [part["functionCall"]["args"]["city"] for part in parts] == ["Rome", "Oslo", "Rome"]
    assert [part.get("thoughtSignature") for part in parts].count("Z2VtaW5p") == 1
    assert parts[1].get("thoughtSignature") == "Z2VtaW5p"


def test_a_web_chat_gets_what_another_upstream_was_told(upstream: HostileUpstream, url: str) -> None:
    """The upstream keeps the conversation, and has missed what another upstream was told."""
    upstream.scripts["told"] = text_script("Hello")
    with web_chat() as chat, keeping(upstream, url, upstreams={"qwen": {"dialect": "qwen_web", "base_url": chat.url}}) as gateway:
        chat.answer = lambda _: ["Hello"]
        echo = {"role": "assistant", "content": "Hello"}
        one, two, three, four = ({"role": "user", "content": text} for text in ("one", "two", "three", "four"))
        gateway.ask("/v1/chat/completions", {"model": "qwen/web", "messages": [one]})
        gateway.ask("/v1/chat/completions", {"model": "qwen/web", "messages": [one, echo, two]})
        elsewhere = [one, echo, two, echo, three]
        gateway.ask("/v1/chat/completions", {"model": "work/told", "messages": elsewhere})
        gateway.ask("/v1/chat/completions", {"model": "qwen/web", "messages": [*elsewhere, echo, four]})
    assert chat.places == [("chat-1", None), ("chat-1", "r-1"), ("chat-2", None)]
    assert "three" in chat.asked[2].content
    assert len({asked.body["messages"][0]["fid"] for asked in chat.asked}) == 3


def test_reasoning_is_kept_too(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["thinks"] = streamed(chunk({"reasoning_content": "Hm."}), chunk({"content": "Yes."}), chunk({}, "stop"))
    with keeping(upstream, url, store={"raw": True}) as gateway:
        gateway.ask("/v1/chat/completions", body_of("openai_chat", "work/thinks"))
        (turn,) = kept(url)
    assert turn.response is not None
    assert [(type(part), part.text) for part in turn.response.choices[0].parts] == [  # type: ignore[union-attr]  # reasoning and text
        (ReasoningPart, "Hm."),
        (TextPart, "Yes."),
    ]


def test_the_cost_of_an_answer_is_counted_once(upstream: HostileUpstream, url: str) -> None:
    upstream.scripts["gpt-4o"] = text_script("Hi")
    route = {"models": ["same"], "to": [{"upstream": "openai", "model": "gpt-4o"}], "cache_seconds": 60}
    paid = {"openai": {"base_url": f"{upstream.url}/v1", "models": ["gpt-4o"], "dialect": "openai_chat"}}
    with keeping(upstream, url, upstreams=paid, routes=[route]) as gateway:
        for _ in range(2):
            assert gateway.ask("/v1/chat/completions", {**body_of("openai_chat", "same"), "stream": False}).status == 200
        first, second = kept(url, lambda found: len(found) == 2 and all(turn.ending for turn in found))
        assert first.cost is not None
        assert first.cost > 0
        assert (second.cost, second.more) == (0.0, {"cached": True})


def test_no_secret_of_an_upstream_is_kept(upstream: HostileUpstream, url: str) -> None:
    """Providers repeat the key in their refusal, in the message and beside it."""
    secret = "very-secret-0123456789"
    error_body = {
        "error": {"message": f"Incorrect API key provided: {secret}", "key": {"was": [secret]}, "code": "invalid_api_key"}
    }
    upstream.scripts["refused"] = whole(error_body, status=401)
    mine = {"mine": {"base_url": f"{upstream.url}/v1", "dialect": "openai_chat", "key": secret}}
    with keeping(upstream, url, upstreams=mine) as gateway:
        assert gateway.ask("/v1/chat/completions", body_of("openai_chat", "mine/refused")).status == 401
        (turn,) = kept(url)
        assert turn.error is not None
        assert "Incorrect API key provided" in turn.error.message
        found = gateway.ask(f"/turns/{turn.id}")
        assert found.status == 200
        assert secret not in found.body.decode() + str(turn)
