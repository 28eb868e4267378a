"""Takes a client's JSON object apart, field by field, with errors that name the field and the value.

Fields that no one took belong to the dialect only; they travel in ``Request.extra``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from ..errors import RequestError, excerpt
from ..json_types import JsonObject, JsonValue
from ..messages import EFFORTS, Effort, NativePart, Part, TextPart

T = TypeVar("T")

_WORD = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "an object", list: "a list"}


class Fields:
    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise RequestError(f"{path or 'the body'} must be an object, not {excerpt(value)}", detail={"param": path})
        self.path = path
        self.rest: JsonObject = dict(value)

    def where(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    @overload
    def take(self, name: str, kind: type[T]) -> T | None: ...
    @overload
    def take(self, name: str, kind: type[T], default: T) -> T: ...
    def take(self, name: str, kind: type[T], default: T | None = None) -> T | None:
        """The field as this type; the default if it is missing or null."""
        value = self.rest.pop(name, None)
        if value is None:
            return default
        if type(value) is kind:
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(name, _WORD[kind], value)
        return value

    def need(self, name: str, kind: type[T]) -> T:
        value = self.take(name, kind)
        if value is None:
            raise RequestError(f"{self.where(name)} is required and must be {_WORD[kind]}", detail={"param": self.where(name)})
        return value

    def any(self, name: str) -> JsonValue:
        return self.rest.pop(name, None)

    def inner(self, name: str) -> Fields | None:
        value = self.take(name, dict)
        return None if value is None else Fields(value, self.where(name))

    def need_inner(self, name: str, why: str = "") -> Fields:
        """An object that must be there; ``why`` is what needs it."""
        inner = self.inner(name)
        if inner is None:
            where = self.where(name)
            raise RequestError(f"{where} is required{why and f' for {why}'}", detail={"param": where})
        return inner

    def objects(self, name: str) -> list[Fields]:
        values: list[JsonValue] = self.take(name, list, [])
        where = self.where(name)
        return [Fields(value, f"{where}[{number}]") for number, value in enumerate(values)]

    def content(self, parse_part: Callable[[Fields], Part]) -> list[Part]:
        """The parts of the field ``content``, which is a string or a list of parts. An empty string has none."""
        content = self.any("content")
        if content is None or content == "":
            return []
        if isinstance(content, str):
            return [TextPart(content)]
        if not isinstance(content, list):
            raise self.wrong("content", "a string or a list of parts", content)
        where = self.where("content")
        return [parse_part(Fields(part, f"{where}[{number}]")) for number, part in enumerate(content)]

    def words(self, name: str) -> list[str]:
        """A list of strings, or a single string as a list."""
        value = self.any(name)
        values = [value] if isinstance(value, str) else value or []
        if not isinstance(values, list) or not all(isinstance(word, str) for word in values):
            raise self.wrong(name, "a string or a list of strings", value)
        return values

    def effort(self, name: str, value: str | None, allowed: tuple[Effort, ...] = EFFORTS) -> Effort | None:
        """The value of a field as a reasoning effort; None if it is missing."""
        found = next((effort for effort in allowed if effort == value), None)
        if found is None and value is not None:
            raise self.wrong(name, " or ".join(allowed), value)
        return found

    def wrong(self, name: str, wanted: str, value: object) -> RequestError:
        return RequestError(f"{self.where(name)} must be {wanted}, not {excerpt(value)}", detail={"param": self.where(name)})


def named_part(part: Part) -> str:
    """The name of a part in an error message: the type that the client gave it, not the class that holds it."""
    if isinstance(part, NativePart):
        return f"a part of the type {excerpt(part.data.get('type'))}, which only {part.dialect} has,"
    return f"a part of the type {part.__struct_config__.tag!r}"
