"""A tool: what a model may call, and what runs when it does."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final, overload

import msgspec
from msgspec import Struct, field

from ..errors import ConfigError, StreamglotError
from ..json.from_types import ArgumentsError, arguments_type, check_value, convert, docstring_of, parameters_schema
from ..json.schema import Schema
from ..json_types import JSON_ERRORS, JsonObject, JsonValue
from ..messages import MediaPart, TextPart, ToolSpec
from ..text import model_name

NO_OUTPUT: Final = "The tool ran and returned no output."
TRACE_CONTEXT: Final[ContextVar[Mapping[str, str]]] = ContextVar("trace_context", default=MappingProxyType({}))
"""The W3C trace context of the call that this task runs: what a tool passes on to a server. Empty without telemetry."""


class ToolOutput(Struct):
    """The output of a tool: ``text`` for the model, and ``media`` beside it. ``is_error`` says that the tool failed. ``whole`` is the text
    before it was cut."""

    text: str = ""
    is_error: bool = False
    media: list[MediaPart] = field(default_factory=list)
    whole: str | None = None


class ToolError(StreamglotError):
    """A tool raises it to tell the model in its own words what went wrong."""


class Tool:
    """The base of all tools. ``name`` is the tool's name in the registry (``docs.search``), ``parameters`` a JSON Schema.
    ``read_only`` says that the tool changes nothing; ``None`` where that is not known."""

    def __init__(
        self,
        name: str,
        description: str = "",
        parameters: Mapping[str, JsonValue] | None = None,
        *,
        read_only: bool | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.parameters: JsonObject = dict(parameters) if parameters else {"type": "object", "properties": {}}
        self.read_only = read_only

    def spec(self) -> ToolSpec:
        """The declaration of the tool in a request."""
        return ToolSpec(model_name(self.name), self.description, self.parameters)

    @cached_property
    def _schema(self) -> Schema:
        return Schema(self.parameters, strict=False)

    @property
    def unchecked(self) -> list[str]:
        """What its schema has that is not checked, with the reasons: a schema of a server may have anything."""
        return self._schema.unchecked

    def check(self, arguments: JsonObject) -> None:
        """Raises ArgumentsError where the arguments do not match the schema."""
        check_value(arguments, self._schema)

    async def run(self, arguments: JsonObject) -> ToolOutput:
        raise NotImplementedError

    def is_same(self, other: Tool) -> bool:
        """Whether the other object is this tool, found in another way."""
        return self is other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class FunctionTool(Tool):
    """A Python function as a tool. A plain function runs in a thread, so that it may wait; a call that is cancelled no longer
    waits for it, but Python cannot stop the thread."""

    def __init__(
        self,
        function: Callable[..., Any],  # Any: what it returns becomes JSON
        name: str = "",
        description: str = "",
        *,
        read_only: bool | None = None,
    ) -> None:
        name = name or getattr(function, "__name__", "")
        if not name or name == "<lambda>":
            raise ConfigError("a tool needs a name: give one with @tool(name=…)")
        said, _ = docstring_of(function)
        self.function = function
        self._arguments = arguments_type(function)
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is asynchronous
        )
        super().__init__(name, description or said, parameters_schema(self._arguments), read_only=read_only)

    def is_same(self, other: Tool) -> bool:
        """A file that the configuration names is imported a second time, so its functions are told by where they stand."""
        return isinstance(other, FunctionTool) and _definition(self.function) == _definition(other.function)

    def __call__(self, *args: object, **named: object) -> Any:  # Any: what the function returns
        """A tool can still be called as the function that it was made from."""
        return self.function(*args, **named)

    def check(self, arguments: JsonObject) -> None:
        try:
            convert(arguments, self._arguments)
        except ArgumentsError:
            check_value(arguments, self._schema)  # names the argument and the choices
            raise

    async def run(self, arguments: JsonObject) -> ToolOutput:
        made = convert(arguments, self._arguments)
        named = {name: getattr(made, name) for name in made.__struct_fields__}
        try:
            if self._is_async:
                return output_of(await self.function(**named))
            returned = await asyncio.to_thread(partial(self.function, **named))
            return output_of(await returned if inspect.isawaitable(returned) else returned)
        except SystemExit as error:  # it would end the process
            raise ToolError(f"The tool {self.name!r} ended with the exit status {error.code}.") from None


def output_of(returned: object) -> ToolOutput:
    """The return value of a function as a tool's output: text as it is, anything else as JSON."""
    if isinstance(returned, ToolOutput):
        return returned
    if isinstance(returned, MediaPart):
        return ToolOutput(media=[returned])
    if isinstance(returned, TextPart):
        return ToolOutput(returned.text)
    if returned is None or isinstance(returned, str):
        return ToolOutput(returned or "")
    return ToolOutput(msgspec.json.encode(returned, enc_hook=_encode_hook).decode())


def _encode_hook(value: object) -> JsonValue:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value)


@overload
def tool(function: Callable[..., object], /) -> FunctionTool: ...
@overload
def tool(
    *, name: str = "", description: str = "", read_only: bool | None = None
) -> Callable[[Callable[..., object]], FunctionTool]: ...
def tool(
    function: Callable[..., object] | None = None, /, *, name: str = "", description: str = "", read_only: bool | None = None
) -> FunctionTool | Callable[[Callable[..., object]], FunctionTool]:
    """Makes a tool of a typed function, sync or async: ``@tool`` or ``@tool(name=…)``, for ``Client(tools=[…])``.

    Takes the ``function``. Its annotations become the JSON Schema of the arguments, its docstring the description. ``name`` and
    ``description`` replace those of the function; ``read_only`` says that it changes nothing.

    Gives a tool. Raises ``ConfigError`` for a function whose arguments have no schema.
    """
    if function is None:
        return partial(FunctionTool, name=name, description=description, read_only=read_only)
    return FunctionTool(function)


def _definition(function: Callable[..., Any]) -> object:  # Any: as above
    """The place of a function's definition; the object itself, if it has no code of its own."""
    code = getattr(function, "__code__", None)
    return function if code is None else (os.path.realpath(code.co_filename), code.co_firstlineno, code.co_qualname)


def as_tool(value: object) -> Tool:
    """A tool as it is, or a function as a tool."""
    if isinstance(value, Tool):
        return value
    if callable(value):
        return FunctionTool(value)
    raise ConfigError(f"{value!r} is not a tool: give a function, an object made by @streamglot.tool, or the name of a tool")


def arguments_of(text: str) -> JsonObject:
    """The arguments of a call, which a model wrote as JSON. Raises ArgumentsError."""
    try:
        value = msgspec.json.decode(text.strip() or "{}")
    except JSON_ERRORS as error:
        raise ArgumentsError(f"the arguments are not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ArgumentsError("the arguments must be a JSON object")
    return value
