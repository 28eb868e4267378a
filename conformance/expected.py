"""The answer that a client should read from a stream in its dialect, and the differences from the one that it read."""

from __future__ import annotations

from typing import Any, Final

from google.genai.types import FinishReason

from streamglot.messages import Part, ReasoningPart, RefusalPart, Response, ResponseChoice, TextPart, ToolCallPart

from .oracles import Reading
from .streams import parsed

FINISH: Final[dict[str, dict[str, str]]] = {
    "openai_chat": {"length": "length", "tool_calls": "tool_calls", "content_filter": "content_filter", "": "stop"},
    "openai_responses": {
        "length": "max_output_tokens",
        "content_filter": "content_filter",
        "cancelled": "cancelled",
        "": "completed",
    },
    "anthropic": {
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "content_filter": "refusal",
        "refusal": "refusal",
        "pause": "pause_turn",
        "stop_sequence": "stop_sequence",
        "": "end_turn",
    },
    "gemini": {
        "length": "MAX_TOKENS",
        "content_filter": "SAFETY",
        "refusal": "SAFETY",
        "pause": "CONTINUATION",
        "cancelled": "OTHER",
        "other": "OTHER",
        "": "STOP",
    },
    "ollama": {"length": "length", "": "stop"},
    "openai_completions": {"length": "length", "content_filter": "content_filter", "": "stop"},
    "agui": {},
    "vercel_ui": {
        "length": "length",
        "tool_calls": "tool-calls",
        "content_filter": "content-filter",
        "refusal": "content-filter",
        "cancelled": "abort",
        "pause": "other",
        "other": "other",
        "": "stop",
    },
}
"""The word that each dialect has for our reason; "" for all others. AG-UI has none, so ours is in its metadata."""

AI_SDK: Final[dict[str, str]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool-calls",
    "content_filter": "content-filter",
    "completed": "stop",
    "max_output_tokens": "length",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
}
"""The finish reasons of the AI SDK for the words on the wire."""

OWN_WORDS: Final[dict[str, frozenset[str]]] = {
    "gemini": frozenset(FinishReason.__members__),
}
"""Words that pass through where reader and writer are of one dialect, so that RECITATION does not become SAFETY."""
OBJECTS: Final = frozenset(("anthropic", "gemini", "ollama"))
"""Dialects whose calls take an object: the free text of a custom tool is wrapped in one."""
REFUSAL_IS_TEXT: Final = frozenset(
    (
        *("anthropic", "gemini", "ollama", "openai_completions", "agui", "vercel_ui"),
        *("ai-sdk-openai-compatible-7 (node)", "ai-sdk-openai-responses (node)"),
    )
)
"""Dialects that have no word for a refusal, and clients that show it as text."""
ALL_CALLS: Final = frozenset(("agui", "vercel_ui"))
"""Dialects that show the calls which the provider ran itself, too."""
PARTIAL: Final = frozenset(("anthropic (helper)", "anthropic (node)"))
"""Clients that show of half a call's arguments what they could parse so far: only its name is compared."""
AT_ITEM_DONE: Final = frozenset(("ai-sdk-openai-responses (node)",))
"""Clients that show a call when its item is done: an incomplete call is never reported as done, so they do not show it."""
ALL_OR_NOTHING: Final = frozenset(
    (
        *("openai (helper)", "anthropic (helper)"),
        *("openai-chat (node)", "anthropic (node)"),
    )
)
"""Clients that are asked for the whole answer, and have none where it ended in an error; all others show its beginning."""
SUMMARY_ONLY: Final = frozenset(("ai-sdk-openai-responses (node)",))
"""Clients that show the summary of a reasoning only, where a provider tells both apart."""


def expected(response: Response, reader: str, writer: str, client: str) -> Reading:
    choice = next((choice for choice in response.choices if choice.index == 0), ResponseChoice(0))
    reading = Reading()
    called = malformed = False
    for part in choice.parts:
        match part:
            case TextPart() if writer == "anthropic" and called and part.text.strip():
                reading.reasoning += part.text  # the API would refuse text after a call: it is written as thinking
            case TextPart() if writer == "anthropic" and called:
                pass
            case TextPart():
                reading.text += part.text
            case RefusalPart() if writer in REFUSAL_IS_TEXT or client in REFUSAL_IS_TEXT:
                reading.text += part.text
            case RefusalPart():
                reading.refusal += part.text
            case ReasoningPart() if writer != "openai_completions" and (part.summary or client not in SUMMARY_ONLY):
                reading.reasoning += part.text
            case ToolCallPart() if writer != "openai_completions" and (part.kind != "server" or writer in ALL_CALLS):
                called = True
                arguments = parsed(part.arguments) if part.kind != "custom" else part.arguments
                if writer in OBJECTS and part.kind == "custom":
                    arguments = {"input": part.arguments}
                if client in PARTIAL and not part.complete:
                    reading.calls.append((part.name, None))
                elif client in AT_ITEM_DONE and not part.complete:
                    pass
                elif writer in ("gemini", "ollama") and not part.complete:
                    malformed = True
                elif writer == "gemini" and not isinstance(arguments, dict):
                    malformed = True  # a client that gets objects only could run nothing but another call
                else:
                    whole = isinstance(arguments, dict) or writer != "ollama"
                    reading.calls.append((part.name, arguments if whole else {"input": part.arguments}))
    if writer == "anthropic" and not reading.text.strip():
        reading.text = ""  # blank text makes no block
    blocked = any("promptFeedback" in extra.data for extra in response.extras) and not choice.parts
    if reader == writer == "gemini" and blocked:
        reading.finish = None  # the question was refused: there is no candidate that could finish
    else:
        own_word = choice.raw_stop_reason if reader == writer else None
        reading.finish = _finish(choice, writer, client, own_word, malformed, bool(reading.calls))
    if response.usage.input_tokens is not None or response.usage.output_tokens is not None:
        reading.usage = (response.usage.input_tokens or 0, response.usage.output_tokens or 0)
    if response.error is not None:
        reading.error = response.error.message
        if client in ALL_OR_NOTHING:
            reading.text = ""
    return reading


def _finish(choice: ResponseChoice, writer: str, client: str, own_word: str | None, malformed: bool, calls: bool) -> str | None:
    reason = choice.stop_reason or ""
    words = FINISH[writer]
    if not words:
        return reason
    said = words.get(reason, words[""])
    if own_word in OWN_WORDS.get(writer, ()):
        said = str(own_word)
    if writer == "anthropic" and calls and reason == "other":
        said = "tool_use"
    if writer == "gemini" and malformed and said != "MAX_TOKENS":
        said = "MALFORMED_FUNCTION_CALL"
    if client.startswith("ai-sdk"):
        if said == "completed" and (calls or any(_is_patch(part) for part in choice.parts)):
            return "tool-calls"
        if client in REFUSAL_IS_TEXT and any(isinstance(part, RefusalPart) for part in choice.parts):
            return "content-filter"
        return AI_SDK.get(said, said)
    return said


def _is_patch(part: Part) -> bool:
    """The one item of the provider's own that the AI SDK counts as a call of the client."""
    return isinstance(part, ToolCallPart) and part.native is not None and part.native.data.get("type") == "apply_patch_call"


def difference(got: Reading, want: Reading) -> list[str]:
    """The differences."""
    if want.error is not None or got.error is not None:
        if want.error is None or got.error is None:
            return [f"error: {got.error!r}, wanted {want.error!r}"]
        return [] if got.text == want.text else [f"partial text: {got.text!r:.120} is not {want.text!r:.120}"]
    faults = []
    for name in ("text", "reasoning", "refusal", "finish"):
        mine, theirs = getattr(got, name), getattr(want, name)
        if mine != theirs:
            faults.append(f"{name}: {mine!r:.120} is not {theirs!r:.120}")
    calls, wanted = objects(got.calls), objects(want.calls)
    if len(calls) == len(wanted):
        calls = [
            (name, arguments if told is not None else None) for (name, arguments), (_, told) in zip(calls, wanted, strict=True)
        ]
    if calls != wanted:
        faults.append(f"calls: {calls!r:.200} are not {wanted!r:.200}")
    if want.usage is not None and got.usage != want.usage:
        faults.append(f"usage: {got.usage} is not {want.usage}")
    return faults


def objects(calls: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(name, parsed(arguments) if isinstance(arguments, str) else arguments) for name, arguments in calls]
