"""The client as a library: asynchronous and plain, through the same path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import streamglot
from client.scripted_upstreams import LAST, chunk_server, recording, text
from response_server import serve_response
from streamglot import Client, ConfigError, RequestError, Upstream, UpstreamError, UpstreamTimeout, check, collect
from streamglot.upstream import Timeouts
from vocabulary import *
from waiting import WAIT_SECONDS


def test_the_plain_client_asks_a_question(tmp_path: Path) -> None:
    upstream = recording(tmp_path, "song", [*text("la ", "la"), LAST])
    with Client(upstreams=[upstream]) as client:
        stream = client.stream(model="song", messages="sing")
        events = list(stream)
        assert (stream.upstream, stream.dropped) == ("recorded", [])
        again = collect(client.stream(model="recorded/song", messages=[{"role": "user", "content": "again"}]))
    check(events)
    assert collect(events).choices[0].text == "la la" == again.choices[0].text


def test_the_asynchronous_client_asks_a_question(tmp_path: Path) -> None:
    upstream = recording(tmp_path, "song", [*text("la ", "la"), LAST])

    async def ask() -> list[streamglot.Event]:
        async with Client(upstreams=[upstream]) as client:
            return [event async for event in client.stream(model="song", messages="sing")]

    assert collect(asyncio.run(ask())).choices[0].text == "la la"


def test_many_concurrent_requests_are_answered(tmp_path: Path) -> None:
    upstream = recording(tmp_path, "song", [*text(*("la " for _ in range(20))), LAST], gap=0.005)

    async def ask() -> list[str]:
        async with Client(upstreams=[upstream]) as client:

            async def one() -> str:
                return collect([event async for event in client.stream(model="song", messages="sing")]).choices[0].text

            return await asyncio.gather(*(one() for _ in range(20)))

    assert asyncio.run(ask()) == ["la " * 20] * 20


TIDES = {"name": "tides", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}
SPEC = ToolSpec("tides", parameters={"type": "object", "properties": {"port": {"type": "string"}}})
ASKED: dict[str, Any] = {"role": "user", "content": "hi"}


def made(**fields: Any) -> Request:
    """The request that a client makes of these fields."""
    with Client(upstreams=[Upstream(name="one", base_url="http://127.0.0.1:9/v1")]) as client:
        return client.stream(model="m", **fields).request


@pytest.mark.parametrize("messages", ["hi", [Message("user", [TextPart("hi")])], [ASKED]])
@pytest.mark.parametrize("tools", [[{"type": "function", "function": TIDES}], [SPEC]])
def test_tools_of_a_dialect_and_of_ours_go_with_any_messages(messages: Any, tools: Any) -> None:
    request = made(messages=messages, tools=tools, tool_choice="required", max_tokens=3)
    assert (request.tools, request.max_tokens) == ([SPEC], 3)
    assert request.tool_choice == ToolChoice("required")
    assert [(message.role, message.text) for message in request.messages] == [("user", "hi")]


def test_tools_of_both_kinds_keep_their_order() -> None:
    other = ToolSpec("clock")
    request = made(messages="hi", tools=[other, {"type": "function", "function": TIDES}, other])
    assert request.tools == [other, SPEC, other]
    assert made(messages="hi", tools=None, tool_choice=ToolChoice("none")).tools == []


def test_tools_in_the_form_of_a_named_dialect() -> None:
    tool = {"name": "tides", "input_schema": TIDES["parameters"]}
    for messages in ("hi", [ASKED], [Message("user", [TextPart("hi")])]):
        request = made(messages=messages, dialect="anthropic", tools=[tool], max_tokens=9, tool_choice=ToolChoice("required"))
        assert (request.tools, request.max_tokens) == ([SPEC], 9)
        assert (request.tool_choice, request.dialect) == (ToolChoice("required"), "anthropic")
        assert [message.text for message in request.messages] == ["hi"]


def test_messages_of_both_kinds_keep_their_order() -> None:
    answered = Message("assistant", [TextPart("yes")])
    request = made(messages=[ASKED, answered, {"role": "user", "content": "and?"}, ASKED], reasoning=Reasoning("low"))
    assert [message.text for message in request.messages] == ["hi", "yes", "and?", "hi"]
    assert request.reasoning == Reasoning("low")


def test_a_value_that_no_dialect_knows_is_refused() -> None:
    assert made(messages="hi", reasoning={"effort": "high"}).reasoning == Reasoning("high")
    assert made(messages="hi", output=OutputFormat("json_object")).output == OutputFormat("json_object")
    with pytest.raises(TypeError, match="output must be of the type OutputFormat, not"):
        made(messages="hi", output={"type": "json_object"})
    with pytest.raises(RequestError, match=r"tools\[0\]"):
        made(messages="hi", tools=["tides"])


def test_requests_in_every_form() -> None:
    with serve_response("".join([*text("yes"), LAST]).encode(), "text/event-stream") as url:
        ours = [Message("user", [TextPart("hi")])]
        with Client(upstreams=[Upstream(name="one", base_url=f"{url}/v1")]) as client:
            assert client.stream(model="m", messages="hi", max_tokens=3).request.max_tokens == 3
            assert client.stream(model="m", messages=ours, temperature=0.5).request.temperature == 0.5
            theirs = client.stream(model="m", messages=[{"role": "user", "content": "hi"}], dialect="anthropic", max_tokens=9)
            assert theirs.request.max_tokens == 9
            whole = client.stream(Request("m", ours))
            assert whole.request.stream
            assert collect(whole).choices[0].text == "yes"
            system = client.stream(model="m", messages="hi", system="be brief").request.messages[0]
            assert (system.role, system.text) == ("system", "be brief")
            with pytest.raises(TypeError, match="no field colour"):
                client.stream(model="m", messages=ours, colour="red")


def test_an_error_before_the_answer_is_raised() -> None:
    nowhere = Upstream(name="nowhere", base_url="http://127.0.0.1:9/v1", attempts=1)
    with Client(upstreams=[nowhere]) as client:
        with pytest.raises(UpstreamError, match="cannot be reached"):
            list(client.stream(model="m", messages="hi"))
        assert list(client.stream(model="replay", messages="still here"))
    with serve_response(b'{"error":{"message":"no such key"}}', "application/json", 401) as url:
        locked = Upstream(name="locked", base_url=f"{url}/v1", key="sk-secret-secret-secret", attempts=1)
        with Client(upstreams=[locked]) as client, pytest.raises(UpstreamError) as caught:
            list(client.stream(model="m", messages="hi"))
    assert "no such key" in caught.value.message
    assert "sk-secret" not in caught.value.message


def test_an_error_inside_the_answer_is_its_last_event() -> None:
    half = "".join(text("half an ans")).encode()
    with (
        serve_response(half, "text/event-stream") as url,
        Client(upstreams=[Upstream(name="cut", base_url=f"{url}/v1")]) as client,
    ):
        events = list(client.stream(model="m", messages="hi"))
    check(events)
    assert isinstance(events[-1], StreamError)
    assert events[-1].code == "upstream_truncated"
    assert collect(events).choices[0].text == "half an ans"


def test_a_silent_upstream_is_given_up(tmp_path: Path) -> None:
    upstream = recording(tmp_path, "slow", [*text("one ", "two"), LAST], gap=3600.0)
    upstream.timeouts = Timeouts(idle=0.1)
    with Client(upstreams=[upstream]) as client:
        events = list(client.stream(model="slow", messages="hi"))
    check(events)
    assert isinstance(events[-1], StreamError)
    assert events[-1].code == UpstreamTimeout.code
    assert collect(events).choices[0].text == "one "


def test_closing_hangs_up() -> None:
    with chunk_server() as server, Client(upstreams=[server.upstream()]) as client:
        with client.stream(model="m", messages="talk") as stream:
            assert any(isinstance(event, TextDelta) for event in stream)
        assert server.gone.wait(WAIT_SECONDS)
        assert list(stream) == []


def test_leaving_the_client_hangs_up() -> None:
    async def ask(url_of: Upstream) -> None:
        async with Client(upstreams=[url_of]) as client:
            stream = client.stream(model="m", messages="talk")
            assert await anext(stream)

    with chunk_server() as server:
        asyncio.run(ask(server.upstream()))
        assert server.gone.wait(WAIT_SECONDS)


def test_a_slow_reader_slows_the_upstream_down() -> None:
    with chunk_server(gap=0) as server, Client(upstreams=[server.upstream()]) as client:
        stream = client.stream(model="m", messages="talk")
        next(iter(stream))
        before = -1
        while server.sent != before:
            before = server.sent
            assert not server.gone.wait(0.3)
        assert server.sent * 150 < 16 * 2**20, "the whole stream is being kept"
        stream.close()
        assert server.gone.wait(WAIT_SECONDS)


def test_async_and_plain_iteration_cannot_be_mixed(tmp_path: Path) -> None:
    upstream = recording(tmp_path, "song", [*text("la"), LAST])

    async def ask() -> None:
        async with Client(upstreams=[upstream]) as client:
            with pytest.raises(ConfigError, match="async for"):
                list(client.stream(model="song", messages="sing"))

    asyncio.run(ask())
    with pytest.raises(ConfigError, match="not open"):
        Client(upstreams=[upstream]).stream(messages="sing")


def test_the_default_model_is_used_if_none_is_named(tmp_path: Path) -> None:
    nothing = {"HOME": str(tmp_path), "STREAMGLOT_CACHE": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with Client(environment=nothing) as client:
        found = set(client.pool.routes.upstreams) - {"replay"}
        if not found:  # no server of some kind runs on this machine
            with pytest.raises(ConfigError, match="there is no upstream to ask"):
                list(client.stream(messages="hi"))
            with pytest.raises(ConfigError, match="the local model cannot be run"):
                list(client.stream(model="local", messages="hi"))
    only = Upstream(name="only", base_url="http://127.0.0.1:9", models=["that"])
    with Client(upstreams=[only]) as client:
        assert client.pool.routes.named("") == "that"
    anything = Upstream(name="any", base_url="http://127.0.0.1:9")
    with Client(upstreams=[anything]) as client, pytest.raises(ConfigError, match="any/…"):
        list(client.stream(messages="hi"))


def test_a_caller_that_stops_early_names_the_ending(tmp_path: Path) -> None:
    upstream = recording(tmp_path, "song", [*text("la ", "la"), LAST])
    with Client(upstreams=[upstream]) as client:
        stream = client.stream(model="song", messages="sing")
        taken: list[streamglot.Event] = []
        for event in stream:
            taken.append(event)
            if isinstance(event, TextDelta):
                break
        taken += stream.ending(StreamEnd("cancelled"))
        check(taken)
        untouched = client.stream(model="song", messages="sing")
        check(untouched.ending(StreamEnd("cancelled")))
