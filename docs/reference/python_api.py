"""docs/python-api.md: the public names of the package with signature, docstring and methods."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import streamglot

from .words import NOTE, cell, code, prose

SUBJECTS = {
    "Streams": ("read", "write", "translate", "EventStream", "AsyncEventStream", "ByteStream", "AsyncByteStream"),
    "Boxes": ("reader", "writer", "translator", "Reader", "Writer", "Translator", "PerChoice", "Collect"),
    "Calls inside text": ("inband", "parse_text", "InBand", "Format"),
    "Requests": ("prepare", "Prepared", "Request", "Message", "ToolSpec", "ToolChoice", "Reasoning", "OutputFormat"),
    "Parts": ("TextPart", "ReasoningPart", "ToolCallPart", "ToolResultPart", "MediaPart", "RefusalPart", "NativePart"),
    "Answers": (
        "Response",
        "ResponseChoice",
        "Snapshot",
        "ChoiceSnapshot",
        "TokenCounts",
        "Step",
        "collect",
        "messages_of",
        "replay",
        "check",
    ),
    "Dialects": ("dialect", "Dialect", "DIALECTS", "Built", "UpstreamEndpoint", "accumulate_delta"),
    "Ask upstreams": ("Client", "PlainClient", "Stream", "PlainStream", "JsonStream", "run_in_thread", "Running", "Upstream"),
    "Tools and policies": ("tool", "ToolOutput", "ToolError", "Policy", "apply_policies"),
    "Limits": ("Limits",),
}
SETTINGS = {"Upstream": "[upstreams.NAME]"}
"""Classes whose fields are settings: their meaning is on the page of the configuration."""
ELSEWHERE = re.compile(r"\b(?:streamglot|collections\.abc|typing)(?:\.\w+)*\.(\w+)")
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address of an object in memory: another number in every run."""
LINE_CHARS = 100
"""A longer signature has a line for each parameter."""
DEFAULT_CHARS = 60
"""A longer default is a whole table, which its own page shows."""


def public_names() -> set[str]:
    return {*streamglot.__all__}


def python_api_page() -> str:
    lines = [
        "# Python API",
        "",
        NOTE,
        "The names that `import streamglot` gives. [The library](library.md) is the guide. [Events](grammar.md) and [errors](errors.md) have pages of",
        "their own. What a name promises across versions is on the page about [stability](stability.md).",
        "In signatures, `JsonObject` is a `dict[str, Any]` of decoded JSON, and `JsonValue` is any decoded JSON.",
        "",
    ]
    for subject, names in subjects().items():
        lines += [f"## {subject}", ""]
        for name in names:
            lines += _entry(name)
    return "\n".join(lines)


def subjects() -> dict[str, tuple[str, ...]]:
    """The public names by subject. A name that no subject lists is under the last heading."""
    public = public_names()
    listed = {name for names in SUBJECTS.values() for name in names}
    others = tuple(sorted(name for name in public - listed if not _has_own_page(name)))
    found = {subject: tuple(name for name in names if name in public) for subject, names in SUBJECTS.items()}
    return {**found, "More": others} if others else found


def _has_own_page(name: str) -> bool:
    """Events and errors: those are on pages of their own."""
    found = getattr(streamglot, name)
    return getattr(found, "__module__", "") in ("streamglot.events", "streamglot.errors") or name == "Event"


def _entry(name: str) -> list[str]:
    found = getattr(streamglot, name)
    lines = [f"### {name}", ""]
    if inspect.isclass(found):
        lines += [*_signature(name, found), *_described(name, found), "", *_methods(found)]
    elif callable(found):
        lines += [*_signature(name, found), prose(found), ""]
    else:
        kind = "table" if isinstance(found, Mapping) else type(found).__name__
        lines += [f"A {kind} with {len(found)} rows: {', '.join(code(str(key)) for key in found)}.", ""]
    return lines


def _signature(name: str, found: object) -> list[str]:
    shown = _shown_signature(found)
    return ["```text", f"{name}{shown}", "```", ""] if shown else []


def _shown_signature(found: object) -> str:
    try:
        signature = inspect.signature(found)  # type: ignore[arg-type]  # what cannot be called is refused with a TypeError
    except (TypeError, ValueError):
        return ""
    pieces: list[str] = []
    keyword_only = False
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        keyword_only |= each.kind is each.VAR_POSITIONAL
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            pieces.append("*")
            keyword_only = True
        pieces.append(_parameter(each))
    returned = (
        "" if signature.return_annotation in (signature.empty, None, "None") else f" -> {_words(signature.return_annotation)}"
    )
    line = f"({', '.join(pieces)}){returned}"
    return line if len(line) <= LINE_CHARS else "(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){returned}"


def _parameter(each: inspect.Parameter) -> str:
    stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
    shown = f"{stars}{each.name}"
    if each.annotation is not each.empty:
        shown += f": {_words(each.annotation)}"
    if each.default is not each.empty:
        default = ADDRESS.sub("", repr(each.default))
        shown += f" = {default if len(default) <= DEFAULT_CHARS else '…'}"
    return shown


def _words(annotation: object) -> str:
    """An annotation as it is written in the code."""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    return ELSEWHERE.sub(r"\1", str(annotation))


def _described(name: str, found: type) -> list[str]:
    if name not in SETTINGS:
        return [prose(found)]
    first = prose(found).split("\n\n")[0]
    return [first, "", f"[The configuration](configuration.md) says what they mean: the table `{SETTINGS[name]}`."]


def _methods(found: type) -> list[str]:
    rows = [f"| `{cell(name)}` | {cell(text)} |" for name, text in _documented(found)]
    return ["| method | |", "|---|---|", *rows, ""] if rows else []


def _documented(found: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties of a class of ours that have a docstring."""
    for owner in found.__mro__:
        if not owner.__module__.startswith("streamglot"):
            continue
        for name, member in vars(owner).items():
            plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
            documented = inspect.getdoc(plain) if callable(plain) or isinstance(plain, property) else None
            if name.startswith("_") or not documented or inspect.isclass(plain):
                continue
            first = documented.split("\n\n")[0].replace("``", "`")
            names = [each for each in _parameters(plain) if each != "self"]
            yield (name if isinstance(plain, property) else f"{name}({', '.join(names)})"), first


def _parameters(function: object) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]  # a property is refused with a TypeError
    except (TypeError, ValueError):
        return []
