"""The parts that all dialects share: the registry, lenient decoding of JSON, parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import streamglot
from streamglot import ConfigError, UpstreamProtocolError
from streamglot.dialects import DIALECTS, Dialect, dialect
from streamglot.dialects.common.fields import PARAMETERS, named_part
from streamglot.dialects.common.lenient import clean, fit, loads
from streamglot.dialects.common.reader import Reader
from streamglot.events import StreamError
from streamglot.messages import Message, NativePart, ReasoningPart, Request, Response


class Inner(msgspec.Struct):
    number: int = 0


class Outer(msgspec.Struct):
    name: str = ""
    maybe: str | None = "unset"
    inner: Inner | None = None
    inners: list[Inner] | None = None
    raw: msgspec.Raw = msgspec.Raw(b"")
    renamed: int = msgspec.field(default=0, name="other")


def test_fields_with_valid_types_are_kept() -> None:
    odd = {
        "name": 5,
        "maybe": None,
        "inner": {"number": "x"},
        "inners": [{"number": 1}, 7, {"number": []}],
        "raw": {"a": 1},
        "other": 3,
    }
    fitted = fit(Outer, odd)
    assert (fitted.name, fitted.maybe, fitted.inner, fitted.renamed) == ("", None, Inner(), 3)
    assert fitted.inners == [Inner(1), Inner()]
    assert bytes(fitted.raw) == b'{"a":1}'
    assert fit(Outer, {"inner": 5, "inners": {}}) == Outer(inner=None, inners=None)
    assert fit(Outer, 5) is None
    assert fit(int, "7") == 7


def test_loads_takes_what_the_fast_decoder_refuses() -> None:
    assert loads(b'{"a": 1}') == ({"a": 1}, False)
    assert loads(b'{"a": "\xff"}') == ({"a": "�"}, False)
    value, lone = loads(b'{"a": "\\uD83D"}')
    assert lone
    assert clean(value) == {"a": "�"}
    assert clean(["\ud83d\ude00", 1]) == ["😀", 1]
    for broken in (b"{", b"[" * 100_000):
        with pytest.raises(UpstreamProtocolError, match="not JSON"):
            loads(broken)


def test_the_registry() -> None:
    with pytest.raises(ConfigError, match="there is no dialect 'klingon'; there are openai_chat"):
        dialect("klingon")
    for name, entry in DIALECTS.items():
        assert name == entry.name
        if entry.has_reader:
            assert entry.reader().dialect == name
        else:
            with pytest.raises(ConfigError, match=f"the dialect '{name}' has no reader; these have one: openai_chat"):
                entry.reader()
        if entry.has_writer:
            assert entry.writer().dialect == name
        assert entry.has_response == (type(entry).response_builder is not Dialect.response_builder)
    assert len(DIALECTS) == len(list(DIALECTS)) == 12
    assert "klingon" not in DIALECTS


@pytest.mark.parametrize(
    ("name", "call", "message"),
    [
        ("agui", lambda entry: entry.reader(), "has no reader; these have one: openai_chat"),
        ("cohere", lambda entry: entry.writer(), "has no writer; these have one: openai_chat"),
        ("qwen_web", lambda entry: entry.parse_response({}), "has no response; these have one: openai_chat"),
        ("qwen_web", lambda entry: entry.build_response(Response()), "has no response; these have one: openai_chat"),
        ("qwen_web", lambda entry: entry.parse_request({}), "only upstreams speak it"),
        ("qwen_web", lambda entry: entry.error_body(StreamError("x", "y")), "only upstreams speak it"),
        ("agui", lambda entry: entry.build_request(Request()), "only clients speak it"),
        ("agui", lambda entry: entry.endpoint("http://x", Request()), "only clients speak it"),
        ("cohere", lambda entry: entry.parse_count({}), "no requests for token counts"),
        ("cohere", lambda entry: entry.count_body(1), "no requests for token counts"),
        ("cohere", lambda entry: entry.repeated_fields(Request(), False), "no stored responses"),
        ("cohere", lambda entry: entry.input_items(Request(), "r", False), "no stored responses"),
    ],
)
def test_an_unsupported_method_is_a_config_error(name: str, call: Callable[[Dialect], object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"the dialect '{name}' .*{message}"):
        call(DIALECTS[name])


def test_every_shared_parameter_is_a_field_of_the_request() -> None:
    assert set(PARAMETERS) <= set(Request.__struct_fields__)


def test_the_base_reader_takes_no_body() -> None:
    class Plain(Reader):
        dialect = "plain"

    events = Plain().read_whole({"a": 1})
    assert events[0].code == "upstream_protocol_error"  # type: ignore[union-attr]  # a StreamError
    box = Plain()
    assert box.feed(b": hello\n\n") == [streamglot.KeepAlive("hello")]
    box.comments = False
    assert box.feed(b": hello\n\n") == [streamglot.KeepAlive()]
    assert box.close()[-1].code == "upstream_truncated"  # type: ignore[union-attr]  # a StreamError


def test_translate_writes_as_it_reads() -> None:
    body: dict[str, Any] = {"id": "x", "choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}
    frame = b"data: " + msgspec.json.encode(body) + b"\n\n"
    pieces = list(streamglot.translate([b"", frame, b"data: [DONE]\n\n"], "openai_chat", "openai_chat"))
    assert [b"hi" in pieces[0], b"[DONE]" in pieces[1], len(pieces)] == [True, True, 2]
    assert list(streamglot.translate([frame], "openai_chat", "openai_chat"))[-1].endswith(b"[DONE]\n\n")


@pytest.mark.parametrize("name", ["openai_chat", "openai_completions", "openai_responses"])
def test_an_error_names_the_field_of_the_request_that_is_at_fault(name: str) -> None:
    def param(error: StreamError) -> object:
        return dialect(name).error_body(error)["error"]["param"]

    assert param(streamglot.RequestError("no", detail={"param": "tools[0]"}).as_event()) == "tools[0]"
    for detail in (None, {}, {"param": ""}, {"param": 1}):
        assert param(streamglot.RequestError("no", detail=detail).as_event()) is None
    assert param(StreamError("x", "no", detail={"param": "a field of our request to the upstream"})) is None


@pytest.mark.parametrize("name", ["openai_chat", "openai_responses", "cohere"])
def test_a_part_that_cannot_be_sent_is_called_by_the_type_that_the_client_gave_it(name: str) -> None:
    part = NativePart("other", {"type": "container_upload"})
    with pytest.raises(streamglot.Unsupported, match="'container_upload', which only other has"):
        dialect(name).build_request(Request(model="m", messages=[Message("user", [part])]))
    assert named_part(ReasoningPart("x")) == "a part of the type 'reasoning'"
