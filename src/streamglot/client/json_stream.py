"""A typed object while it streams: partial objects as the model writes them, then the whole one.

The fields of a partial object may be missing. Its type is made from a msgspec struct, a dataclass or a pydantic model.
"""

from __future__ import annotations

import dataclasses
import types
from functools import lru_cache
from types import TracebackType
from typing import Annotated, Any, Final, Generic, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType, ValidationError

from ..errors import StreamglotError, error_of
from ..events import Event, StepEnd, StreamEnd, StreamError, TextDelta
from ..json.from_types import ArgumentsError, check_value, convert, schema_of
from ..json.incremental import PartialJson
from ..json.schema import Schema
from ..json_types import JsonObject
from ..messages import OutputFormat, Request
from .stream import Stream

TYPES: Final = 256
"""Types whose partial forms are cached."""
T = TypeVar("T")
GROWTH: Final = 1 / 32
"""The share by which the text must grow before the next partial object is made.

Each partial object is built from the whole text, so this keeps the total work proportional to the answer's length.
"""
ENDED: Final = ("end", "stop_sequence", "other")
"""The end reasons of a complete answer."""


def output_format(kind: type | JsonObject, name: str = "") -> OutputFormat:
    """The output format that requests this type from a model."""
    schema = kind if isinstance(kind, dict) else schema_of(kind)
    title = name or str(schema.get("title") or getattr(kind, "__name__", "") or "answer")
    readable = "".join(character if character.isalnum() and character.isascii() else "_" for character in title)[:64]
    return OutputFormat("json_schema", readable, schema=schema)


class JsonStream(Generic[T]):
    """What ``Client.stream_json`` gives: partial objects of the type ``kind`` while the model writes them, from the events of ``stream``. The last
    one is complete and of the requested type; it is also the ``result``.

    In a partial object, missing fields are ``msgspec.UNSET``. A pydantic model has their defaults, or lacks them. A JSON Schema
    gives plain dicts. An answer that breaks off or does not match the type raises a ``StreamglotError``. An upstream's first
    error is raised too, because there is no event to carry it."""

    def __init__(self, kind: type[T] | JsonObject, stream: Stream) -> None:
        self.events = stream
        self._kind = kind
        self._json = PartialJson()
        self._grown = 0
        self._size = 0
        self._last: object = UNSET
        self._result: Any = UNSET  # Any: an object of the type ``T``, or UNSET

    @property
    def request(self) -> Request:
        """The request as it was made."""
        return self.events.request

    @property
    def result(self) -> T:
        """The complete object. Raises before the stream has ended."""
        if self._result is UNSET:
            raise StreamglotError("the answer is not complete yet: read the stream to its end", code="incomplete_output")
        found: T = self._result
        return found

    # --- iteration, plain and asynchronous

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:  # Any: an object with the attributes of ``T``, of which some may be missing
        while self._result is UNSET:
            events = self.events.read_plain()
            if (made := self._made(events)) is not UNSET:
                return made
        raise StopIteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # Any: as for ``__next__``
        while self._result is UNSET:
            events = await self.events.read()
            if (made := self._made(events)) is not UNSET:
                return made
        raise StopAsyncIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.events.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.events.hang_up()

    # --- one read

    def _made(self, events: list[Event] | None) -> object:
        """The object after these events; UNSET if there is nothing new."""
        if events is None:
            raise StreamglotError("the answer ended without an end event; send the request again", code="incomplete_output")
        for event in events:
            if isinstance(event, TextDelta):
                self._json.feed(event.text)
                self._size += len(event.text)
                self._grown += len(event.text)
            elif isinstance(event, StepEnd):  # text before tool calls is not the answer
                self._json, self._size, self._grown = PartialJson(), 0, 0
            elif isinstance(event, StreamError):
                raise error_of(event)
            elif isinstance(event, StreamEnd):
                self._result = self._whole(event)
                return self._result
        if self._grown <= self._size * GROWTH:
            return UNSET
        made = self._partial()
        if made is not UNSET:
            self._grown = 0
        return made

    def _partial(self) -> object:
        """The object so far. A value that is only valid as a whole, such as a date, is left out until it is complete."""
        for open_text in (True, False):
            value = self._json.value(open_text=open_text)
            if value is UNSET or value == self._last:
                return UNSET
            try:
                made = partial_object(self._kind, value)
            except (ValueError, ValidationError):
                continue
            self._last = value
            return made
        return UNSET

    def _whole(self, end: StreamEnd) -> object:
        if end.reason not in ENDED:
            raise StreamglotError(
                f"the answer is incomplete: it ended with {end.reason!r}", code="incomplete_output", detail={"reason": end.reason}
            )
        value = self._json.whole()
        if value is UNSET:
            raise StreamglotError("the answer is not JSON; use a model that supports JSON Schema output", code="invalid_output")
        try:
            if isinstance(self._kind, dict):
                check_value(value, Schema(self._kind, strict=False))
                return value
            return convert(value, self._kind)
        except ArgumentsError as error:
            raise StreamglotError(f"the answer does not match its type: {error}", code="invalid_output") from None


def partial_object(kind: object, value: object) -> Any:  # Any: of the type ``kind``, with fields missing
    """``value``, decoded from JSON, as an object of the type ``kind`` that may lack fields.

    Missing fields are ``msgspec.UNSET``; a pydantic model has their defaults, or lacks them. Raises ``ValueError`` if the value
    is of another type.
    """
    if is_pydantic(kind):
        return _constructed(kind, value)
    if isinstance(kind, dict):
        return value
    return msgspec.convert(value, _partial_type(kind), dec_hook=_constructed)


def is_pydantic(kind: object) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_construct") and hasattr(kind, "model_fields")


@lru_cache(TYPES)
def _partial_struct(kind: Any) -> type[Struct]:  # Any: a struct or a dataclass
    hints = get_type_hints(kind, include_extras=True)
    options: dict[str, Any] = {}  # Any: arguments of several types
    if issubclass(kind, Struct):
        fields = [(field.name, field.encode_name) for field in msgspec.structs.fields(kind)]
        config = kind.__struct_config__
        options = {"tag": config.tag, "tag_field": config.tag_field, "array_like": config.array_like}
    else:
        fields = [(field.name, field.name) for field in dataclasses.fields(kind)]
    return msgspec.defstruct(
        f"Partial{kind.__name__}",
        [(name, Union[_partial_type(hints[name]), UnsetType], UNSET) for name, _ in fields],  # noqa: UP007  # made at run time
        rename=dict(fields),
        kw_only=True,
        module=kind.__module__,
        **options,
    )


def _partial_type(kind: object) -> Any:  # Any: a type, which the type checker does not see
    """The type without constraints: a string that is still being written may be too short."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _partial_type(arguments[0])
    if origin in (Union, types.UnionType):
        return Union[tuple(map(_partial_type, arguments))]  # noqa: UP007  # a type made at run time
    if origin in (list, dict, set, frozenset, tuple):
        return origin[tuple(map(_partial_type, arguments))]
    if isinstance(kind, type) and not is_pydantic(kind) and (issubclass(kind, Struct) or dataclasses.is_dataclass(kind)):
        return _partial_struct(kind)
    return kind


def _constructed(kind: Any, value: object) -> object:  # Any: a class of pydantic, which need not be installed
    """A pydantic model, and the models in its fields, without validation."""
    if not is_pydantic(kind) or not isinstance(value, dict):
        raise ValueError(f"the value is not of the type {getattr(kind, '__name__', kind)}")
    names = {field.alias or name: name for name, field in kind.model_fields.items()}
    fields = {names[key]: _inner(kind.model_fields[names[key]].annotation, inner) for key, inner in value.items() if key in names}
    return kind.model_construct(_fields_set=set(fields), **fields)


def _inner(kind: object, value: object) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_pydantic(kind) and isinstance(value, dict):
        return _constructed(kind, value)
    if origin is list and isinstance(value, list):
        return [_inner(arguments[0], one) for one in value]
    if origin in (Union, types.UnionType) and isinstance(value, (dict, list)):
        return next((made for one in arguments if (made := _inner(one, value)) is not value), value)
    return value
