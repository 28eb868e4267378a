"""Typed objects while they stream: partial ones that only ever grow, then the whole one."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from msgspec import UNSET, Meta, Struct

import streamglot
from streamglot.client.json_stream import GROWTH, JsonStream, partial_object
from streamglot.events import Event, StreamEnd, StreamStart, TextDelta, TextEnd, TextStart
from streamglot.json.incremental import MAX_DEPTH, PartialJson
from streamglot.messages import OutputFormat
from tools.chat_model import ChatModel


class Place(Struct):
    name: str
    height: int | None = None


class Weather(Struct, rename="camel"):
    city: Annotated[str, Meta(min_length=4)]
    is_sunny: bool
    unit: Literal["celsius", "fahrenheit"]
    day: date
    places: list[Place] = []


class PlaceModel(pydantic.BaseModel):
    name: str
    height: int | None = None


class WeatherModel(pydantic.BaseModel):
    city: str
    place: PlaceModel | None = None
    places: list[PlaceModel] = []


@dataclasses.dataclass
class Report:
    title: str
    places: dict[str, Place]


WEATHER = (
    '{"city": "Paris \\"x\\" \\u00e9\\ud83d\\ude00", "isSunny": true, "unit": "celsius", "day": "2026-01-31",'
    ' "places": [{"name": "Tower", "height": 330}, {"name": "Hill", "height": null}]}'
)


class JsonModel(ChatModel):
    """Writes the text of each test, a few characters at a time."""

    def __init__(self, text: str, reason: str = "stop", size: int = 3) -> None:
        self.text, self.reason, self.size = text, reason, size
        super().__init__()

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        pieces = [self.text[at : at + self.size] for at in range(0, len(self.text), self.size)]
        return [*(self.chunk({"content": piece}) for piece in pieces), self.chunk({}, self.reason, usage=True)]


class Pieces:
    """A stream whose reads are a few characters each."""

    def __init__(self, text: str, size: int) -> None:
        self.request = streamglot.Request("m")
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        reads: list[list[Event]] = [[TextDelta(piece)] for piece in pieces]
        begin: list[Event] = [StreamStart(), TextStart()]
        end: list[Event] = [TextEnd(), StreamEnd("end")]
        self._reads: Iterator[list[Event]] = iter([begin, *reads, end])

    def read_plain(self) -> list[Event] | None:
        return next(self._reads, None)


def grown(kind: Any, text: str, size: int = 3) -> list[Any]:
    """All objects that a stream gives, the whole one last."""
    stream: JsonStream[Any] = JsonStream(kind, Pieces(text, size))  # type: ignore[arg-type]  # all that it needs of a stream
    return list(stream)


@pytest.fixture
def models() -> Iterator[list[ChatModel]]:
    models: list[ChatModel] = []
    yield models
    for model in models:
        model.close()


def read(models: list[ChatModel], kind: Any, text: str, reason: str = "stop", **fields: Any) -> tuple[list[Any], Any]:
    model = JsonModel(text, reason)
    models.append(model)
    with streamglot.Client(upstreams=[model.upstream()]) as client:
        with client.stream_json(kind, model="m", messages="hi", **fields) as stream:
            seen = list(stream)
        return seen, stream.result


def test_partial_objects_of_a_struct_grow_into_the_whole_one(models: list[ChatModel]) -> None:
    result = read(models, Weather, WEATHER)[1]
    seen = grown(Weather, WEATHER)
    assert result == seen[-1] == msgspec.json.decode(WEATHER, type=Weather)
    assert type(result) is Weather
    first = seen[0]
    assert (first.is_sunny, first.places) == (UNSET, UNSET)
    cities = [one.city for one in seen if one.city is not UNSET]
    assert all(after.startswith(before) for before, after in pairwise(cities))
    assert any(one.places not in (UNSET, []) and one.places[0].height is UNSET for one in seen)
    output = models[0].bodies[0]["response_format"]
    assert (output["type"], output["json_schema"]["name"]) == ("json_schema", "Weather")
    assert output["json_schema"]["schema"]["required"] == ["city", "isSunny", "unit", "day"]


def test_pydantic_models_dataclasses_and_schemas(models: list[ChatModel]) -> None:
    text = '{"city": "Paris", "place": {"name": "Tower", "height": 330}, "places": [{"name": "Hill"}]}'
    seen, result = read(models, WeatherModel, text)
    assert result == WeatherModel.model_validate_json(text)
    seen = grown(WeatherModel, text)
    assert seen[-1] == result
    assert not hasattr(seen[0], "place") or seen[0].place is None
    assert any(isinstance(one.place, PlaceModel) and "height" not in one.place.model_fields_set for one in seen if one.place)
    seen, result = read(models, Report, '{"title": "x", "places": {"a": {"name": "Tower", "height": 1}}}')
    assert result == Report("x", {"a": Place("Tower", 1)})
    schema = {"title": "My answer!", "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    seen, result = read(models, schema, '```json\n{"a": 12}\n```')
    assert result == {"a": 12}
    assert grown(schema, '{"a": 12}', 1) == [{}, {"a": 12}, {"a": 12}]
    assert models[-1].bodies[0]["response_format"]["json_schema"]["name"] == "My_answer_"
    own = OutputFormat("json_object")
    read(models, list[int], "[1, 2]", output=own)
    assert models[-1].bodies[0]["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("kind", "text", "reason", "words"),
    [
        (Weather, '{"city": "Par', "length", "ended with 'length'"),
        (Weather, "I cannot do that", "stop", "is not JSON"),
        (Weather, '{"city": 5}', "stop", "does not match its type"),
        ({"type": "object", "required": ["a"]}, "{}", "stop", "'a' is missing"),
    ],
)
def test_an_answer_that_is_not_whole_or_not_of_the_type_is_an_error(
    models: list[ChatModel], kind: Any, text: str, reason: str, words: str
) -> None:
    with pytest.raises(streamglot.StreamglotError, match=words):
        read(models, kind, text, reason)


def test_the_result_is_there_only_at_the_end_and_an_upstream_error_is_raised(models: list[ChatModel]) -> None:
    model = JsonModel('{"a": 1}')
    models.append(model)
    with streamglot.Client(upstreams=[model.upstream()]) as client:
        stream = client.stream_json({"type": "object"}, streamglot.Request("m"))
        with pytest.raises(streamglot.StreamglotError, match="not complete yet"):
            _ = stream.result
        assert stream.request.output is not None
        assert list(stream)[-1] == stream.result == {"a": 1}
        assert list(stream) == []
    broken = JsonModel('{"a": 1}', reason="")
    broken.chunk = lambda *_args, **_more: {"error": {"message": "overloaded", "code": 529}}  # type: ignore[method-assign]  # a model that fails
    models.append(broken)
    with streamglot.Client(upstreams=[broken.upstream()]) as client, pytest.raises(streamglot.StreamglotError):
        list(client.stream_json({"type": "object"}, streamglot.Request("m")))


@pytest.mark.anyio
async def test_an_asynchronous_client_and_tools_before_the_answer(models: list[ChatModel]) -> None:
    class Calling(JsonModel):
        def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
            if any(message["role"] == "tool" for message in body["messages"]):
                return super().answer(body)
            call = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            return [
                self.chunk({"content": '{"city": "let me look'}),
                self.chunk({"tool_calls": [call]}),
                self.chunk({}, "tool_calls"),
            ]

    def look() -> str:
        return "sunny"

    model = Calling(WEATHER)
    models.append(model)
    async with (
        streamglot.Client(upstreams=[model.upstream()], tools=[look]) as client,
        client.stream_json(Weather, model="m", messages="hi") as stream,
    ):
        seen = [one async for one in stream]
    assert seen[-1] == stream.result == msgspec.json.decode(WEATHER, type=Weather)


def test_partial_json_is_readable_at_every_cut() -> None:
    text = json.dumps({"a": [1, 2.5, {"b": 'x"\\y\n', "c": None}], "é": "\U0001f600", "d": True, "e": {}}, ensure_ascii=True)
    for pieces in ([*text], [text], _random_cuts(text)):
        partial, sizes = PartialJson(), []
        for piece in pieces:
            partial.feed(piece)
            value = partial.value()
            assert isinstance(value, dict)
            sizes.append(len(json.dumps(value)))
            assert partial.value(open_text=False) is not UNSET
        assert sizes == sorted(sizes)
        assert partial.whole() == json.loads(text)


def _random_cuts(text: str) -> list[str]:
    places = sorted(random.Random(1).sample(range(1, len(text)), 12))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


def test_partial_json_that_is_not_json_reads_as_nothing() -> None:
    for text in ("", " \n", "``", "```json\n", "hello", "[" * (MAX_DEPTH + 1), "]", "[tru"):
        partial = PartialJson()
        partial.feed(text)
        assert partial.value() in (UNSET, []), text
    partial = PartialJson()
    partial.feed('{"a": x, "b')
    assert partial.value() is UNSET
    for text, value in (('["\\\\', ["\\"]), ('["\\\\u12', ["\\u12"]), ('["a\\ud83d', ["a"]), ('["a\\ud83d\\ude0', ["a"])):
        partial = PartialJson()
        partial.feed(text)
        assert partial.value() == value


def test_partial_objects_are_refused_where_the_type_is_another() -> None:
    with pytest.raises(ValueError, match="the value is not of the type PlaceModel"):
        partial_object(PlaceModel, [])
    with pytest.raises(ValueError, match="Expected `str"):
        partial_object(Place, {"name": 5})
    assert partial_object(list[Place], [{"name": "x"}])[0].name == "x"
    assert partial_object(tuple[int, ...], [1]) == (1,)
    assert partial_object(WeatherModel, {"city": "x", "unknown": 1, "place": 5}).place == 5


def test_a_long_answer_gives_few_partial_objects() -> None:
    text = json.dumps([{"name": "x" * 20}] * 2000)
    assert len(grown(list[Place], text, 4)) < 20 / GROWTH


def test_a_stream_that_ends_without_an_ending_is_an_error() -> None:
    pieces = Pieces('{"a"', 1)
    pieces._reads = iter([[TextDelta("{")]])
    with pytest.raises(streamglot.StreamglotError, match="without an end event"):
        list(JsonStream({}, pieces))  # type: ignore[arg-type]  # all that it needs of a stream
    assert JsonStream({}, Pieces("", 1)).request.model == "m"  # type: ignore[arg-type]  # as above
