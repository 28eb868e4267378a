"""Responses that are asked for again, as the vendor's own client does it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response as TheirResponse

from gateway.archived import database, inside, keep, store_of, with_store
from gateway.conftest import upstreams_at
from gateway.running import Running, running
from gateway.scenarios import COMPLETED, DONE, END, MESSAGE, PLAIN, responses, text_chunk
from gateway.upstream import UPSTREAM_NAMES, HostileUpstream, Until, sse, streamed
from store.turns import answer, ask, assistant, call, result, thought, user
from streamglot.dialects import dialect
from streamglot.events import StreamError
from streamglot.gateway.auth.authenticator import digest_of
from streamglot.messages import MediaPart, Message, Request, TextPart
from streamglot.store import Finished, SessionHints, Started, Store
from waiting import WAIT_SECONDS, soon, until

pytestmark = pytest.mark.usefixtures("patient_lookups")

RESPONSES = "openai_responses"
KEYS = [{"name": "me", "hash": digest_of("mine")}, {"name": "you", "hash": digest_of("yours")}]
BODY: dict[str, Any] = {
    "model": "small",
    "instructions": "Be brief.",
    "input": "Which way?",
    "metadata": {"place": "here"},
    "temperature": 0.5,
    "max_output_tokens": 99,
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_object"}},
    "tools": [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": True}],
    "tool_choice": {"type": "function", "name": "look"},
    "parallel_tool_calls": False,
    "truncation": "auto",
}


def client(gateway: Running, key: str = "mine") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = {"store": {"url": database(tmp_path_factory.mktemp("responses"))}, "server": {"keys": KEYS}}
    with running(config) as started:
        yield started


def kept(gateway: Running, ident: str, request: Request | None = None, response: Any = None, **more: Any) -> None:
    """A turn that ended in another process."""
    request = request or dialect(RESPONSES).parse_request(BODY)
    more = {"caller": "me", "dialect": RESPONSES, "response_id": ident, "more": {"instructions": True}, **more}
    with_store(gateway.gateway.lifecycle.loaded.config.store.url, lambda store: keep(store, request, response, **more))


def raises(status: int, gateway: Running, work: Any) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        work(client(gateway))
    assert caught.value.status_code == status
    return caught.value


# --- retrieve


def test_a_stored_response_is_retrieved(gateway: Running) -> None:
    client_options = {"previous_response_id": "resp_before", "background": True, "conversation": "conv_1"}
    kept(
        gateway, "resp_again", response=answer(thought("Hm."), "North.", call("c1", "look", "{}")), client_options=client_options
    )
    found = client(gateway).responses.retrieve("resp_again")
    assert isinstance(found, TheirResponse)
    assert (found.id, found.status, found.model, found.output_text) == ("resp_again", "completed", "small", "North.")
    assert [item.type for item in found.output] == ["reasoning", "message", "function_call"]
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (25, 15)
    assert found.completed_at is not None
    retrieved = found.model_dump()
    assert found.conversation is not None
    assert found.conversation.id == client_options.pop("conversation")
    for name, value in {**BODY, **client_options}.items():
        if name == "tools":
            assert [tool["name"] for tool in retrieved["tools"]] == ["look"]
        elif isinstance(value, dict) and name in ("reasoning", "text", "tool_choice"):
            assert retrieved[name].items() >= value.items()
        elif name != "input":
            assert retrieved[name] == value, name
    assert client(gateway).responses.retrieve("resp_again").model_dump() == retrieved  # the ids of its items too


@pytest.mark.parametrize(
    ("ending", "response", "status", "detail"),
    [
        ("length", answer("Nor"), "incomplete", "max_output_tokens"),
        ("content_filter", answer("Nor"), "incomplete", "content_filter"),
        ("client_gone", answer("Nor"), "cancelled", None),
        ("cancelled", answer("Nor"), "cancelled", None),
        ("truncated", answer("Nor", error=StreamError("upstream_truncated", "it broke off")), "failed", None),
        ("error", answer(error=StreamError("rate_limit_exceeded", "too fast", "upstream", True, 429)), "failed", None),
        ("tool_calls", answer("Nor"), "completed", None),
    ],
)
def test_every_ending(gateway: Running, ending: str, response: Any, status: str, detail: str | None) -> None:
    response.choices[0].stop_reason = ending if ending in ("length", "content_filter", "tool_calls") else None
    kept(gateway, f"resp_{ending}", response=response, ending=ending)
    found = client(gateway).responses.retrieve(f"resp_{ending}")
    assert (found.id, found.status) == (f"resp_{ending}", status)
    assert (found.incomplete_details.reason if found.incomplete_details else None) == detail
    assert (found.error.code if found.error else None) == (response.error.code if response.error else None)
    assert found.output_text == ("" if ending == "error" else "Nor")


def test_a_stored_response_is_retrieved_in_the_form_of_output_that_the_request_names(gateway: Running) -> None:
    kept(gateway, "resp_form", response=answer(error=StreamError("odd_code", "it broke")), ending="error")
    rich, strict = (
        client(gateway).responses.retrieve("resp_form", extra_headers={"x-streamglot-output": form})
        for form in ("rich", "strict")
    )
    assert rich.error is not None
    assert strict.error is not None
    assert (rich.error.code, strict.error.code) == ("odd_code", "server_error")
    events = client(gateway).responses.retrieve("resp_form", stream=True, extra_headers={"x-streamglot-output": "strict"})
    (failed,) = [event for event in events if event.type == "response.failed"]
    assert failed.response.error is not None
    assert failed.response.error.code == "server_error"


def test_running_and_interrupted_responses_show_their_status(gateway: Running) -> None:
    store = store_of(gateway)
    request = dialect(RESPONSES).parse_request(BODY)

    async def begin() -> Any:
        session = await store.find_session(SessionHints(caller="me"), request)
        started = Started(caller="me", request=request, dialect=RESPONSES, model="small", response_id="resp_runs")
        started.client_options = {"instructions": True}
        return store.start(session, started)

    turn = inside(gateway, begin())
    found = client(gateway).responses.retrieve("resp_runs")  # at once, before anything was written by itself
    assert (found.status, found.output, found.instructions, found.error) == ("in_progress", [], "Be brief.", None)
    inside(gateway, store.process.end())
    found = client(gateway).responses.retrieve("resp_runs")
    assert found.status == "failed"
    assert found.error is not None
    assert str(found.error.code) == "interrupted"
    assert not turn.is_finished


def test_unknown_and_foreign_responses_are_not_found(gateway: Running) -> None:
    kept(gateway, "resp_unkept", retrievable=False)
    kept(gateway, "resp_yours", caller="you")
    kept(gateway, "chatcmpl-1", dialect="openai_chat")
    assert client(gateway, "yours").responses.retrieve("resp_yours").id == "resp_yours"
    for ident in ("resp_none", "resp_unkept", "resp_yours", "chatcmpl-1"):
        for work in (
            lambda client, ident=ident: client.responses.retrieve(ident),
            lambda client, ident=ident: client.responses.delete(ident),
            lambda client, ident=ident: client.responses.input_items.list(ident),
        ):
            error = raises(404, gateway, work)
            assert error.code == "response_not_found"
            assert repr(ident) in error.message


def test_responses_without_stored_content_are_refused(tmp_path: Path) -> None:
    url = database(tmp_path)
    request = dialect(RESPONSES).parse_request(BODY)
    with_store(url, lambda store: keep(store, request, dialect=RESPONSES, response_id="resp_bare"), content=False)
    with running({"store": {"url": url}}) as gateway:
        error = raises(404, gateway, lambda client: client.responses.retrieve("resp_bare"))
        assert error.code == "content_not_kept"


# --- delete


async def _continued(store: Store, ident: str) -> str:
    session = await store.find_session(SessionHints(caller="me", response_id=ident), ask(user("and then?")))
    return session.previous


def test_a_deleted_response_is_not_found(gateway: Running) -> None:
    kept(gateway, "resp_taken")
    assert inside(gateway, _continued(store_of(gateway), "resp_taken"))
    deleted = gateway.ask("/v1/responses/resp_taken", headers={"x-api-key": "mine"}, method="DELETE")
    assert deleted.json() == {"id": "resp_taken", "object": "response.deleted", "deleted": True}
    raises(404, gateway, lambda client: client.responses.retrieve("resp_taken"))
    raises(404, gateway, lambda client: client.responses.input_items.list("resp_taken"))
    raises(404, gateway, lambda client: client.responses.delete("resp_taken"))
    assert not inside(gateway, _continued(store_of(gateway), "resp_taken"))
    turn = gateway.ask("/turns/resp_taken", headers={"x-api-key": "mine"})
    assert turn.json()["response_id"] == "resp_taken"  # the log keeps it


def test_a_response_that_just_ended_here_is_found(gateway: Running) -> None:
    """It may still be on its way to the database, and this process remembers it."""
    store, request = store_of(gateway), dialect(RESPONSES).parse_request(BODY)
    for ident, may in (("resp_now", True), ("resp_now_unkept", False)):
        inside(gateway, keep(store, request, caller="me", dialect=RESPONSES, response_id=ident, retrievable=may))
    assert client(gateway).responses.retrieve("resp_now").status == "completed"
    raises(404, gateway, lambda client: client.responses.retrieve("resp_now_unkept"))
    assert inside(gateway, _continued(store, "resp_now"))
    assert not inside(gateway, _continued(store, "resp_now_unkept"))
    client(gateway).responses.delete("resp_now")
    assert not inside(gateway, _continued(store, "resp_now"))


def test_a_response_that_just_ended_in_another_worker_is_found(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker sent the end to the client and has not written it yet."""
    monkeypatch.setattr("streamglot.store.sessions.OTHER_PROCESS_SECONDS", WAIT_SECONDS)
    request = dialect(RESPONSES).parse_request(BODY)

    async def elsewhere(store: Store) -> TheirResponse:
        session = await store.find_session(SessionHints(caller="me"), request)
        turn = store.start(session, Started(caller="me", request=request, dialect=RESPONSES, response_id="resp_late"))
        await store.writer.flush()
        asking = asyncio.create_task(asyncio.to_thread(client(gateway).responses.retrieve, "resp_late"))
        await asyncio.sleep(0.2)
        turn.finish(Finished(ending="end", response=answer("North.")))
        return await asking

    found = with_store(gateway.gateway.lifecycle.loaded.config.store.url, elsewhere)
    assert (found.status, found.output_text) == ("completed", "North.")


def test_a_response_that_another_worker_deleted_is_not_found(gateway: Running) -> None:
    store, request = store_of(gateway), dialect(RESPONSES).parse_request(BODY)
    inside(gateway, keep(store, request, caller="me", dialect=RESPONSES, response_id="resp_elsewhere"))
    assert inside(gateway, _continued(store, "resp_elsewhere"))
    inside(gateway, store.writer.flush())
    url = gateway.gateway.lifecycle.loaded.config.store.url
    assert with_store(url, lambda other: other.responses.withdraw("resp_elsewhere", "me"))
    assert not inside(gateway, _continued(store, "resp_elsewhere"))


# --- input items

LONG = [
    Message("system", [TextPart("Be brief.")]),
    Message("user", [TextPart("See "), MediaPart("image/png", "iVBORw0KGgo=")]),
    assistant(thought("Hm.", "sig"), "Looking.", call("c1", "look", "{}")),
    result("c1", "a tree"),
    user("And now?"),
]


def test_input_items_are_listed(gateway: Running) -> None:
    kept(gateway, "resp_items", Request(model="small", messages=LONG, dialect=RESPONSES))
    listed = client(gateway).responses.input_items.list("resp_items", order="asc", limit=100)
    kinds = [item.type for item in listed.data]
    assert kinds == ["message", "reasoning", "message", "function_call", "function_call_output", "message"]
    items = [item.model_dump() for item in listed.data]
    assert [part["type"] for part in items[0]["content"]] == ["input_text", "input_image"]
    assert (items[2]["role"], items[2]["content"][0]["text"]) == ("assistant", "Looking.")
    assert (items[3]["call_id"], items[4]["call_id"], items[4]["output"]) == ("c1", "c1", "a tree")
    ids = [item["id"] for item in items]
    assert len(set(ids)) == 6
    pages: list[str] = [item.id or "" for item in client(gateway).responses.input_items.list("resp_items", limit=2)]
    assert pages == ids[::-1]  # the newest first, page after page, with the same ids
    page = client(gateway).responses.input_items.list("resp_items", order="asc", after=ids[3], limit=2)
    assert ([item.id for item in page.data], page.has_more) == (ids[4:], False)
    assert client(gateway).responses.retrieve("resp_items").instructions == "Be brief."
    raises(404, gateway, lambda client: client.responses.input_items.list("resp_items", after="msg_none"))
    raises(400, gateway, lambda client: client.responses.input_items.list("resp_items", order="up"))
    raises(400, gateway, lambda client: client.responses.input_items.list("resp_items", limit=101))


# --- from the first request on


@pytest.fixture(scope="module")
def whole(upstream: HostileUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    config = {"store": {"url": database(tmp_path_factory.mktemp("whole"))}, "server": {"keys": KEYS}}
    with running({**config, "upstreams": upstreams_at(upstream.url)}) as started:
        yield started


def same(given: TheirResponse, again: TheirResponse) -> None:
    """All that the client was given is there again."""
    assert again.model_copy(update={"completed_at": given.completed_at}).model_dump() == given.model_dump()


def input_texts(client: openai.OpenAI, ident: str) -> list[str]:
    return [item.model_dump()["content"][0]["text"] for item in client.responses.input_items.list(ident, order="asc")]


@pytest.mark.parametrize("kind", ["openai_chat", RESPONSES])
@pytest.mark.parametrize("stream", [False, True])
def test_a_retrieved_response_equals_the_delivered_one(
    whole: Running, upstream: HostileUpstream, kind: str, stream: bool
) -> None:
    upstream.scripts["again"] = streamed(PLAIN if kind == "openai_chat" else responses(*MESSAGE, COMPLETED))
    mine = client(whole)
    asked = {**BODY, "model": f"{UPSTREAM_NAMES[kind]}/again"}
    if stream:
        given = list(mine.responses.create(**asked, stream=True))[-1].response
    else:
        given = mine.responses.create(**asked)
    assert given.output_text
    same(given, mine.responses.retrieve(given.id))
    assert input_texts(mine, given.id) == ["Which way?"]
    raises(404, whole, lambda _: client(whole, "yours").responses.retrieve(given.id))


@pytest.mark.parametrize("stream", [False, True])
def test_a_lingering_upstream_does_not_delay_retrieval(whole: Running, upstream: HostileUpstream, stream: bool) -> None:
    """A client that has its answer gets it again at once, although the upstream has not hung up yet."""
    hang_up = threading.Event()
    upstream.scripts["lingers"] = streamed(PLAIN, Until(hang_up))
    mine, asked = client(whole), {**BODY, "model": "work/lingers"}
    try:
        given = list(mine.responses.create(**asked, stream=True))[-1].response if stream else mine.responses.create(**asked)
        same(given, mine.responses.retrieve(given.id))
    finally:
        hang_up.set()


def test_responses_are_continued_and_deleted(whole: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["going"] = streamed(PLAIN)
    mine = client(whole)
    first = mine.responses.create(model="work/going", input="one", instructions="Be brief.")
    second = mine.responses.create(model="work/going", input="two", previous_response_id=first.id)
    assert input_texts(mine, second.id) == ["one", "Hello world", "two"]
    assert mine.responses.retrieve(second.id).instructions is None
    named = mine.responses.create(
        model="work/going", input="two", previous_response_id=first.id, extra_headers={"x-streamglot-session": "n"}
    )
    assert input_texts(mine, named.id) == ["one", "Hello world", "two"]
    mine.responses.delete(first.id)
    raises(404, whole, lambda mine: mine.responses.retrieve(first.id))
    assert mine.responses.retrieve(second.id).id == second.id
    unkept = mine.responses.create(model="work/going", input="x", store=False)
    raises(404, whole, lambda mine: mine.responses.retrieve(unkept.id))
    sent = len(upstream.requests("going"))
    for ident in (first.id, unkept.id):
        asked = {"model": "work/going", "input": "x", "previous_response_id": ident}
        raises(400, whole, lambda mine, asked=asked: mine.responses.create(**asked))
    assert len(upstream.requests("going")) == sent


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_shown_as_an_object(whole: Running, upstream: HostileUpstream, conversation: Any, stream: bool) -> None:
    upstream.scripts["named"] = streamed(PLAIN)
    mine = client(whole)
    asked = {"model": "work/named", "input": "one", "conversation": conversation}
    given = list(mine.responses.create(**asked, stream=True))[-1].response if stream else mine.responses.create(**asked)
    assert given.conversation.id == "conv_1"
    same(given, mine.responses.retrieve(given.id))


def test_a_system_message_of_the_input_stays_there(whole: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["told"] = streamed(PLAIN)
    mine = client(whole)
    items: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which way?"}]
    given = mine.responses.create(model="work/told", input=items, user="u1", extra_body={"safety_identifier": "s1"}, store=True)
    same(given, mine.responses.retrieve(given.id))
    assert (given.instructions, given.user, given.safety_identifier) == (None, "u1", "s1")
    assert input_texts(mine, given.id) == ["Be brief.", "Which way?"]


def test_a_whole_response_can_be_retrieved_as_a_stream(whole: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["still"] = streamed(PLAIN)
    mine = client(whole)
    given = mine.responses.create(**{**BODY, "model": "work/still"})
    events: list[Any] = list(mine.responses.retrieve(given.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    same(given, events[-1].response)
    assert list(mine.responses.retrieve(given.id, stream=True, starting_after=2)) == events[3:]
    assert list(mine.responses.retrieve(given.id, stream=True, starting_after=len(events) - 1)) == []
    after = {"stream": True, "starting_after": len(events)}
    error = raises(400, whole, lambda mine: mine.responses.retrieve(given.id, **after))
    assert f"{given.id} has {len(events)} events" in error.message


def test_a_stream_that_is_no_longer_kept(gateway: Running) -> None:
    """It can be written anew, but not by the numbers that its client has."""
    request = dialect(RESPONSES).parse_request({**BODY, "stream": True})
    kept(gateway, "resp_old", request, response=answer("North."), more={"instructions": True})
    events: list[Any] = list(client(gateway).responses.retrieve("resp_old", stream=True))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "North."
    error = raises(404, gateway, lambda client: client.responses.retrieve("resp_old", stream=True, starting_after=2))
    assert "resp_old" in error.message
    assert "turn_" not in error.message


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"background": True, "store": False}, "store: false"),
        ({"background": "yes"}, "background must be true or false"),
        ({"conversation": 7}, "conversation must be"),
        ({"conversation": {"id": 7}}, "conversation must be"),
        ({"conversation": {}}, "conversation must be"),
        ({"conversation": ""}, "conversation must be"),
    ],
)
def test_impossible_options_are_refused(whole: Running, upstream: HostileUpstream, more: dict[str, Any], reason: str) -> None:
    upstream.scripts["unasked"] = streamed(PLAIN)
    error = raises(400, whole, lambda mine: mine.responses.create(model="work/unasked", input="x", **more))
    assert reason in error.message
    assert error.type == "invalid_request_error"
    assert not upstream.requests("unasked")


def test_other_methods_are_refused(whole: Running) -> None:
    answer = whole.ask("/v1/responses/resp_x", {}, {"x-api-key": "mine"}, method="PUT")
    assert (answer.status, answer.json()["error"]["type"]) == (405, "invalid_request_error")


def test_a_running_response_whose_client_hangs_up(whole: Running, upstream: HostileUpstream) -> None:
    go_on = threading.Event()
    upstream.scripts["slow"] = streamed(sse(text_chunk("Hello")), Until(go_on), sse(END, DONE))
    mine = client(whole)
    stream = mine.responses.create(model="work/slow", input="x", stream=True)
    ident = next(event.response.id for event in stream if event.type == "response.created")
    assert mine.responses.retrieve(ident).status == "in_progress"
    stream.close()
    until(lambda: mine.responses.retrieve(ident).status == "cancelled")
    go_on.set()


def test_a_response_of_another_process_is_cancelled(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream may have ended before the end of its turn is in the database."""
    monkeypatch.setattr("streamglot.gateway.api.streams.ENDED_SECONDS", WAIT_SECONDS)
    responses, looks = store_of(gateway).responses, []
    find = responses.find

    async def noted(*asked: Any) -> Any:
        found = await find(*asked)
        looks.append(found)
        return found

    monkeypatch.setattr(responses, "find", noted)

    async def elsewhere(store: Store) -> Any:
        request = dialect(RESPONSES).parse_request(BODY)
        session = await store.find_session(SessionHints(caller="me"), request)
        started = Started(caller="me", request=request, dialect=RESPONSES, model="small", response_id="resp_elsewhere")
        started.client_options = {"background": True}
        turn = store.start(session, started)
        store.buffer.open(turn.id, "me", lambda: store.buffer.end(turn.id), lambda: None)
        await store.writer.flush()
        cancelling = asyncio.create_task(asyncio.to_thread(client(gateway).responses.cancel, "resp_elsewhere"))
        await soon(lambda: len(looks) > 1 or cancelling.done())
        turn.finish(Finished(ending="cancelled", response=answer("Nor")))
        return await cancelling

    found = with_store(gateway.gateway.lifecycle.loaded.config.store.url, elsewhere)
    assert (found.status, found.output_text) == ("cancelled", "Nor")
