"""Converts answers of several model turns: to history for a provider, and to one text for dialects that have only one."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from msgspec import structs

from ..events import Echo
from ..messages import Message, Part, Response, ResponseChoice, TextPart, ToolCallPart, ToolResultPart

STEP_BREAK: Final = "\n\n"
"""Separates the texts of two model turns in dialects that join all text of an answer."""


def parts_by_step(choice: ResponseChoice) -> list[list[Part]]:
    """The parts of each model turn. An answer without steps has one turn."""
    ends = [0, *(step.end for step in choice.steps), len(choice.parts)]
    return [choice.parts[begin:end] for begin, end in pairwise(ends) if begin < end]


def with_step_breaks(choice: ResponseChoice) -> list[Part]:
    """The parts of a choice, with a break before the first text of each step that has text before it."""
    if not choice.steps:
        return choice.parts
    joined: list[Part] = []
    has_content = False
    for parts in parts_by_step(choice):
        due = has_content
        for part in parts:
            if isinstance(part, TextPart) and part.text:
                if due:
                    joined.append(TextPart(STEP_BREAK))
                has_content, due = True, False
            joined.append(part)
    return joined


def messages_of(response: Response, index: int = 0) -> list[Message]:
    """One choice of an answer as the messages of a conversation, for the next request to a provider.

    Takes the ``response`` and the ``index`` of the choice. Gives a list of ``Message`` objects, empty if there is no such choice.
    Raises nothing.

    Each model turn becomes an assistant message, followed by one tool message for each result of its calls. A call that a
    tool loop ran (kind "server", without a form of the provider's own) becomes a function call again, because its provider
    only knows it as one. Calls that the provider ran itself stay inside the assistant message. A call that broke off is left out,
    with its result. The results of one turn have the order of its calls, whichever came first.
    """
    choice = next((choice for choice in response.choices if choice.index == index), None)
    if choice is None:
        return []
    messages: list[Message] = []
    results: list[ToolResultPart] = []
    calls: dict[str, ToolCallPart] = {}
    left_out: set[str] = set()
    for parts in parts_by_step(choice):
        written: list[Part] = []
        for part in parts:
            if isinstance(part, ToolResultPart) and not _is_of_provider(part, calls.get(part.call_id)):
                if part.call_id not in left_out:
                    results.append(part)
                continue
            if results and (not written or not choice.steps):
                # The results before this part answer an earlier turn; without steps, nothing else tells where a turn ends.
                messages += [*_assistant(written), *_results(results, calls)]
                written, results = [], []
            if not isinstance(part, ToolCallPart):
                written.append(part)
            elif part.complete:
                calls[part.call_id] = part
                written.append(structs.replace(part, kind="function") if _is_of_loop(part) else part)
            else:
                left_out.add(part.call_id)
        messages += _assistant(written)
    echo = echo_of(response) if index == 0 else None
    answer = next((message for message in reversed(messages) if message.role == "assistant"), None)
    if echo is not None and answer is not None:
        answer.echo = echo
    return [*messages, *_results(results, calls)]


def echo_of(response: Response) -> Echo | None:
    """The state of the conversation that the provider of this answer keeps, as it was after the last model turn; None if it keeps
    none."""
    return next((Echo(extra.provider, extra.data) for extra in reversed(response.extras) if extra.provider), None)


def _results(results: list[ToolResultPart], calls: dict[str, ToolCallPart]) -> list[Message]:
    """One tool message for each result, in the order of the calls: some providers match results by their place."""
    places = {call_id: place for place, call_id in enumerate(calls)}
    ordered = sorted(results, key=lambda result: places.get(result.call_id, len(places)))
    return [Message("tool", [_result(result, calls.get(result.call_id))]) for result in ordered]


def _assistant(parts: list[Part]) -> list[Message]:
    return [Message("assistant", parts)] if parts else []


def _is_of_loop(call: ToolCallPart) -> bool:
    return call.kind == "server" and call.native is None


def _is_of_provider(result: ToolResultPart, call: ToolCallPart | None) -> bool:
    """Whether the provider ran this tool itself."""
    return result.native is not None if call is None else call.kind == "server" and call.native is not None


def _result(result: ToolResultPart, call: ToolCallPart | None) -> ToolResultPart:
    """The result with the name and the kind of its call, by which some dialects find it."""
    if call is None:
        return result
    return structs.replace(result, name=call.name, kind="custom" if call.kind == "custom" else "function")
