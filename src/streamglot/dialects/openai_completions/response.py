"""Builds the completion object for a client."""

from __future__ import annotations

from ...json_types import JsonObject
from ...messages import RefusalPart, Response, TextPart
from ...stages.steps import with_step_breaks
from ..counts import completion_usage
from .reader import CompletionsReader
from .wire import FINISH_OF, error_body


def build(response: Response, *, strict: bool = False) -> JsonObject:
    if response.error is not None and not any(choice.parts for choice in response.choices):
        return error_body(response.error)
    body: JsonObject = {
        "id": response.id,
        "object": "text_completion",
        "created": response.created,
        "model": response.model,
        "choices": [],
    }
    for choice in response.choices:
        text = "".join(part.text for part in with_step_breaks(choice) if isinstance(part, (TextPart, RefusalPart)))
        finish = FINISH_OF.get(choice.stop_reason, "stop") if choice.stop_reason else None
        body["choices"].append({"text": text, "index": choice.index, "logprobs": None, "finish_reason": finish})
    usage = completion_usage(response.usage, strict)
    if usage is not None:
        body["usage"] = usage
    for extra in response.extras:
        if extra.dialect != CompletionsReader.dialect:
            continue
        own = extra.data.get("choice")
        if isinstance(own, dict) and body["choices"]:
            _add_to_choice(body["choices"][0], own, strict)
        elif not strict:
            body.update({name: value for name, value in extra.data.items() if name != "choice"})
    if response.extensions is not None and not strict:
        body["extensions"] = response.extensions
    if response.error is not None:
        body.update(error_body(response.error))
    return body


def _add_to_choice(choice: JsonObject, own: JsonObject, strict: bool) -> None:
    """Joins log probabilities, which arrive in pieces as parallel lists."""
    for name, value in own.items():
        if name == "logprobs" and isinstance(value, dict):
            joined = choice["logprobs"] or {}
            for key, entries in value.items():
                before = joined.get(key)
                joined[key] = [*before, *entries] if isinstance(before, list) and isinstance(entries, list) else entries
            choice["logprobs"] = joined
        elif not strict:
            choice[name] = value
