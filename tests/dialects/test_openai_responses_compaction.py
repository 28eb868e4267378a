"""The compaction of a conversation: the request for a summary, the answer, and the summary when it comes back."""

from __future__ import annotations

import pytest

from streamglot.dialects import dialect
from streamglot.dialects.openai_responses.compaction import INSTRUCTION, build_compaction, summary_request
from streamglot.dialects.openai_responses.request import parse
from streamglot.errors import ConfigError
from streamglot.messages import Response, ResponseChoice, TextPart, TokenCounts

INPUT = [
    {"role": "user", "content": "Fix it.", "id": "msg_1"},
    {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"cmd":"ls"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "More."}]},
]
BODY = {"model": "m", "input": INPUT, "instructions": "Be brief.", "stream": True}


def summarized(text: str) -> Response:
    choice = ResponseChoice(0, [TextPart(text)])
    return Response(id="resp_1", created=7, choices=[choice], usage=TokenCounts(input_tokens=5, output_tokens=2))


def test_the_dialect_has_it() -> None:
    responses = dialect("openai_responses")
    assert responses.summary_request(parse(BODY)) == summary_request(parse(BODY))
    assert responses.build_compaction(summarized("s"), BODY)["object"] == "response.compaction"


def test_other_dialects_do_not_have_it() -> None:
    with pytest.raises(ConfigError, match="no compaction"):
        dialect("gemini").summary_request(parse(BODY))
    with pytest.raises(ConfigError, match="no compaction"):
        dialect("gemini").build_compaction(summarized("s"), BODY)


def test_calls_and_results_are_text_in_the_request_for_a_summary() -> None:
    request = summary_request(parse(BODY))
    assert [(message.role, message.text) for message in request.messages] == [
        ("system", "Be brief."),
        ("user", "Fix it."),
        ("assistant", '[called shell with {"cmd":"ls"}]'),
        ("user", "[result: a.py]"),
        ("assistant", "Done."),
        ("user", "More."),
        ("user", INSTRUCTION),
    ]
    assert not request.stream
    assert not request.tools


def test_the_answer_has_the_users_messages_and_one_compaction() -> None:
    answer = build_compaction(summarized("They fixed a.py."), BODY)
    assert (answer["object"], answer["id"], answer["created_at"]) == ("response.compaction", "resp_1", 7)
    assert [item["type"] for item in answer["output"]] == ["message", "message", "compaction"]
    assert [item["content"] for item in answer["output"][:2]] == [
        [{"type": "input_text", "text": "Fix it."}],
        [{"type": "input_text", "text": "More."}],
    ]
    assert answer["output"][0]["id"] == "msg_1"
    assert answer["usage"]["total_tokens"] == 7
    (message, _) = build_compaction(summarized("x"), {"input": "Hello"})["output"]
    assert message["content"] == [{"type": "input_text", "text": "Hello"}]


def test_the_summary_is_text_again_when_it_comes_back() -> None:
    output = build_compaction(summarized("They fixed a.py."), BODY)["output"]
    request = parse({"model": "m", "input": output})
    assert [message.text for message in request.messages] == [
        "Fix it.",
        "More.",
        "Summary of the conversation so far:\n\nThey fixed a.py.",
    ]


def test_a_compaction_of_a_provider_stays_opaque() -> None:
    request = parse({"model": "m", "input": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "theirs"}]})
    (message,) = request.messages
    assert message.text == ""
    assert message.role == "assistant"
