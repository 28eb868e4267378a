"""What a client cannot read, whoever writes it: the one list, which is printed in docs/conformance.md.

An entry stands for a fault or a limit of the client itself. A stream that it names is not given to that client; every other
difference is a fault of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

from streamglot.messages import Part, Response, ToolCallPart

from .streams import parsed


class Limit(Struct, frozen=True):
    """``clients`` cannot read ``what``, because of ``why``; ``met`` says whether a stream has it."""

    clients: tuple[str, ...]
    what: str
    why: str
    met: Callable[[Response], bool]


def parts(response: Response) -> Iterator[Part]:
    for choice in response.choices:
        yield from choice.parts


def calls(response: Response, kind: str) -> list[ToolCallPart]:
    return [part for part in parts(response) if isinstance(part, ToolCallPart) and part.kind == kind]


def custom_calls(response: Response) -> bool:
    return bool(calls(response, "custom"))


def no_objects(response: Response) -> bool:
    """Has it a call whose arguments are no JSON object?"""
    return any(not isinstance(parsed(call.arguments), dict) for call in calls(response, "function"))


def several_choices(response: Response) -> bool:
    return len(response.choices) > 1


def native_kinds(response: Response) -> set[str]:
    """The provider's own names of the items that it ran itself."""
    found: set[str] = set()
    for part in parts(response):
        native: Any = getattr(part, "native", None)
        if native is not None and isinstance(native.data.get("type"), str):
            found.add(native.data["type"])
    return found


LIMITS: Final[list[Limit]] = [
    Limit(
        ("openai (helper)", "openrouter"),
        "calls of custom tools",
        "its types of a streamed call know functions only",
        custom_calls,
    ),
    Limit(
        ("anthropic (helper)",),
        "arguments that are no JSON",
        "it parses the arguments as they come and raises ValueError",
        no_objects,
    ),
]


def limit_of(client: str, response: Response) -> Limit | None:
    return next((limit for limit in LIMITS if client in limit.clients and limit.met(response)), None)
