"""The built-in policies that need no I/O."""

from __future__ import annotations

import json
from typing import Any

import pytest

from policies.policy_streams import call, calls_of, in_characters, normal, reasoning, run, split, stream, text, text_of
from streamglot.errors import ConfigError, PolicyRefused
from streamglot.json.schema import parse_path, values_at
from streamglot.patterns.detectors import detectors
from streamglot.policies import Policy, apply_to_request, load_policies, prepare
from streamglot.policies.builtin.tool_arguments import allowed_host, allowed_path
from streamglot.stages.stage import ExchangeContext
from vocabulary import *


def policy(use: str, **options: Any) -> Policy:
    return load_policies([{"use": use, **options}])[0]


def request_of(*texts: str, **more: Any) -> Request:
    return Request(model="m", messages=[Message("user", [TextPart(each)]) for each in texts], **more)


# --- tools

CALLS = stream(call("rm_all", "{}"), call("read", "{}"), reason="tool_calls")


def test_denied_tools_are_refused_before_anything_of_the_call_has_left() -> None:
    after = run(CALLS, policy("deny_tools", tools=["rm*", "shell"], message="no {tool}"))
    assert (calls_of(after), text_of(after), after[-1]) == ([("read", "{}")], "no rm_all", StreamEnd("tool_calls"))


@pytest.mark.parametrize(("glob", "name"), [("files.rm", "files__rm"), ("files.*", "files__rm"), ("files__*", "files.rm")])
def test_tools_are_denied_in_either_spelling(glob: str, name: str) -> None:
    calls = stream(call(name, "{}"), call("read", "{}"), reason="tool_calls")
    assert calls_of(run(calls, policy("deny_tools", tools=[glob]))) == [("read", "{}")]
    limited = policy("deny_tools", tools=["*"], when={"tools": [glob]})
    assert calls_of(run(calls, limited)) == [("read", "{}")]
    assert calls_of(run(calls, policy("allow_tools", tools=[glob]))) == [(name, "{}")]


def test_the_arguments_of_allowed_tools_flow() -> None:
    allow = policy("allow_tools", tools=["read"])
    after = run(CALLS, allow)
    assert calls_of(after) == [("read", "{}")]
    assert prepare([allow])[0].needs.answer["tool_call"].unit == "delta"


def test_denied_tools_can_be_hidden_from_the_model() -> None:
    request = request_of("x", tools=[ToolSpec("rm_all"), ToolSpec("read")])
    for deny in (policy("deny_tools", tools=["rm*"], hide=True), policy("allow_tools", tools=["read"], hide=True)):
        assert [tool.name for tool in apply_to_request(request, [deny]).tools] == ["read"]


# --- arguments


def refused(rule: Policy, arguments: Any, request: Request | None = None, name: str = "write", **more: Any) -> str:
    """The text in place of the call; empty if the call is forwarded."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return text_of(run(stream(call(name, written, **more), reason="tool_calls"), rule, request=request))


def test_arguments_are_checked_against_a_schema() -> None:
    rule = policy("tool_arguments", tools=["wr*"], schema={"type": "object", "required": ["path"]}, message="{tool}: {reason}")
    assert refused(rule, {"path": 1}) == ""
    assert refused(rule, {}) == "write: $ lacks the property 'path'"
    assert refused(rule, "{") == "write: its arguments are not valid JSON"
    assert refused(rule, "") == "write: $ lacks the property 'path'"
    assert refused(rule, {}, name="read") == ""
    assert refused(rule, "{", complete=False) == ""
    assert refused(rule, {}, complete=False) == "write: $ lacks the property 'path'"  # a client may run it


def test_arguments_are_checked_against_what_the_request_declared() -> None:
    rule = policy("tool_arguments", declared=True, message="{reason}")
    tools = [ToolSpec("write", parameters={"type": "object", "required": ["p"], "unknownKeyword": 1}), ToolSpec("free")]
    request = request_of("x", tools=tools)
    assert refused(rule, {"p": 1}, request) == ""
    assert "lacks the property" in refused(rule, {}, request)
    assert refused(rule, {}, request, name="other") == "the request declares no such tool"
    assert refused(rule, {}, request, name="free") == ""
    assert refused(rule, {}) == ""


def test_rules_on_values() -> None:
    rules = [
        {"path": "$.command", "deny": r"\brm\s+-rf\b"},
        {"path": "$.mode", "require": "[rw]+", "optional": False},
        {"path": "$..file", "allow_paths": ["/srv/data/*"]},
        {"path": "$.urls[*]", "allow_hosts": ["*.example.org", "example.org"]},
    ]
    rule = policy("tool_arguments", rules=rules, message="{reason}")
    good = {
        "mode": "rw",
        "command": "ls",
        "a": [{"file": "/srv/data/x/../y"}],
        "urls": ["https://api.example.org/x", "example.org:80"],
    }
    assert refused(rule, good) == ""
    assert "$.command contains a value" in refused(rule, {**good, "command": "sudo rm  -rf /"})
    assert "nothing at $.mode" in refused(rule, {})
    assert "required form" in refused(rule, {**good, "mode": "rwx"})
    assert "$.mode is not a string" in refused(rule, {**good, "mode": 3})
    assert "allowed paths" in refused(rule, {**good, "file": "/srv/data/../../etc/passwd"})
    assert "allowed hosts" in refused(rule, {**good, "urls": ["http://evil.org"]})
    numbers = policy("tool_arguments", rules=[{"path": "$.n", "deny": "^9"}], message="{reason}")
    assert refused(numbers, {"n": 12}) == ""
    assert "the value of $.n is not allowed" in refused(numbers, {"n": 91})


def test_free_text_of_a_custom_tool_has_no_arguments() -> None:
    from streamglot.events import ToolCallDelta, ToolCallStart

    events: list[Event] = [ToolCallStart("c", "patch", "custom"), ToolCallDelta("*** Begin"), ToolCallEnd()]
    assert run(stream(events), policy("tool_arguments", schema={"type": "object"})) == stream(events)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/srv/data", True),
        ("/srv/data/", True),
        ("/srv/data/a b/c", True),
        ("//srv/data/x", True),
        ("/srv/./data/x", True),
        ("/srv/data/../x", False),
        ("/srv/database", False),
        ("srv/data/x", False),
        ("~/x", False),
        ("/srv/data/\0", False),
        ("/srv/data\\..\\x", False),
        ("", False),
    ],
)
def test_paths(path: str, allowed: bool) -> None:
    assert allowed_path(path, ["/srv/data/*"]) is allowed


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://example.org/a?b#c", True),
        ("https://EXAMPLE.org.:443", True),
        ("//example.org", True),
        ("https://example.org@evil.org/", False),
        ("https://evil.org/example.org", False),
        ("https://evil.org\\@example.org", False),
        ("https://example.org\n.evil.org", False),
        ("https://[::1", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
def test_hosts(url: str, allowed: bool) -> None:
    assert allowed_host(url, ["example.org"]) is allowed


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({}, "give a schema, declared = true, or rules"),
        ({"rules": [{"path": "$.a"}]}, "has no condition"),
        ({"rules": [{"path": "a.b", "deny": "x"}]}, "is not a path"),
        ({"rules": [{"path": "$.a", "deny": "(?!x)"}]}, "lookahead"),
        ({"schema": {"type": "object", "unevaluatedItems": False}}, "not supported"),
    ],
)
def test_rules_that_are_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        policy("tool_arguments", **options)


def test_paths_into_values() -> None:
    value = {"a": {"b": [1, 2, {"c": 3}]}, "x y": {"c": 4}, "c": 5}

    def at(path: str) -> list[Any]:
        return list(values_at(parse_path(path), value))

    assert at("$") == [value]
    assert at("$.a.b[0]") == [1]
    assert at("$.a.b[-1].c") == [3]
    assert at("$.a.b[*]") == [1, 2, {"c": 3}]
    assert at("$['x y'].c") == at('$["x y"]["c"]') == [4]
    assert at("$..c") == [5, 3, 4]
    assert at("$..[0]") == [1]
    assert at("$.*") == [*value.values()]
    assert at("$.a.b.c") == at("$.a[0]") == at("$.a.b[9]") == at("$.c.d") == []


# --- redact


def test_custom_patterns_words_and_replacements() -> None:
    redact = policy(
        "redact", patterns={"ticket": "TCK-[0-9]{6}"}, words=["Project X"], replacement="<{name}>", apply_to=["text", "request"]
    )
    after = run(stream(reasoning("TCK-123456"), text("see TCK-12", "3456 and project x.")), redact)
    assert (text_of(after), text_of(after, ReasoningDelta)) == ("see <ticket> and <word>.", "TCK-123456")
    assert apply_to_request(request_of("Project X"), [redact]).messages[0].text == "<word>"


def test_equal_values_have_equal_hashes() -> None:
    redact = policy("redact", detectors=["email"], mode="hash", salt="a long salt")
    after = text_of(run(stream(text("a@b.org c@d.org a@b.org")), redact))
    first, second, third = after.split()
    assert first == third != second
    assert first.startswith("[email:")
    other = policy("redact", detectors=["email"], mode="hash", salt="another salt")
    assert text_of(run(stream(text("a@b.org")), other)) != first


def test_the_upstream_sees_placeholders_and_the_client_the_originals() -> None:
    redact = policy("redact", detectors=["email", "phone"], mode="restore", apply_to=["request"])
    context = ExchangeContext()
    request = request_of("Write to a@b.org and c@d.org, then a@b.org.", "+49 30 901820")
    sent = apply_to_request(request, [redact], context=context)
    assert [message.text for message in sent.messages] == ["Write to [email_1] and [email_2], then [email_1].", "[phone_1]"]
    events = stream(text("To [ema", "il_2], [email_9] and new@one.org"), call("send", '{"to": "[email_1]"}'), reason="tool_calls")
    for cut in (events, split(events, in_characters)):
        after = run(cut, redact, context=context)
        assert text_of(after) == "To c@d.org, [email_9] and new@one.org"
        assert calls_of(after) == [("send", '{"to": "a@b.org"}')]
    again = apply_to_request(sent, [redact], context=context)
    assert again == sent


def test_values_that_the_model_makes_up_are_redacted_if_configured() -> None:
    redact = policy("redact", detectors=["email"], words=["fish"], mode="restore")
    context = ExchangeContext()
    apply_to_request(request_of("a@b.org"), [redact], context=context)
    assert text_of(run(stream(text("[email_1] x@y.org fish")), redact, context=context)) == "a@b.org [email] [word]"


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"detectors": ["email"], "mode": "hash"}, "needs a salt"),
        ({"detectors": ["email"], "mode": "restore", "replacement": "[x]"}, "must have {name} and {number}"),
        ({"detectors": ["email"], "mode": "restore", "apply_to": ["text"]}, "add request to apply_to"),
        ({"detectors": ["email"], "apply_to": []}, "apply_to is empty"),
        ({"detectors": ["email"], "apply_to": ["text", "text"]}, "name each target once"),
        ({"detectors": ["email"], "apply_to": ["everything"]}, "apply_to"),
    ],
)
def test_redactions_that_are_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        policy("redact", **options)


def test_secrets_are_not_in_the_record() -> None:
    context = ExchangeContext()
    secret = "AKIAIOSFODNN7EXAMPLE"
    run(
        stream(text(secret), call("f", json.dumps({"a": secret}))), policy("redact", detectors=list(detectors())), context=context
    )
    assert secret not in json.dumps(context.annotations)
    assert [(fact["kind"], fact["label"]) for fact in context.annotations["policies"]] == [
        ("text", "amazon"),
        ("tool_call", "amazon"),
    ]


# --- block_patterns


def test_forbidden_patterns_are_refused() -> None:
    block = policy("block_patterns", detectors=["cards"], words=["swordfish"], message="[no {name}]")
    events = stream(
        text("It is swor", "dfish, and more"),
        call("pay", '{"card": "4111111111111111"}'),
        call("ok", '{"card": "4111111111111112"}'),
        [ToolResult("x", "swordfish")],
        reason="tool_calls",
    )
    after = run(events, block)
    assert text_of(after) == "It is [no word][no cards]"
    assert calls_of(after) == [("ok", '{"card": "4111111111111112"}')]
    assert [event.content for event in after if isinstance(event, ToolResult)] == ["[no word]"]
    assert after[-1] == StreamEnd("tool_calls")


def test_forbidden_patterns_end_the_answer_or_refuse_the_request() -> None:
    block = policy("block_patterns", words=["swordfish"], action="end", apply_to=["text", "request"])
    after = run(stream(text("a swordfish"), text("b")), block)
    assert after[-2:] == [TextEnd(), StreamError("policy_refused", "[withheld: word]", "policy", False, 403)]
    with pytest.raises(PolicyRefused, match="withheld: word"):
        apply_to_request(request_of("swordfish"), [block])
    assert apply_to_request(request_of("fish"), [block]) == request_of("fish")


# --- max_output, loop_guard


def test_an_answer_ends_at_a_number_of_characters() -> None:
    after = run(stream(reasoning("123"), text("456", "789"), text("x")), policy("max_output", chars=8))
    assert normal(after) == stream(reasoning("123"), text("45678"), reason="length")
    assert run(stream(text("12345678")), policy("max_output", chars=8)) == stream(text("12345678"))


def test_an_answer_ends_at_a_number_of_calls() -> None:
    events = stream(call("a", "{}"), call("b"), call("c", "{}"), reason="tool_calls")
    after = run(events, policy("max_output", tool_calls=2))
    assert after == stream(call("a", "{}"), call("b"), reason="length")
    with pytest.raises(ConfigError, match="give chars or tool_calls"):
        policy("max_output")


def test_an_empty_delta_is_not_a_second_call() -> None:
    events = stream(call("a", "", "{}", ""), call("b", ""), call("c"), reason="tool_calls")
    assert normal(run(events, policy("max_output", tool_calls=2))) == stream(call("a", "{}"), call("b"), reason="length")


def test_a_text_that_repeats_itself_is_ended() -> None:
    guard = policy("loop_guard", chars=400, repeats=4)
    looping = "Let me think. " * 200
    after = run(stream(text("Well. ", looping)), guard)
    assert after[-1] == StreamEnd("length")
    assert 400 <= len(text_of(after)) <= 600
    varied = "".join(f"{number}: a new line\n" for number in range(200))
    unique = "".join(chr(0x4E00 + number) for number in range(2000))
    for harmless in (unique, varied, "-" * 300, "Let me think. " * 20 + varied, "x" * 350 + varied):
        assert text_of(run(stream(text(harmless)), guard)) == harmless


def test_a_call_that_is_made_again_and_again_is_refused() -> None:
    guard = policy("loop_guard", calls=3)
    same = ['{"a": 1, "b": 2}', '{"b":2,"a":1}', '{"a":1,"b":2}']
    after = run(stream(*(call("f", each, id=str(number)) for number, each in enumerate(same)), reason="tool_calls"), guard)
    assert len(calls_of(after)) == 2
    assert "made 3 times" in text_of(after)
    history = [Message("assistant", [ToolCallPart(str(number), "f", each)]) for number, each in enumerate(same)]
    request = Request(messages=history)
    assert calls_of(run(stream(call("f", same[0])), guard, request=request)) == []
    assert len(calls_of(run(stream(call("f", '{"a": 2}')), guard, request=request))) == 1
    assert len(calls_of(run(stream(call("f", "no json")), guard, request=request))) == 1
    with pytest.raises(ConfigError, match="at least 2"):
        policy("loop_guard", calls=1)


# --- json_schema

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("written", "released", "fault"),
    [
        ('{"name": "x", "n": 3}', '{"name": "x", "n": 3}', ""),
        (' {"name": "\\u00e9", "list": [1, 2], "n": -1.0e2} ', ' {"name": "\\u00e9", "list": [1, 2], "n": -1.0e2} ', ""),
        ("Sure! {", "Sure!", "'Sure!' is not a JSON value"),
        ("[1]", "", "of type array"),
        ('{"name": "x", "nn": 3}', '{"name": "x", "nn', "'nn' is not allowed"),
        ('{"name": "x", "n": "3"}', '{"name": "x", "n": "3', "must be of type integer"),
        ('{"name": "x", "n": 3.5}', '{"name": "x", "n": 3.5', "must be of type integer"),
        ('{"list": [1, "a"], "name": "x"}', '{"list": [1, "a"', "$.list[1]"),
        ('{"n": 1}', '{"n": 1', "lacks the property 'name'"),
        ('{"name": "x"} and', '{"name": "x"} ', "text after"),
        ('{"name": "x"}}', '{"name": "x"}', "text after"),
        ('{"name" "x"}', '{"name" ', "a colon must be"),
        ('{"name": tru}', '{"name": tru', "'tru' is not a JSON value"),
        ('{"name": "x",}', '{"name": "x",', "a property name must be"),
        ('{"name": "x" "n"}', '{"name": "x" ', "a comma or the end"),
        ('{"name": "x" 3}', '{"name": "x" ', "is missing before '3'"),
        ('{"a\nb": 1}', '{"a', "control character"),
        ('{"\\q": "x"}', '{"\\q', "not valid JSON"),
        ('{"na\\u006de": "x"}', '{"na\\u006de": "x"}', ""),
        ('{"name": "\\q"}', '{"name": "\\q', "not valid JSON"),
    ],
)
def test_structured_output_is_checked_while_it_streams(written: str, released: str, fault: str) -> None:
    check = policy("json_schema", schema=SCHEMA)
    for events in (stream(text(written)), split(stream(text(written)), in_characters)):
        after = run(events, check)
        assert text_of(after) == released
        last = after[-1]
        assert (last.message if isinstance(last, StreamError) else "").count(fault) or not fault
        assert isinstance(last, StreamError) == bool(fault)


@pytest.mark.parametrize(
    ("written", "released", "fault"),
    [
        ('[1, [2, {"a": "b"}], {"c": {"d": 1}}]', '[1, [2, {"a": "b"}], {"c": {"d": 1}}]', ""),
        ('[1, "a", 2]', '[1, "a', "$[1] is 'a'"),
        ("[" * 600, "[" * 512, "nested more than 512 times"),
        ("[1 2]", "[1 ", "a comma or the end"),
        ("[,1]", "[", "a value must be"),
        ("[1}", "[1", "a comma or the end"),
    ],
)
def test_arrays_are_checked_while_they_stream(written: str, released: str, fault: str) -> None:
    check = policy("json_schema", schema={"type": "array", "items": {"not": {"type": "string"}}})
    for events in (stream(text(written)), split(stream(text(written)), in_characters)):
        after = run(events, check)
        assert text_of(after) == released
        assert fault in (after[-1].message if isinstance(after[-1], StreamError) else "")


def test_the_schema_of_the_request_is_used() -> None:
    request = request_of("x", output=OutputFormat("json_schema", schema=SCHEMA))
    check = policy("json_schema")
    assert isinstance(run(stream(text("[]")), check, request=request)[-1], StreamError)
    assert run(stream(text("[]")), check, request=request_of("x")) == stream(text("[]"))
    assert run(stream(text("[]")), check, request=request_of("x", output=OutputFormat("json_object"))) == stream(text("[]"))


def test_an_answer_that_breaks_its_schema_is_refused_or_asked_for_again() -> None:
    check = policy("json_schema", schema=SCHEMA, on_violation="refuse", message="bad: {reason}")
    assert text_of(run(stream(text("{}")), check)) == "bad: $ lacks the property 'name'"
    assert text_of(run(stream(text("{")), check)).startswith("bad: it is not valid JSON")
    fine = stream(text('{"name": "x"}'))
    assert run(fine, check) == fine
    assert run(stream(call("f", "{}")), check) == stream(call("f", "{}"))
    again = policy("json_schema", schema=SCHEMA, on_violation="retry", message="bad")
    asked: list[Any] = []

    def resolve(question: Any) -> Any:
        asked.append(question.request.messages[-1].text)
        return ConnectionError()

    assert text_of(run(stream(text("{}")), again, request=request_of("x"), resolve=resolve)) == "bad"
    assert asked == ["Your answer does not fit the JSON Schema: $ lacks the property 'name'. Answer again with JSON only."]


# --- system_note


def test_a_note_is_added_once() -> None:
    after, before = policy("system_note", text="Be kind."), policy("system_note", text="Be kind.", position="before")
    changed = apply_to_request(request_of("hi"), [after])
    assert changed.messages[0] == Message("system", [TextPart("Be kind.")])
    assert apply_to_request(changed, [after]) == changed
    with_prompt = Request(messages=[Message("developer", [TextPart("Rules.")]), Message("user", [TextPart("hi")])])
    assert apply_to_request(with_prompt, [after]).messages[0].text == "Rules.Be kind."
    assert apply_to_request(with_prompt, [before]).messages[0].text == "Be kind.Rules."
    assert run(stream(text("a")), after) == stream(text("a"))
    with pytest.raises(ConfigError, match="text is empty"):
        policy("system_note", text=" ")


def test_text_in_an_unfinished_block_is_not_lost() -> None:
    events: list[Event] = [*stream()[:1], TextStart(), TextDelta("a@b"), TextEnd(), StreamError("upstream_truncated", "x")]
    assert normal(run(events, policy("redact", detectors=["email"]))) == events
