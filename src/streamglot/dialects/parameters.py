"""The request parameters that dialects share, and what happens if a dialect lacks one.

A dialect's ``request.py`` has a table from its own names to these fields. ``take`` and ``give`` convert the plain ones in both
directions; the table in docs/parameters.md is generated from all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Final, Literal

from msgspec import Struct

from ..errors import Unsupported
from ..json_types import JsonObject
from ..messages import Built, OutputFormat, Request
from .fields import Fields


class Parameter(Struct, frozen=True):
    """``absent``: what to do if the upstream's dialect lacks the parameter. One that only tunes the answer is dropped and
    reported; one that changes what the answer is, is refused."""

    kind: type
    absent: Literal["report", "refuse"]
    meaning: str


PARAMETERS: Final[dict[str, Parameter]] = {
    "max_tokens": Parameter(int, "report", "maximum number of output tokens"),
    "stop": Parameter(list, "refuse", "sequences at which generation stops"),
    "temperature": Parameter(float, "report", "sampling temperature"),
    "top_p": Parameter(float, "report", "nucleus sampling"),
    "top_k": Parameter(int, "report", "sample only from the k most likely tokens"),
    "min_p": Parameter(float, "report", "minimum probability relative to the most likely token"),
    "frequency_penalty": Parameter(float, "report", "penalty by frequency"),
    "presence_penalty": Parameter(float, "report", "penalty by presence"),
    "repetition_penalty": Parameter(float, "report", "penalty for repeating"),
    "logit_bias": Parameter(dict, "refuse", "bias of single tokens"),
    "seed": Parameter(int, "report", "seed of the sampling"),
    "n": Parameter(int, "refuse", "how many answers"),
    "logprobs": Parameter(bool, "refuse", "log probabilities of the tokens"),
    "top_logprobs": Parameter(int, "refuse", "number of alternatives at each position"),
    "parallel_tool_calls": Parameter(bool, "report", "whether several tools may be called at once"),
    "verbosity": Parameter(str, "report", "length of the answer"),
    "modalities": Parameter(list, "refuse", "text, audio …"),
    "audio": Parameter(dict, "refuse", "voice and format of spoken answers"),
    "service_tier": Parameter(str, "report", "speed and price"),
    "cache_key": Parameter(str, "report", "key of the prompt cache"),
    "store": Parameter(bool, "report", "store the answer at the provider"),
    "user": Parameter(str, "report", "identifier of the end user, for abuse control"),
    "metadata": Parameter(dict, "report", "metadata of the client"),
    "previous_response_id": Parameter(str, "refuse", "the response that this one continues"),
}

_HARMLESS: Final[JsonObject] = {"n": 1, "logprobs": False, "top_logprobs": 0, "modalities": ["text"], "store": False}
"""Values that request nothing special. It does not matter if a dialect lacks them."""
_values: Final = attrgetter(*PARAMETERS)


def begin(body: JsonObject, dialect: str, *, stream: bool = False) -> tuple[Fields, Request]:
    """A body in parts, and its request with the model. ``stream`` is what a body means that does not say it."""
    fields = Fields(body)
    return fields, Request(fields.take("model", str, ""), dialect=dialect, stream=fields.take("stream", bool, stream))


def keep_extra(request: Request, extra: JsonObject, essential: Collection[str]) -> None:
    """Keeps the fields that only the client's dialect has. ``essential`` names those that change what the answer is."""
    request.extra = extra
    request.essential = [name for name in extra if name in essential]


def take(fields: Fields, names: dict[str, str], request: Request) -> None:
    """Takes the plain parameters from the client's object into the request. ``names`` maps wire names to fields; a later name
    for the same field applies if the earlier is missing."""
    given = names.keys() & fields.rest.keys()
    for name in sorted(given, key=list(names).index) if len(given) > 1 else given:
        field = names[name]
        parameter = PARAMETERS[field]
        value = fields.words(name) if field == "stop" else fields.take(name, parameter.kind)
        if value is not None and value != [] and not getattr(request, field):
            setattr(request, field, value)


def give(request: Request, names: dict[str, str], built: Built) -> None:
    """Puts the plain parameters of the request into the upstream's object, or into the list of dropped ones."""
    for field in compress(PARAMETERS, map(is_not, _values(request), repeat(None))):
        value = getattr(request, field)
        if value == []:
            continue
        name = next((name for name, meant in names.items() if meant == field), None)
        if name is not None:
            built.body[name] = value
        elif not is_harmless(field, value):
            parameter = PARAMETERS[field]
            drop(built, field, parameter.absent == "refuse", parameter.meaning)


def is_harmless(field: str, value: object) -> bool:
    """Whether this value requests nothing special."""
    return bool(_HARMLESS.get(field) == value)


def give_extra(request: Request, dialect: str, built: Built) -> None:
    """Handles the fields of the client's own dialect: an upstream of that dialect gets them, otherwise they are reported or
    refused."""
    for name, value in request.extra.items():
        if request.dialect == dialect:
            built.body.setdefault(name, value)
        else:
            drop(built, name, name in request.essential, f"a field of {request.dialect or 'another dialect'}")


def drop(built: Built, name: str, essential: bool, meaning: str) -> None:
    if essential:
        raise Unsupported(
            f"the chosen upstream cannot do {name!r} ({meaning}); leave it out, or choose an upstream whose dialect has it",
            detail={"param": name},
        )
    built.dropped.append(name)


# --- the form of the answer, on wires that follow chat completions


def parse_output(form: Fields, *, nested: bool) -> OutputFormat:
    """``nested``: the schema and its name are in an object of their own."""
    kind = form.take("type", str, "text")
    match kind:
        case "text" | "json_object":
            return OutputFormat("json_object" if kind == "json_object" else "text")  # a default is left out by its identity
        case "json_schema":
            inner = form.need_inner("json_schema", "the type 'json_schema'") if nested else form
            name, description = inner.take("name", str, ""), inner.take("description", str, "")
            return OutputFormat(kind, name, description, inner.take("schema", dict), inner.take("strict", bool))
    raise form.wrong("type", "text, json_object or json_schema", kind)


def build_output(output: OutputFormat, *, nested: bool) -> JsonObject:
    if output.kind != "json_schema":
        return {"type": output.kind}
    schema: JsonObject = {"name": output.name or "answer", "schema": output.schema or {}}
    if output.description:
        schema["description"] = output.description
    if output.strict is not None:
        schema["strict"] = output.strict
    return {"type": "json_schema", **({"json_schema": schema} if nested else schema)}
