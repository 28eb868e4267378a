"""The options of the dialects by name and type, and the error about one that does not exist.

Each builder, reader and writer takes the options of its own dialect. These types list the options of all dialects, so that an editor
completes them; the functions themselves refuse what is not theirs. A test compares the two.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TypedDict, TypeVar

from ...errors import did_you_mean
from ...json_types import JsonObject, JsonValue
from ...messages import ReasoningField, ToolSpec

T = TypeVar("T")


class PrepareOptions(TypedDict, total=False):
    """The options of the builders that ``prepare`` passes on."""

    version: str
    max_tokens: int | str | None
    adaptive: bool | None
    family: str
    ids: bool
    generate: bool
    think_levels: bool
    namespaces: bool
    reasoning_object: bool
    template: object
    chat_id: str
    parent_id: str | None
    instructions: str | None
    message_id: str
    timestamp: int
    chat_mode: str
    chat_type: str
    describe_tools: Callable[[list[ToolSpec]], str] | None


class BuildOptions(PrepareOptions, total=False):
    """The options of ``Dialect.build_request`` and ``Dialect.endpoint``: those of all builders. A builder refuses those of others."""

    provider: str


class ResponseOptions(TypedDict, total=False):
    """The options of ``Dialect.build_response`` beside ``strict``."""

    functions: bool
    reasoning_field: ReasoningField
    generate: bool
    family: str
    mirror: Mapping[str, JsonValue] | None
    tools: Iterable[ToolSpec]


class TranslateOptions(TypedDict, total=False):
    """The options of writers that only some dialects have, and that ``translate`` passes on."""

    include_usage: bool
    abort: bool
    functions: bool
    reasoning_field: ReasoningField
    mirror: Mapping[str, JsonValue] | None
    sequence: int
    array: bool
    generate: bool
    thread_id: str
    run_id: str
    messages: Iterable[JsonObject] | None
    steps: bool
    message_id: str
    dynamic: bool


class DialectWriterOptions(TranslateOptions, total=False):
    """The options of writers that only some dialects have."""

    tools: Iterable[ToolSpec]


@lru_cache(64)
def options_of(made: Callable[..., object]) -> tuple[str, ...]:
    """The options of a function or a class: its named arguments, and those of the classes below it."""
    found: dict[str, None] = {}
    functions = [vars(each).get("__init__") for each in made.__mro__[:-1]] if isinstance(made, type) else [made]
    for each in functions:
        if each is not None:
            parameters = inspect.signature(each).parameters.values()
            found |= dict.fromkeys(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
    return tuple(found)


def make(what: str, name: str, made: Callable[..., T], options: Mapping[str, object]) -> T:
    """A reader or a writer with these options. An option that it does not have is a ``TypeError`` that names those it has."""
    try:
        return made(**options)
    except TypeError:
        check_options(what, name, made, options)
        raise


def check_options(what: str, name: str, made: Callable[..., object], options: Iterable[str]) -> None:
    """Raises ``TypeError`` for an option that a function or a class does not have."""
    known = options_of(made)
    unknown = next((option for option in options if option not in known), None)
    if unknown is not None:
        raise TypeError(
            f"the {what} of {name!r} has no option {unknown!r}{did_you_mean(unknown, known)}; it has {', '.join(known)}"
        ) from None
