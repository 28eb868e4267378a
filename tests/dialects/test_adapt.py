"""Requests are reduced to what an upstream accepts, and every change is reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streamglot import DIALECTS, Unsupported
from streamglot.dialects.common.abilities import PLAIN, UNSPECIFIED, Abilities
from streamglot.dialects.common.adapt import adapt, emulated_tools
from streamglot.messages import Part
from vocabulary import *

ALL = Abilities(
    custom_tools=True,
    namespaces=True,
    developer_role=True,
    inner_system=True,
    cache_control=True,
    call_id_fixed=False,
    refused=(),
)
SEARCH = ToolSpec("web_search", kind="server", native=Echo("openai_responses", {"type": "web_search"}))
PATCH = ToolSpec("apply_patch", kind="custom", format={"type": "grammar", "grammar": {"definition": "d"}})
UPSTREAMS = sorted(name for name, entry in DIALECTS.items() if entry.has_reader and name != "bedrock_invoke")


def adapted(request: Request, **abilities: Any) -> tuple[Request, list[str]]:
    return adapt(request, "here", msgspec.structs.replace(ALL, **abilities))


def adapted_texts(*messages: Message, **abilities: Any) -> tuple[list[tuple[str, str]], list[str]]:
    request, dropped = adapted(Request("m", list(messages)), **abilities)
    return [(message.role, message.text) for message in request.messages], dropped


def messages_from(*words: str) -> list[Message]:
    """Messages from ``role: text``."""
    return [Message(role, [TextPart(text)]) for role, text in (word.split(": ") for word in words)]  # type: ignore[arg-type]  # each word names a role


def test_a_request_that_needs_no_change_comes_back_itself() -> None:
    call = Message("assistant", [ToolCallPart("c", "f", "{}"), ToolCallPart("p", "apply_patch", "x", "custom")])
    result = Message("tool", [ToolResultPart("c", [TextPart("r"), NativePart("here", {})], cache="5m")])
    request = Request(
        "m", [*messages_from("developer: a", "user: b", "system: c"), call, result], [PATCH], user="u" * 500, store=True
    )
    given, dropped = adapted(request)
    assert given is request
    assert dropped == []


# --- tools that another provider runs


@pytest.mark.parametrize("dialect", sorted(set(UPSTREAMS) - {"openai_responses", "openai_completions", "qwen_web"}))
def test_tools_of_another_provider_are_left_out_and_named(dialect: str) -> None:
    request = Request("m", messages_from("user: a"), [SEARCH, ToolSpec("f")], parallel_tool_calls=True)
    built = DIALECTS[dialect].build_request(request)
    assert "web_search" not in str(built.body)
    assert "tools.web_search" in built.dropped
    alone = DIALECTS[dialect].build_request(Request("m", messages_from("user: a"), [SEARCH], parallel_tool_calls=True))
    assert "tool" not in str(alone.body)


def test_own_server_tools_stay() -> None:
    own = ToolSpec("search", kind="server", native=Echo("here", {"type": "search"}))
    request = Request("m", tools=[own, SEARCH])
    assert adapted(request)[0].tools == [own]


@pytest.mark.parametrize(
    ("choice", "tools", "left"),
    [
        (None, [SEARCH, ToolSpec("f")], None),
        (ToolChoice("auto"), [SEARCH, ToolSpec("f")], ToolChoice("auto")),
        (ToolChoice("none"), [SEARCH, ToolSpec("f")], ToolChoice("none")),
        (ToolChoice("required"), [SEARCH, ToolSpec("f")], ToolChoice("required")),
        (ToolChoice("required", ["web_search", "f"]), [SEARCH, ToolSpec("f")], ToolChoice("required", ["f"])),
        (ToolChoice("auto", ["web_search"]), [SEARCH, ToolSpec("f")], ToolChoice("none")),
        (ToolChoice("auto"), [SEARCH], None),
        (ToolChoice("none"), [SEARCH], None),
    ],
)
def test_the_choice_without_what_is_missing(choice: ToolChoice | None, tools: list[ToolSpec], left: ToolChoice | None) -> None:
    request, dropped = adapted(Request("m", tools=tools, tool_choice=choice, parallel_tool_calls=True))
    assert request.tool_choice == left
    assert request.parallel_tool_calls is (True if len(tools) > 1 else None)
    assert dropped == ["tools.web_search"]


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        (ToolChoice("required", ["web_search"]), [SEARCH, ToolSpec("f")]),
        (ToolChoice("required"), [SEARCH]),
    ],
)
def test_a_choice_that_demands_what_is_missing_is_refused(choice: ToolChoice, tools: list[ToolSpec]) -> None:
    with pytest.raises(Unsupported, match="requires the tool 'web_search'") as caught:
        adapted(Request("m", tools=tools, tool_choice=choice))
    assert caught.value.detail == {"param": "tool_choice"}


def test_results_of_calls_that_a_provider_ran_are_known_as_such() -> None:
    parts: list[Part] = [ToolCallPart("s", "web_search", "{}", "server"), ToolResultPart("s", [TextPart("found")])]
    request, dropped = adapted(Request("m", [Message("assistant", parts)]))
    assert dropped == ["messages.web_search"]
    assert request.messages[0].parts == [ToolResultPart("s", [TextPart("found")], kind="server")]


@pytest.mark.parametrize("dialect", ["anthropic", "bedrock_converse", "cohere", "gemini", "ollama", "openai_chat"])
def test_a_result_with_fields_of_another_dialect_is_a_result(dialect: str) -> None:
    call = Message("assistant", [ToolCallPart("c", "f", "{}")])
    result = Message("tool", [ToolResultPart("c", [TextPart("it is done")], native=Echo("elsewhere", {"type": "odd"}))])
    assert "it is done" in str(DIALECTS[dialect].build_request(Request("m", [*messages_from("user: a"), call, result])).body)


# --- custom tools


@pytest.mark.parametrize("dialect", sorted(set(UPSTREAMS) - {"openai_responses", "openai_completions", "qwen_web"}))
def test_custom_tools_are_functions_unless_the_upstream_takes_them(dialect: str) -> None:
    call = Message("assistant", [ToolCallPart("c", "apply_patch", 'a "b"', "custom")])
    result = Message("tool", [ToolResultPart("c", [TextPart("done")], kind="custom")])
    request = Request("m", [*messages_from("user: a"), call, result], [PATCH])
    built = DIALECTS[dialect].build_request(request)
    assert "custom" not in str(built.body)
    assert "tools.apply_patch.format" in built.dropped
    assert "grammar" in str(built.body), "the grammar is told in the description"
    assert DIALECTS[dialect].emulated_tools(request) == {"apply_patch"}


def test_an_upstream_that_is_known_to_take_custom_tools_gets_them() -> None:
    request = Request("m", messages_from("user: a"), [PATCH])
    able = Abilities(custom_tools=True)
    built = DIALECTS["openai_chat"].build_request(request, abilities=able)
    assert built.body["tools"] == [{"type": "custom", "custom": {"name": "apply_patch", "format": PATCH.format}}]
    assert built.dropped == []
    assert DIALECTS["openai_chat"].emulated_tools(request, able) == frozenset()
    assert emulated_tools(request, PLAIN) == {"apply_patch"}
    unable = Abilities(custom_tools=False)
    assert DIALECTS["openai_responses"].build_request(request, abilities=unable).body["tools"][0]["type"] == "function"
    assert DIALECTS["bedrock_invoke"].emulated_tools(request) == {"apply_patch"}


def test_the_family_of_an_invoked_model_has_abilities_too() -> None:
    request = Request("openai.gpt-oss-20b", messages_from("developer: a", "user: b"), [PATCH])
    built = DIALECTS["bedrock_invoke"].build_request(request, abilities=Abilities(custom_tools=True))
    assert built.body["tools"][0]["type"] == "custom"
    assert built.dropped == ["messages.developer"]


# --- roles


def test_developer_messages_become_system_messages() -> None:
    assert adapted_texts(*messages_from("developer: a", "user: b"), developer_role=False) == (
        [("system", "a"), ("user", "b")],
        ["messages.developer"],
    )


def test_one_system_message_at_the_beginning() -> None:
    messages = messages_from("system: a", "developer: b", "user: c", "assistant: d", "system: e", "user: f", "developer: g")
    assert adapted_texts(*messages, inner_system=False) == (
        [("system", "a\n\nb"), ("user", "c"), ("assistant", "d"), ("user", "e"), ("user", "f"), ("user", "g")],
        ["messages.system"],
    )
    assert adapted_texts(*messages_from("system: a", "user: b"), inner_system=False) == ([("system", "a"), ("user", "b")], [])
    assert adapted_texts(*messages_from("user: a", "system: b"), inner_system=False)[0] == [("user", "a"), ("user", "b")]
    assert adapted_texts(inner_system=False) == ([], [])


def test_nothing_stands_between_a_call_and_its_result() -> None:
    call = Message("assistant", [ToolCallPart("c", "f", "{}")])
    result = Message("tool", [ToolResultPart("c", [])])
    inner = messages_from("system: s")[0]

    def roles(*messages: Message) -> list[str]:
        return [role for role, _ in adapted_texts(*messages, inner_system=False)[0]]

    user = messages_from("user: a")[0]
    assert roles(user, call, inner, result) == ["user", "assistant", "tool", "user"]
    assert roles(user, call, inner, inner, result, user) == ["user", "assistant", "tool", "user", "user", "user"]
    assert roles(user, call, inner) == ["user", "assistant", "user"]
    assert roles(user, call, inner, user) == ["user", "assistant", "user", "user"]
    server = Message("assistant", [ToolCallPart("s", "search", "{}", "server")])
    assert roles(user, server, inner, user) == ["user", "assistant", "user", "user"]


# --- marks, names and ids


def test_marks_for_a_cache_are_taken_out() -> None:
    parts: list[Part] = [
        TextPart("a", cache=""),
        MediaPart("image/png", "AAAA", cache="5m"),
        ToolCallPart("c", "f", "{}", cache="1h"),
        ToolResultPart("c", [TextPart("r", cache="")], cache=""),
    ]
    request = Request("m", [Message("assistant", parts)], [ToolSpec("f", cache="5m")])
    given, dropped = adapted(request, cache_control=False)
    assert "cache" not in msgspec.json.encode([given.messages, given.tools]).decode()
    assert dropped == ["cache_control"]
    assert adapted(request)[0] is request


@pytest.mark.parametrize(("chars", "user"), [(64, "u" * 64), (10, "short"), (0, "")])
def test_a_user_that_fits_is_sent(chars: int, user: str) -> None:
    request = Request("m", user=user)
    assert adapted(request, user_chars=chars) == (request, [])


def test_a_user_that_is_too_long_has_a_shorter_name_that_stays_the_same() -> None:
    long = '{"device_id":"' + "d" * 64 + '","session_id":"x"}'
    first, dropped = adapted(Request("m", user=long), user_chars=64)
    assert dropped == ["user"]
    assert first.user is not None
    assert first.user.isalnum()
    assert len(first.user) == 64
    assert adapted(Request("m", user=long), user_chars=64)[0].user == first.user
    assert adapted(Request("m", user=long + " "), user_chars=64)[0].user != first.user
    assert adapted(Request("m", user=long), user_chars=0) == (Request("m"), ["user"])


def test_ids_of_calls_that_are_too_long() -> None:
    long = "toolu_" + "x" * 80
    parts: list[Part] = [
        ToolCallPart(long, "f", "{}"),
        ToolCallPart("short", "f", "{}"),
        ToolCallPart(long, "s", "{}", "server", native=Echo("here", {"type": "search"})),
    ]
    results: list[Part] = [ToolResultPart("short", [])]
    request, dropped = adapted(Request("m", [Message("assistant", parts), Message("tool", results)]), call_id_chars=64)
    ids = [part.call_id for message in request.messages for part in message.parts if not isinstance(part, TextPart)]  # type: ignore[union-attr]  # calls and results
    assert [len(call_id) for call_id in ids] == [64, 5, 86, 5]
    assert dropped == []


def test_ids_of_a_fixed_length() -> None:
    calls: list[Part] = [ToolCallPart(call_id, "f", "{}") for call_id in ("call_1", "abcDEF123", "abc-EF123")]
    results: list[Part] = [ToolResultPart(call_id, []) for call_id in ("call_1", "abcDEF123", "abc-EF123")]
    request, _ = adapted(
        Request("m", [Message("assistant", calls), Message("tool", results)]), call_id_chars=9, call_id_fixed=True
    )
    called, answered = ([part.call_id for part in message.parts] for message in request.messages)  # type: ignore[union-attr]  # calls and results
    assert called == answered
    assert called[1] == "abcDEF123"
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in called)
    assert len(set(called)) == 3


# --- parts of other dialects


def test_parts_of_another_dialect_become_text_where_there_are_any() -> None:
    found = NativePart("elsewhere", {"type": "tool_reference"}, "The tool f can be called now.")
    odd = NativePart("elsewhere", {"odd": 1})
    own = NativePart("here", {"type": "x"})
    messages = [Message("user", [found, own, odd]), Message("tool", [ToolResultPart("c", [found, own, odd, TextPart("t")])])]
    request, dropped = adapted(Request("m", messages))
    assert request.messages[0].parts == [TextPart(found.text), own, odd]
    assert request.messages[1].parts == [ToolResultPart("c", [TextPart(found.text), own, TextPart("t")])]
    assert dropped == ["messages.tool_reference", "messages.part"]


def test_tools_that_a_client_loaded_become_text_for_others() -> None:
    reference = {"type": "tool_reference", "tool_name": "mcp__a__b"}
    hit = {"type": "search_result", "title": "T", "source": "http://a", "content": [{"type": "text", "text": "words"}]}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [reference, hit, {"type": "odd"}]}
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "ToolSearch", "input": {}}]},
            {"role": "user", "content": [result]},
        ],
        "tools": [{"name": "mcp__a__b", "input_schema": {"type": "object"}, "defer_loading": True}],
    }
    request = DIALECTS["anthropic"].parse_request(body)
    built = DIALECTS["openai_chat"].build_request(request)
    assert built.body["messages"][-1]["content"] == "The tool mcp__a__b can be called now.T (http://a)\nwords"
    assert [tool["function"]["name"] for tool in built.body["tools"]] == ["mcp__a__b"]
    assert built.dropped == ["messages.tool_reference", "messages.search_result", "messages.odd"]
    assert DIALECTS["anthropic"].build_request(request).body["messages"][-1]["content"] == [result]


# --- parameters


def test_refused_parameters_are_left_out_and_named() -> None:
    request = Request("m", store=True, seed=3, temperature=0.5, n=1, stop=[])
    given, dropped = adapted(request, refused=("store", "seed", "n", "stop", "top_k"))
    assert (given.store, given.seed, given.n, given.temperature) == (None, None, None, 0.5)
    assert dropped == ["store", "seed"]


def test_refused_parameters_without_which_it_is_another_answer_are_an_error() -> None:
    with pytest.raises(Unsupported, match="logit_bias"):
        adapted(Request("m", logit_bias={"1": 1.0}), refused=("logit_bias",))
    with pytest.raises(Unsupported, match="'stop'"):
        adapted(Request("m", stop=["x"]), refused=("stop",))


# --- the data itself


def test_abilities_are_laid_over_each_other() -> None:
    base = Abilities(custom_tools=True, user_chars=64)
    assert UNSPECIFIED.over(base) is base
    assert Abilities(user_chars=0, refused=()).over(base) == Abilities(custom_tools=True, user_chars=0, refused=())


def test_invalid_abilities_are_reported() -> None:
    assert Abilities(refused=("store",), user_chars=0).fault() == ""
    assert "'colour', which is not a parameter" in Abilities(refused=("colour",)).fault()
    assert "call_id_chars is -1" in Abilities(call_id_chars=-1).fault()


def test_a_builder_knows_where_its_dialect_has_more_than_the_upstream() -> None:
    space: dict[str, Any] = {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]}
    request = DIALECTS["openai_responses"].parse_request({"model": "m", "input": "x", "tools": [space]})
    build = DIALECTS["openai_responses"].build_request
    assert build(request).body["tools"][0]["type"] == "namespace"
    assert build(request, abilities=Abilities(namespaces=False)).body["tools"][0]["name"] == "a__b"


def test_a_dropped_field_is_reported_once() -> None:
    parts: list[Part] = [TextPart("a", cache=""), TextPart("b", cache="")]
    built = DIALECTS["gemini"].build_request(Request("m", [Message("user", parts)], [ToolSpec("f", cache="")]))
    assert built.dropped == ["cache_control"]
