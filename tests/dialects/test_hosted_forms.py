"""The forms in which clients see calls of tools that they expect their provider to host."""

from __future__ import annotations

from typing import Any

import pytest

from streamglot.dialects import dialect
from streamglot.dialects.common.server_tools import CitedSource, HostedCall, is_own_id, own_id, sources_of
from streamglot.events import Extra, StreamEnd, StreamStart
from streamglot.grammar import check
from streamglot.messages import MediaPart

SOURCES = '[{"url":"https://a.example","title":"A","text":"x"}]'
CASES = [
    ("openai_responses", "web_search"),
    ("openai_responses", "file_search"),
    ("openai_responses", "code_interpreter"),
    ("openai_responses", "image_generation"),
    ("anthropic", "web_search"),
    ("anthropic", "web_fetch"),
    ("anthropic", "code_execution"),
    ("gemini", "googleSearch"),
    ("gemini", "urlContext"),
    ("gemini", "fileSearch"),
    ("gemini", "codeExecution"),
]


@pytest.mark.parametrize(("name", "kind"), CASES)
@pytest.mark.parametrize("is_error", [False, True])
def test_each_form_follows_the_grammar_and_is_written(name: str, kind: str, is_error: bool) -> None:
    media = [MediaPart("image/png"), MediaPart("image/png", "iVBORw0KGgo=")]
    call = HostedCall(
        declared={"type": kind},
        name=kind,
        call_id="c-1",
        arguments={"query": "q"},
        text=SOURCES,
        is_error=is_error,
        media=() if is_error else media,
        options={"toolConfig.includeServerSideToolInvocations": True},
    )
    events = dialect(name).hosted_events(call)
    assert events is not None
    stream = [StreamStart("id", "m"), *events, StreamEnd("end")]
    check(stream)
    writer = dialect(name).writer()
    assert b"sglot_c_1" in writer.feed(stream)
    assert not writer.lost


def test_earlier_searches_stay_in_the_metadata() -> None:
    first = HostedCall(declared={}, name="googleSearch", call_id="1", arguments={"q": "one"}, text=SOURCES)
    events = dialect("gemini").hosted_events(HostedCall(declared={}, name="googleSearch", call_id="2", earlier=[first]))
    assert events is not None
    [extra] = events
    assert isinstance(extra, Extra)
    assert extra.data["candidate"]["groundingMetadata"] == {
        "webSearchQueries": ["one", ""],
        "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
    }


def test_ids_of_ours_are_known_again() -> None:
    assert is_own_id(own_id("srvtoolu_", "call-1"))
    assert is_own_id(own_id("", "call-1"))
    assert not is_own_id("srvtoolu_01")
    assert not is_own_id("call_sglot")


def test_sources_are_found_in_json_and_in_links() -> None:
    found = [CitedSource("https://a.example", "A", "x")]
    assert sources_of('[{"url":"https://a.example","title":"A","text":"x"}, 5, {"title":"no address"}]') == found
    assert sources_of('{"results":[{"link":"https://a.example","name":"A","snippet":"x"}]}') == found
    assert sources_of('{"uri":"https://a.example","title":"A","content":"x"}') == found
    assert sources_of("see [A](https://a.example) and [A](https://a.example)") == [CitedSource("https://a.example", "A")]
    assert sources_of("[not json") == sources_of("plain") == sources_of("[1]") == []
    assert len(sources_of(str([{"url": f"u{n}"} for n in range(99)]).replace("'", '"'))) == 50


def test_the_input_of_a_call_is_found_under_many_names() -> None:
    def call(**arguments: Any) -> HostedCall:
        return HostedCall(declared={}, name="x", call_id="c", arguments=arguments)

    assert call(queries=["a", "b"]).query == "a"
    assert call(depth=3, topic="t").query == "t"
    assert call(q="", depth=3).query == ""
    assert call(city="x", script="print(1)").code == "print(1)"


def test_forms_without_results_of_their_own() -> None:
    def events(name: str, kind: str, native: dict[str, Any], **more: Any) -> Any:
        call = HostedCall(declared=native, name=kind, call_id="c", **more)
        return dialect(name).hosted_events(call)

    assert events("openai_responses", "mcp", {"type": "mcp"}) is None
    assert events("anthropic", "memory", {"type": "memory_20250818"}) is None
    assert events("gemini", "googleMaps", {"googleMaps": {}}) is None
    assert events("openai_chat", "web_search", {}) is None
    drawn = events("openai_responses", "image_generation", {"type": "image_generation"}, is_error=True, text="no")
    assert drawn[-1].content == "no"
    searched = events("openai_responses", "file_search", {"type": "file_search"}, text="plain")
    assert searched[-1].native.data["results"] == [{"file_id": "", "filename": "", "text": "plain"}]
    fetched = events("anthropic", "web_fetch", {}, text="page", arguments={"url": "https://a.example"})
    assert fetched[-1].native.data["content"]["url"] == "https://a.example"
    plain = events("anthropic", "web_search", {}, text="plain", arguments={"q": "what"})
    assert plain[-1].native.data["content"][0]["title"] == "what"
    shown = events("gemini", "fileSearch", {}, options={"toolConfig.includeServerSideToolInvocations": True}, text="x")
    assert shown[0].native.data["toolCall"]["toolType"] == "FILE_SEARCH"
    failed = events("gemini", "codeExecution", {}, is_error=True, text="x")
    assert failed[-1].native.data["codeExecutionResult"]["outcome"] == "OUTCOME_FAILED"
    plain_search = events("openai_responses", "web_search", {"type": "web_search_preview"}, arguments={"q": "what"})
    assert "sources" not in plain_search[-1].native.data["action"]
