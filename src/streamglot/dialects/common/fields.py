"""The fields of a client's request, and the parameters that dialects share.

``Fields`` takes a JSON object apart, with errors that name the field and the value. Fields that no one took belong to the dialect
only; they travel in ``Request.extra``.

A dialect's ``request.py`` has a table from its own names to the shared parameters. ``take`` and ``give`` convert the plain ones
in both directions; the table in docs/parameters.md is generated from all of them. Some APIs take the thinking effort as a number
of tokens, which count against the limit of the whole answer: ``effort_for`` and ``fit_budget`` convert it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import compress, repeat
from math import ceil
from operator import attrgetter, is_not
from typing import Final, Literal, TypeVar, overload

from msgspec import Struct

from ...errors import RequestError, Unsupported, excerpt
from ...json_types import JsonObject, JsonValue
from ...messages import EFFORTS, Built, Effort, NativePart, OutputFormat, Part, Reasoning, Request, TextPart

T = TypeVar("T")

_WORD = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", dict: "an object", list: "a list"}


class Fields:
    """A client's JSON object. ``rest`` has the fields that were not taken yet; ``path`` names the object in errors."""

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


# --- how many tokens a model may think

MIN_BUDGET: Final = 1024
"""The smallest budget that these APIs accept, in tokens."""
_BUDGET_EFFORTS: Final = ((0, "none"), (2048, "low"), (12_288, "medium"))
"""The efforts for budgets up to these numbers of tokens; a larger one is ``high``."""


def is_off(reasoning: Reasoning) -> bool:
    """Whether the model is not to think."""
    return reasoning.enabled is False or reasoning.effort == "none" or reasoning.budget_tokens == 0


def effort_for(reasoning: Reasoning, built: Built) -> str | None:
    """The effort, for APIs that take no number of tokens."""
    budget = reasoning.budget_tokens
    if budget is not None:
        built.dropped.append("reasoning.budget_tokens")
    if reasoning.enabled is False:
        return "none"
    if reasoning.effort is None and budget is not None:
        return next((effort for max_budget, effort in _BUDGET_EFFORTS if budget <= max_budget), "high")
    return reasoning.effort or ("medium" if reasoning.enabled else None)


def fit_budget(budget: int, max_tokens: int | None, *, given: bool) -> int | None:
    """The budget for an answer of at most ``max_tokens``; None if the limit has no room for thinking.

    The limit is never raised, because clients set it to limit the cost. A budget that the client itself has ``given`` is used
    if the limit is greater. Any other is at most half of the limit, so that the rest is for the answer.
    """
    budget = max(budget, MIN_BUDGET)
    if max_tokens is None or (given and budget < max_tokens):
        return budget
    budget = max(min(budget, max_tokens // 2), MIN_BUDGET)
    return budget if budget < max_tokens else None


def duration(seconds: float) -> str:
    """A duration as rate limits are told (120ms, 7.5s, 6m0s), rounded up to a thousandth of a second."""
    thousandths = ceil(seconds * 1000)
    if thousandths < 1000:
        return f"{thousandths}ms"
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
