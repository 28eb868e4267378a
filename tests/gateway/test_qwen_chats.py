"""Upstreams of the Qwen web chat: the gateway makes their chats, stays in them and finds the right place in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.running import Answer, Running, running
from gateway.stored_turns import kept
from streamglot.store import TurnDetail
from web_chat import USAGE, WebChat, web_chat

pytestmark = pytest.mark.usefixtures("patient_lookups")

READ = {
    "type": "function",
    "function": {
        "name": "read",
        "description": "Reads a file",
        "parameters": {"type": "object", "properties": {"filePath": {"type": "string"}}},
    },
}


@pytest.fixture
def chat() -> Iterator[WebChat]:
    with web_chat() as server:
        yield server


@pytest.fixture(params=["none", "kept", "facts"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """No store, a store, and a store without contents."""
    where: str = request.param
    return {} if where == "none" else {"url": f"sqlite:///{tmp_path}/kept.db", "content": where == "kept"}


@contextmanager
def serving(chat: WebChat, store: dict[str, Any] | None = None, **more: Any) -> Iterator[Running]:
    """The upstream has a name of its own, and does not say more than its dialect and its address."""
    mine = {"dialect": "qwen_web", "base_url": chat.url, "pause": 0.01, **more.pop("upstream", {})}
    with running({"upstreams": {"colleague": mine}, "store": store or {}, **more}) as gateway:
        yield gateway


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(answer: Answer) -> dict[str, Any]:
    """The answer's message, as a client sends it back."""
    assert answer.status == 200, answer.body
    message = answer.json()["choices"][0]["message"]
    return {name: value for name, value in message.items() if name in ("role", "content", "tool_calls")}


def ask(gateway: Running, *messages: dict[str, Any], **more: Any) -> Answer:
    return gateway.ask("/v1/chat/completions", {"model": "colleague/qwen3-max", "messages": list(messages), **more})


def all_written(count: int) -> Callable[[list[TurnDetail]], bool]:
    return lambda found: len(found) == count and all(turn.ending for turn in found)


def chunks(answer: Answer) -> list[Any]:
    lines = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n\n") if line]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def test_conversations_get_chats_of_their_own_and_stay_in_them(chat: WebChat, store: dict[str, Any]) -> None:
    with serving(chat, store) as gateway:
        one = said(ask(gateway, user("one")))
        ask(gateway, user("another conversation"))
        two = said(ask(gateway, user("one"), one, user("two")))
        ask(gateway, user("one"), one, user("two"), two, user("three"))
    assert chat.places == [("chat-1", None), ("chat-2", None), ("chat-1", "r-1"), ("chat-1", "r-3")]
    assert [asked.content for asked in chat.asked] == ["one", "another conversation", "two", "three"]
    assert all(asked.path == f"/api/v2/chat/completions?chat_id={asked.place[0]}" for asked in chat.asked)
    made = chat.made[0].body
    assert (made["models"], made["chat_type"], made["chat_mode"]) == (["qwen3-max"], "t2t", "normal")
    assert made["timestamp"] > 10**12, "milliseconds"


@pytest.mark.parametrize("stream", [False, True])
def test_streams_and_whole_answers_are_continued(chat: WebChat, store: dict[str, Any], stream: bool) -> None:
    chat.answer = lambda text: ["Yes: ", text]
    with serving(chat, store) as gateway:
        ask(gateway, user("one"), stream=stream)
        ask(gateway, user("one"), {"role": "assistant", "content": "Yes: one"}, user("two"), stream=stream)
    assert chat.places == [("chat-1", None), ("chat-1", "r-1")]


def test_two_conversations_that_begin_with_the_same_words(chat: WebChat, store: dict[str, Any]) -> None:
    with serving(chat, store) as gateway:
        first, second = said(ask(gateway, user("Hi"))), said(ask(gateway, user("Hi")))
        ask(gateway, user("Hi"), first, user("one"))
        ask(gateway, user("Hi"), second, user("another"))
    assert {place[0] for place in chat.places[:2]} == {place[0] for place in chat.places[2:]} == {"chat-1", "chat-2"}


def test_an_edited_earlier_question_follows_the_answer_before_it(chat: WebChat, store: dict[str, Any]) -> None:
    """All answers have the same words, so that only the whole conversation tells them apart."""
    chat.answer = lambda text: ["Certainly."]
    echo = {"role": "assistant", "content": "Certainly."}
    with serving(chat, store) as gateway:
        ask(gateway, user("one"))
        ask(gateway, user("one"), echo, user("two"))
        ask(gateway, user("one"), echo, user("two"), echo, user("three"))
        ask(gateway, user("one"), echo, user("two, edited"))
        ask(gateway, user("one"), echo, user("two, edited"), echo, user("after the edit"))
        ask(gateway, user("one"), echo, user("two"), echo, user("three again"))
    parents = [parent for _, parent in chat.places]
    assert parents == [None, "r-1", "r-2", "r-1", "r-4", "r-2"]
    assert {place[0] for place in chat.places} == {"chat-1"}
    assert [asked.content for asked in chat.asked[3:]] == ["two, edited", "after the edit", "three again"]


def test_a_conversation_goes_on_after_a_restart(chat: WebChat, tmp_path: Path) -> None:
    where = {"url": f"sqlite:///{tmp_path}/kept.db", "content": True}
    messages = [user("one")]
    for text in ("two", "three"):
        with serving(chat, where) as gateway:
            messages += [said(ask(gateway, *messages)), user(text)]
    with serving(chat, where) as gateway:
        ask(gateway, *messages)
        ask(gateway, *messages[:2], user("two, edited"))
    assert chat.places == [("chat-1", None), ("chat-1", "r-1"), ("chat-1", "r-2"), ("chat-1", "r-1")]


def test_other_processes_know_where_a_conversation_stands(chat: WebChat, tmp_path: Path) -> None:
    """They have it from the store, once it is written there."""
    url = f"sqlite:///{tmp_path}/kept.db"
    with serving(chat, {"url": url, "content": True}) as one, serving(chat, {"url": url, "content": True}) as other:
        messages = [user("one")]
        for count, gateway in enumerate((other, one, other, one), 1):
            messages += [said(ask(gateway, *messages)), user("next")]
            kept(url, all_written(count))
    assert chat.places == [("chat-1", None), ("chat-1", "r-1"), ("chat-1", "r-2"), ("chat-1", "r-3")]


def test_a_session_that_its_client_names_stays_in_its_chat(chat: WebChat, tmp_path: Path) -> None:
    where = {"url": f"sqlite:///{tmp_path}/kept.db", "content": True}
    previous: dict[str, str] = {}
    for text in ("one", "two"):
        with serving(chat, where) as gateway:
            answer = gateway.ask("/v1/responses", {"model": "colleague/qwen3-max", "input": text, **previous})
        previous = {"previous_response_id": answer.json()["id"]}
    assert chat.places == [("chat-1", None), ("chat-1", "r-1")]
    assert chat.asked[1].content == "two"


def test_callers_never_share_a_chat(chat: WebChat, store: dict[str, Any]) -> None:
    keys = [{"name": name, "key_env": name.upper()} for name in ("ann", "bob")]
    with running(
        {
            "upstreams": {"colleague": {"dialect": "qwen_web", "base_url": chat.url}},
            "store": store,
            "server": {"keys": keys},
        },
        environment={"ANN": "key-of-ann", "BOB": "key-of-bob"},
    ) as gateway:
        body = {"model": "colleague/q", "messages": [user("Hi"), {"role": "assistant", "content": "x"}, user("go on")]}
        chat.answer = lambda text: ["x"]
        first = {**body, "messages": [user("Hi")]}
        for name, asked in (("ann", first), ("bob", body), ("ann", body)):
            answer = gateway.ask("/v1/chat/completions", asked, {"authorization": f"Bearer key-of-{name}"})
            assert answer.status == 200, answer.body
    assert chat.places == [("chat-1", None), ("chat-2", None), ("chat-1", "r-1")]


def test_tools_are_described_and_called_without_any_setting(chat: WebChat, store: dict[str, Any]) -> None:
    """The example of a tool call, then its result in the same chat."""
    call = ["I'll ", "read ", "the ", "file.\n\n", "<read>\n", "<filePath>/home/user/package.json</filePath>\n", "</read>"]
    chat.answer = lambda text: ["It has 5 dependencies."] if "<tool_response" in text else call
    question = user("Read the package.json file")
    with serving(chat, store, server={"usage": "always"}) as gateway:
        written = chunks(ask(gateway, question, tools=[READ], stream=True))
        deltas = [chunk["choices"][0]["delta"] for chunk in written[:-1] if chunk["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert "".join(delta.get("content") or "" for delta in deltas).rstrip() == "I'll read the file."
        assert (calls[0]["function"], calls[0]["type"]) == ({"name": "read", "arguments": ""}, "function")
        assert json.loads("".join(one["function"]["arguments"] for one in calls)) == {"filePath": "/home/user/package.json"}
        assert written[-3]["choices"][0]["finish_reason"] == "tool_calls"
        assert (written[-2]["choices"], written[-2]["usage"]["total_tokens"]) == ([], sum(USAGE.values()))
        function = {"name": "read", "arguments": '{"filePath": "/home/user/package.json"}'}
        answered = {
            "role": "assistant",
            "content": "I'll read the file.",
            "tool_calls": [{"id": calls[0]["id"], "type": "function", "function": function}],
        }
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": '{"dependencies":{}}'}
        final = ask(gateway, question, answered, result, tools=[READ])
    assert said(final)["content"] == "It has 5 dependencies."
    assert chat.places == [("chat-1", None), ("chat-1", "r-1")]
    told, then = chat.asked
    assert "<read>\n<filePath>" in told.content
    assert "Reads a file" in told.content
    assert then.content.startswith('<tool_response name="read"')
    assert "Reads a file" not in then.content, "the chat knows the tools"


def test_changed_instructions_are_told_again(chat: WebChat) -> None:
    with serving(chat) as gateway:
        first = said(ask(gateway, {"role": "system", "content": "Be brief."}, user("one")))
        ask(gateway, {"role": "system", "content": "Be brief."}, user("one"), first, user("two"))
        ask(gateway, {"role": "system", "content": "Be long."}, user("one"), first, user("three"))
        ask(gateway, user("one"), first, user("four"), tools=[READ])
    assert [asked.content for asked in chat.asked[:3]] == ["Be brief.\n\none", "two", "Be long.\n\nthree"]
    assert "Reads a file" in chat.asked[3].content
    assert {place[0] for place in chat.places} == {"chat-1"}


@pytest.mark.parametrize(
    "text",
    [
        "Let me read it.\n\n<read>\n<filePath>/test",
        "Let me read it.\n\n<read>\n<filePath>/test</filePath>\n",
        "Let me read it. <read><filePath>/test.js</read> Done.",
    ],
)
def test_half_a_call_is_text(chat: WebChat, text: str) -> None:
    """The two examples of malformed calls, and one between them."""
    chat.answer = lambda _: [text[:20], text[20:30], text[30:]]
    with serving(chat) as gateway:
        message = said(ask(gateway, user("Read it"), tools=[READ]))
        written = chunks(ask(gateway, user("Read it"), tools=[READ], stream=True))
    assert message == {"role": "assistant", "content": text}
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in written[:-1]) == text
    assert written[-2]["choices"][0]["finish_reason"] == "stop"


def test_what_the_configuration_says_of_calls_goes_before_the_dialect(chat: WebChat) -> None:
    chat.answer = lambda _: ["Now: <read>\n<filePath>/test</filePath>\n"]
    with serving(chat, upstream={"bad_call": "incomplete"}) as gateway:
        answer = ask(gateway, user("Read it"), tools=[READ])
    assert answer.json()["error"]["code"] == "tool_call_parse_error"
    chat.answer = lambda _: ['<tool_call>\n{"name": "read", "arguments": {"filePath": "/x"}}\n</tool_call>']
    with serving(chat, upstream={"inband": "hermes"}) as gateway:
        message = said(ask(gateway, user("Read it"), tools=[READ]))
    assert message["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"filePath": "/x"}'}
    with serving(chat, upstream={"inband": "none"}) as gateway:
        refused = ask(gateway, user("Read it"), tools=[READ])
    assert "`inband`" in refused.json()["error"]["message"]


def test_the_chat_of_a_client_is_used(chat: WebChat, store: dict[str, Any]) -> None:
    chat.chats["mine-1"] = set()
    with serving(chat, store) as gateway:
        answer = ask(gateway, user("one"), chat_id="mine-1")
        first = said(answer)
        ask(gateway, user("one"), first, user("two"), chat_id="mine-1")
        ask(gateway, user("one"), first, user("elsewhere"))
        wrong = ask(gateway, user("one"), chat_id=7)
    assert "chat_id" not in answer.headers.get("x-streamglot-dropped", "")
    assert chat.places == [("mine-1", None), ("mine-1", "r-1"), ("mine-1", "r-1")]
    assert chat.made == []
    assert (wrong.status, "chat_id" in wrong.json()["error"]["message"]) == (400, True)


def test_a_chat_that_is_not_made_is_a_typed_error_and_is_tried_again(chat: WebChat) -> None:
    chat.refusals = [(500, {"error": "busy"})]
    with serving(chat) as gateway:
        assert said(ask(gateway, user("one")))
        assert len(chat.made) == 2
        for status, body, code in (
            (401, {"success": False, "data": {"code": "Unauthorized", "details": "log in again"}}, 401),
            (200, {"success": False, "data": {"code": "RateLimited", "details": "slow down"}}, 429),
            (200, b"<html>Are you a robot?</html>", 502),
            (200, {"success": True, "data": {}}, 502),
        ):
            chat.refusals = [(status, body)] * 3
            answer = ask(gateway, user("two"))
            message = answer.json()["error"]["message"]
            assert answer.status == code, answer.body
            assert "a new chat" in message
            assert "upstream 'colleague'" in message


def test_a_request_that_is_tried_again_stays_in_the_chat_that_was_made(chat: WebChat) -> None:
    chat.failures = [(503, {"error": {"message": "busy"}})]
    with serving(chat) as gateway:
        assert said(ask(gateway, user("one")))
    assert (len(chat.made), chat.places) == (1, [("chat-1", None)])


def test_the_cookie_and_the_headers_go_with_both_requests(chat: WebChat) -> None:
    chat.cookie = "token=abc"
    headers = {"cookie": "token=abc", "bx-umidtoken": "T2gA"}
    with serving(chat, upstream={"headers": headers, "key": "the-token"}) as gateway:
        assert said(ask(gateway, user("one")))
        chat.cookie = "token=another"
        refused = ask(gateway, user("two"))
    for asked in (chat.made[0], chat.asked[0]):
        assert (asked.headers["bx-umidtoken"], asked.headers["authorization"]) == ("T2gA", "Bearer the-token")
    assert refused.status == 401
    assert "log in" in refused.json()["error"]["message"]


def test_tools_that_the_gateway_runs_stay_in_the_chat(chat: WebChat, store: dict[str, Any]) -> None:
    def answer(text: str) -> list[str]:
        return ["It is late."] if "<tool_response" in text else ["Let me see.\n\n<time>\n<zone>UTC</zone>\n</time>"]

    chat.answer = answer
    with serving(chat, store, tools={"enabled": ["time"]}) as gateway:
        first = ask(gateway, user("What time is it?"), streamglot={"tools": ["time"]})
        message = said(first)
        assert "It is late." in message["content"]
        ask(gateway, user("What time is it?"), message, user("Thanks"), streamglot={"tools": ["time"]})
    assert [place[1] for place in chat.places] == [None, "r-1", "r-2", "r-3"]
    assert {place[0] for place in chat.places} == {"chat-1"}


# --- the usage chunk


def test_usage_in_every_stream(chat: WebChat) -> None:
    chat.answer = lambda _: ["The package.json file ", "contains 5 dependencies."]
    counted = {"prompt_tokens": 25, "completion_tokens": 15, "total_tokens": 40}
    with serving(chat) as gateway:
        assert not any("usage" in chunk for chunk in chunks(ask(gateway, user("q"), stream=True))[:-1])
    with serving(chat, server={"usage": "always"}) as gateway:
        for asked in ({}, {"stream_options": {"include_usage": False}}, {"stream_options": {"include_usage": True}}):
            *before, last, done = chunks(ask(gateway, user("q"), stream=True, **asked))
            assert ({name: last["usage"][name] for name in counted}, last["choices"], done) == (counted, [], "[DONE]")
            assert not any(chunk.get("usage") for chunk in before)
        chat.usage = None
        *_, last, done = chunks(ask(gateway, user("q"), stream=True))
        assert last["usage"]["prompt_tokens"] > 0
        assert last["usage"]["completion_tokens"] > 0


# --- the guides


@pytest.mark.parametrize("page", ["guides/qwen.md", "coming-from/qwen-proxy.md"])
def test_the_configuration_of_the_pages_works(chat: WebChat, tmp_path: Path, page: str) -> None:
    """Against a server that demands the cookie and a chat."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    blocks = "\n".join(re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert 'usage = "always"' in blocks
    file = tmp_path / "streamglot.toml"
    file.write_text(blocks.replace("https://chat.qwen.ai", chat.url).replace("…", "x"))
    chat.cookie = "token=x; ssxmod_itna=x" if "ssxmod" in blocks else "token=x"
    with running(path=file, environment={"QWEN_TOKEN": "the-token", "STREAMGLOT_SERVER__DISCOVER": "false"}) as gateway:
        body = {"model": "qwen3-max", "messages": [user("one")], "stream": True}
        *_, last, done = chunks(gateway.ask("/v1/chat/completions", body))
        assert (last["usage"]["total_tokens"], done) == (40, "[DONE]")
    assert chat.places == [("chat-1", None)]
    assert chat.made[0].headers["authorization"] == "Bearer the-token"


def test_the_refusals_of_the_guide(chat: WebChat) -> None:
    with serving(chat) as gateway:
        first = said(ask(gateway, user("one")))
        chat.chats.clear()
        gone = ask(gateway, user("one"), first, user("two"))
        assert (gone.status, "no chat 'chat-1'" in gone.json()["error"]["message"]) == (404, True)
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]}
        assert ask(gateway, image).status == 400
        assert ask(gateway, user("one"), response_format={"type": "json_object"}).status == 400
        assert ask(gateway, user("one"), temperature=0.5).headers["x-streamglot-dropped"] == "temperature"
