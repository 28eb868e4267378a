"""Builds the completion object for a client."""

from __future__ import annotations

from ...json_types import JsonObject
from ...messages import RefusalPart, Response, TextPart
from ...stages.steps import with_step_breaks
from ..common.completions import build_completion
from .prompt import DIALECT
from .wire import FINISH_OF, error_body


def build(response: Response, *, strict: bool = False) -> JsonObject:
    choices: list[JsonObject] = []
    for choice in response.choices:
        text = "".join(part.text for part in with_step_breaks(choice) if isinstance(part, (TextPart, RefusalPart)))
        finish = FINISH_OF.get(choice.stop_reason, "stop") if choice.stop_reason else None
        choices.append({"text": text, "index": choice.index, "logprobs": None, "finish_reason": finish})
    extras: list[JsonObject] = []
    for data in (extra.data for extra in response.extras if extra.dialect == DIALECT):
        own = data.get("choice")
        if isinstance(own, dict) and choices:
            _add_to_choice(choices[0], own, strict)
        else:
            extras.append({name: value for name, value in data.items() if name != "choice"})
    return build_completion(response, "text_completion", choices, extras, error_body, strict=strict)


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
