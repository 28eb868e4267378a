"""Input that a client cannot read from any server: the one list, which is printed in docs/conformance.md.

An entry describes a fault or a limit of the client itself. A stream that it names is not given to that client; every other
difference is a fault of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec import Struct

from streamglot.messages import Part, RefusalPart, Response, ToolCallPart

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


def no_json(response: Response) -> bool:
    """Does it have a call that the provider reported as complete, with arguments that are not JSON?"""
    return any(call.complete and isinstance(parsed(call.arguments), str) for call in calls(response, "function"))


def refusals(response: Response) -> bool:
    return any(isinstance(part, RefusalPart) for part in parts(response))


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
        (
            *("openai (helper)", "openrouter", "openai-chat (node)"),
            *("ai-sdk-openai-compatible-6 (node)", "ai-sdk-openai-compatible-7 (node)"),
        ),
        "calls of custom tools",
        "its types of a streamed call know functions only, though the API has custom tools",
        custom_calls,
    ),
    Limit(
        ("ai-sdk-openai-compatible-6 (node)", "ai-sdk-openai-compatible-7 (node)"),
        "several answers",
        "it reads the first choice of each chunk whatever its index, and mixes the answers",
        several_choices,
    ),
    Limit(
        ("ai-sdk-openai-compatible-6 (node)",),
        "refusals",
        "it does not read the field `refusal`; version 7 shows it as text",
        refusals,
    ),
    Limit(
        ("anthropic (helper)", "anthropic (node)", "ai-sdk-anthropic (node)"),
        "complete calls whose arguments are not JSON",
        "it parses arguments as they come: the Python client raises ValueError, those in Node keep what they could parse",
        no_json,
    ),
    Limit(
        ("openai-responses (node)",),
        "what the provider's shell and patch tools stream",
        "it throws at events that its version does not know",
        lambda response: bool(native_kinds(response) & {"apply_patch_call", "shell_call"}),
    ),
    Limit(
        ("ai-sdk-anthropic (node)",),
        "usage of an answer that was compacted",
        "it adds up the iterations, where the totals that the API gives count the last one only",
        lambda response: len((response.usage.raw or {}).get("iterations") or ()) > 1,
    ),
]


def limit_of(client: str, response: Response) -> Limit | None:
    return next((limit for limit in LIMITS if client in limit.clients and limit.met(response)), None)
