"""One policy covers every dialect: no writer writes refused content, and a reader reads back what was released."""

from __future__ import annotations

import json

import pytest

from policies.policy_streams import call, reasoning, run, stream, text
from streamglot import DIALECTS, collect, reader, translate, writer
from streamglot.events import StreamEnd
from streamglot.messages import TextPart, ToolCallPart
from streamglot.patterns.detectors import detectors
from streamglot.policies import Callbacks, Policy, load_policies, refuse

WRITERS = [name for name, entry in DIALECTS.items() if entry.has_writer]
READ_BACK = [name for name in WRITERS if DIALECTS[name].has_reader]
SECRET = "AKIAIOSFODNN7EXAMPLE"
EVENTS = stream(
    reasoning("I know ", SECRET[:9], SECRET[9:]),
    text("The key is ", SECRET[:5], SECRET[5:], "."),
    call("harmless", '{"a": 1}', id="call_1"),
    call("destroy_everything", json.dumps({"key": SECRET}), id="call_2"),
    reason="tool_calls",
)


def written(dialect: str, *policies: Policy) -> bytes:
    box = writer(dialect, id="r1", model="m", created=1)
    return box.feed(run(EVENTS, *policies)) + box.close()


@pytest.mark.parametrize("dialect", WRITERS)
def test_redacted_or_refused_text_is_not_written(dialect: str) -> None:
    policies = load_policies(
        [{"use": "redact", "detectors": list(detectors())}, {"use": "deny_tools", "tools": ["destroy*"], "message": "No."}]
    )
    before, after = written(dialect), written(dialect, *policies)
    plain = json.loads(json.dumps(before.decode("utf-8", "replace")))
    assert SECRET[9:] in plain
    for word in (SECRET, SECRET[:9], SECRET[9:], "destroy", "call_2"):
        assert word.encode() not in after
    assert b"[api_keys]" in after


@pytest.mark.parametrize("dialect", READ_BACK)
def test_the_first_call_is_forwarded_and_the_second_rewritten(dialect: str) -> None:
    from streamglot.policies import rewrite

    judge = Callbacks(
        on_tool_call_complete=lambda piece: rewrite('{"safe": true}', name="safe") if "destroy" in piece.name else None
    )
    body = written(dialect, judge)
    box = reader(dialect)
    calls = [part for part in collect(box.feed(body) + box.close()).choices[0].parts if isinstance(part, ToolCallPart)]
    if dialect == "openai_completions":  # which has no calls
        assert calls == []
        return
    assert [(part.name, json.loads(part.arguments)) for part in calls] == [("harmless", {"a": 1}), ("safe", {"safe": True})]


@pytest.mark.parametrize("dialect", READ_BACK)
def test_after_all_calls_were_refused_the_answer_ends_as_text(dialect: str) -> None:
    body = written(dialect, Callbacks(on_tool_call_complete=lambda piece: refuse("No.")))
    box = reader(dialect)
    response = collect(box.feed(body) + box.close())
    (choice,) = response.choices
    assert response.error is None
    assert choice.stop_reason == "end"
    assert not [part for part in choice.parts if isinstance(part, ToolCallPart)]
    assert "".join(part.text for part in choice.parts if isinstance(part, TextPart)).endswith("No.No.")


@pytest.mark.parametrize("dialect", WRITERS)
def test_an_answer_that_a_policy_ends_is_an_error_in_the_dialect(dialect: str) -> None:
    body = written(
        dialect, *load_policies([{"use": "block_patterns", "detectors": ["api_keys"], "action": "end", "message": "leaked"}])
    )
    assert b"leaked" in body
    assert SECRET[:9].encode() not in body


def test_translate_runs_policies_live() -> None:
    source = writer("anthropic", id="r1", model="m", created=1)
    chunks = [source.feed([event]) for event in EVENTS] + [source.close()]
    policies = load_policies([{"use": "redact", "detectors": ["api_keys"]}])
    pieces = list(translate(iter(chunks), "anthropic", "openai_chat", policies=policies))
    assert SECRET[5:].encode() not in b"".join(pieces)
    assert len(pieces) > 5, "pieces leave as they come"
    assert all(pieces)
    assert b"".join(
        translate(chunks, "anthropic", "openai_chat", policies=load_policies([{"use": "system_note", "text": "x"}]))
    ) == b"".join(translate(chunks, "anthropic", "openai_chat"))
    assert EVENTS[-1] == StreamEnd("tool_calls")
