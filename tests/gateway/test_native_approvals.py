"""Calls about which the user of a client is asked, in the client's own dialect and by its own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from clients.node import PATHS, NodeClients
from gateway.conftest import upstreams_at
from gateway.dialect_clients import SCHEMA, body_of, path_of, understood
from gateway.official import openai_client
from gateway.running import Running, running
from gateway.scenarios import DONE, PARIS, called, calls, chunk, text_chunk, usage
from gateway.upstream import HostileUpstream, sse, streamed

CALL = streamed(
    sse(
        text_chunk("Let me look."),
        calls(called(0, "call_a", "weather", '{"city":"Paris"}'), finish="tool_calls"),
        usage(5, 2),
        DONE,
    )
)
TWO_CALLS = streamed(
    sse(
        text_chunk("Let me look."),
        calls(called(0, "call_a", "weather", '{"city":"Paris"}'), called(1, "call_b", "time", '{"tz":"UTC"}')),
        chunk({}, "tool_calls"),
        DONE,
    )
)
REASON = " Not today."
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}]


@pytest.fixture(scope="module")
def asking(upstream: HostileUpstream) -> Iterator[Running]:
    """A gateway that leaves all calls to the client's user."""
    upstreams = {"work": upstreams_at(upstream.url, breaker={"failures": 10**9})["work"]}
    policies = [{"use": "human_approval", "ask": "client"}]
    with running({"server": {"default_model": "m"}, "upstreams": upstreams, "policies": policies}) as started:
        yield started


@pytest.mark.parametrize("client", PATHS)
@pytest.mark.parametrize("approved", [True, False], ids=["approves", "denies"])
def test_a_user_decides_in_the_clients_own_dialect(
    node: NodeClients, asking: Running, upstream: HostileUpstream, client: str, approved: bool
) -> None:
    upstream.scripts["m"] = CALL
    asked_before = len(upstream.requests("m"))
    answer = node.read(f"{client}-{'approves' if approved else 'denies'}", asking.url + PATHS[client])
    assert answer["error"] is None
    assert answer["before"] == [], "the client has no call to run before its user has decided"
    assert (answer["asked"]["tool"], json.loads(answer["asked"]["arguments"])) == ("weather", PARIS)
    assert answer["text"] == "Let me look." + ("" if approved else REASON)
    assert [(call["name"], json.loads(call["arguments"])) for call in answer["toolCalls"]] == [("weather", PARIS)] * approved
    assert len(upstream.requests("m")) == asked_before + 1, "the upstream is not asked for a decision"


@pytest.mark.parametrize("approved", [True, False], ids=["approves", "denies"])
def test_a_user_decides_with_the_openai_client(asking: Running, upstream: HostileUpstream, approved: bool) -> None:
    upstream.scripts["m"] = CALL
    client = openai_client(asking.url)

    def final(items: Any) -> Any:
        with client.responses.stream(model="m", input=items, tools=TOOLS) as events:
            for _ in events:
                pass
            return events.get_final_response()

    user = {"role": "user", "content": "q"}
    first = final([user])
    assert first.output_text == "Let me look."
    assert [item.type for item in first.output] == ["message", "mcp_approval_request"]
    request = first.output[-1]
    assert (request.name, json.loads(request.arguments)) == ("weather", PARIS)
    history = [user, *(item.model_dump(exclude_none=True) for item in first.output)]
    decision = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approved}
    second = final([*history, decision if approved else {**decision, "reason": REASON}])
    if not approved:
        assert (second.output_text, [item.type for item in second.output]) == (REASON, ["message"])
        return
    (call,) = second.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", PARIS)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "22 degrees"}
    upstream.scripts["m"] = streamed(sse(text_chunk("Warm."), chunk({}, "stop"), DONE))
    third = final([*history, call.model_dump(exclude_none=True), result])
    assert third.output_text == "Warm."
    roles = [message["role"] for message in upstream.requests("m")[-1].body["messages"]]
    assert roles == ["user", "assistant", "tool"], "the model's history has the call and its result, and no question"


def interrupts_of(answer: Any) -> list[dict[str, Any]]:
    events = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: {")]
    found: list[dict[str, Any]] = events[-1]["outcome"]["interrupts"]
    return found


def resume(asking: Running, *entries: dict[str, Any], **headers: str) -> Any:
    return asking.ask("/agui", {**body_of("agui", "m", tools=("weather", "time")), "resume": list(entries)}, headers)


def test_some_calls_are_approved_with_other_arguments_and_others_denied(asking: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["m"] = TWO_CALLS
    weather, time = interrupts_of(asking.ask("/agui", body_of("agui", "m", tools=("weather", "time"))))
    answer = resume(
        asking,
        {
            "interruptId": weather["id"],
            "status": "resolved",
            "payload": {"approved": True, "arguments": {"city": "Rome"}},
        },
        {"interruptId": time["id"], "status": "cancelled"},
    )
    found = understood("agui", answer)
    assert (found.calls, found.text, found.error) == ([("weather", {"city": "Rome"})], "[refused by the user]", None)


def test_a_decision_counts_once_and_only_for_what_is_suspended(asking: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["m"] = CALL
    (interrupt,) = interrupts_of(asking.ask("/agui", body_of("agui", "m", tools=("weather",))))
    decision = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
    assert resume(asking, {**decision, "interruptId": "another"}).status == 404
    assert understood("agui", resume(asking, decision, **{"x-request-id": "decided"})).calls == [("weather", PARIS)]
    line = asking.line("decided")
    assert (line["upstream"], line["ending"], line["input_tokens"], line["output_tokens"]) == ("approvals", "tool_calls", 0, 0)
    again = resume(asking, decision)
    assert (again.status, "there is no suspended call" in again.json()["error"]["message"]) == (404, True)


def test_decisions_of_one_request_count_all_or_none(asking: Running, upstream: HostileUpstream) -> None:
    upstream.scripts["m"] = TWO_CALLS
    weather, time = interrupts_of(asking.ask("/agui", body_of("agui", "m", tools=("weather", "time"))))
    yes = {"interruptId": weather["id"], "status": "resolved", "payload": {"approved": True}}
    also = {"interruptId": time["id"], "status": "resolved", "payload": {"approved": True}}
    for wrong, status in (
        ({**also, "interruptId": "another"}, 404),
        ({**also, "payload": {"approved": True, "arguments": "no object"}}, 400),
        (yes, 400),
    ):
        assert resume(asking, yes, wrong).status == status
    many = [{"interruptId": f"id{number}", "status": "cancelled"} for number in range(1001)]
    assert resume(asking, yes, *many).status == 400
    found = understood("agui", resume(asking, yes, also))
    assert [name for name, _ in found.calls] == ["weather", "time"], "the refused requests decided nothing"


def test_a_client_that_cannot_ask_waits_for_the_operator(asking: Running, upstream: HostileUpstream) -> None:
    """Its dialect has no form for the question, or it does not stream."""
    import threading

    from waiting import until

    upstream.scripts["m"] = CALL
    for dialect, stream in (("openai_chat", True), ("anthropic", True), ("openai_responses", False)):
        found: list[Any] = []
        body = body_of(dialect, "m", stream, ("weather",))
        path = path_of(dialect, "m", stream)
        waiting = threading.Thread(target=lambda path=path, body=body, found=found: found.append(asking.ask(path, body)))
        waiting.start()
        until(lambda: asking.ask("/approvals").json()["approvals"])
        (open_one,) = asking.ask("/approvals").json()["approvals"]
        asking.ask(f"/approvals/{open_one['id']}", {"approved": True})
        waiting.join()
        assert understood(dialect, found[0], stream).calls == [("weather", PARIS)]
