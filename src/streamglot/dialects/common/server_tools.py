"""Calls of tools that run on the server: tools that a client expects its provider to host and that a tool of ours answered, the
tools of our own loop, and calls that wait for a person's approval.

A dialect with forms of its own for hosted tools turns a ``HostedCall`` into events with these forms. Here is what such dialects
have in common: what a call asked for, and which sources its result names.

No event asks for approval, because most wire formats cannot. Code that holds a call back emits ``asking(ApprovalPrompt(...))``,
an Extra; the writers of dialects that support approval write it in their own form, the others count it as lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, field

from ...events import Extra
from ...json_types import JSON_ERRORS, JsonObject, JsonValue
from ...messages import MediaPart

MAX_SOURCES: Final = 50
"""Sources of one result that are shown to the client: providers name about ten."""
_LINK: Final = re.compile(r"\[([^\[\]\n]{1,300})\]\((https?://[^\s()<>]{1,2000})\)")
_LISTS: Final = ("results", "sources", "items", "documents", "data")
_QUERY: Final = ("query", "q", "queries", "question", "text", "input", "prompt", "url")
_CODE: Final = ("code", "script", "source", "command", "expression")


class HostedCall(Struct, kw_only=True):
    """A call of a hosted tool that a tool of ours answered. ``declared`` is the tool as the client declared it in its own
    dialect, ``options`` are fields of the request that only its dialect knows. ``earlier`` are the calls of the same exchange
    before this one."""

    declared: Mapping[str, JsonValue]
    name: str
    call_id: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    text: str = ""
    is_error: bool = False
    media: Sequence[MediaPart] = ()
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    earlier: Sequence[HostedCall] = ()

    @property
    def query(self) -> str:
        """What was searched for, asked or drawn."""
        return _first(self.arguments, _QUERY)

    @property
    def code(self) -> str:
        """The program that was run."""
        return _first(self.arguments, _CODE)


class CitedSource(Struct):
    """One source that a result names."""

    url: str
    title: str
    text: str = ""


def sources_of(text: str) -> list[CitedSource]:
    """The sources that a result names: a JSON list of objects with ``url``, ``title`` and ``text``, on its own or in an object,
    or links in Markdown. Other text has none."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            value = msgspec.json.decode(text)
        except JSON_ERRORS:
            pass
        else:
            return _listed(value)[:MAX_SOURCES]
    links = dict.fromkeys((found[2], found[1]) for found in _LINK.finditer(text))
    return [CitedSource(url, title) for url, title in links][:MAX_SOURCES]


def _listed(value: JsonValue) -> list[CitedSource]:
    if isinstance(value, dict):
        inner = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), None)
        value = [value] if inner is None else inner
    sources = []
    for entry in value:
        url = _first(entry, ("url", "link", "uri", "href")) if isinstance(entry, dict) else ""
        if url:
            text = _first(entry, ("text", "content", "snippet", "summary"))
            sources.append(CitedSource(url, _first(entry, ("title", "name", "url", "link")), text))
    return sources


def _first(fields: Mapping[str, JsonValue], names: Sequence[str]) -> str:
    """The first of these fields that is a text, or a list that begins with one; else the first text of all."""
    values = [*(fields.get(name) for name in names), *(fields.values() if names in (_QUERY, _CODE) else ())]
    for value in values:
        found = value[0] if isinstance(value, list) and value else value
        if isinstance(found, str) and found:
            return found
    return ""


# --- tools of our own loop

OWN_SERVER: Final = "streamglot"
"""The server name of calls that the tool loop ran. They are recognized by it when a client sends them back."""
_OWN_ID: Final = re.compile(r"(?:[a-z]+_)?sglot_")
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_]")


def own_id(prefix: str, call_id: str) -> str:
    """The id of a call that is shown in a provider's own form. It says that no provider knows the call."""
    return f"{prefix}sglot_{_NOT_IN_AN_ID.sub('_', call_id)}"


def is_own_id(call_id: str) -> bool:
    return _OWN_ID.match(call_id) is not None


# --- approval

APPROVAL: Final = "approval"
"""The dialect of the Extra that asks for it."""


class ApprovalPrompt(Struct, omit_defaults=True):
    """A request for approval. ``name`` and ``arguments`` are those of the call, if the client has not seen it. ``schema``
    describes the expected answer if it is more than yes or no."""

    id: str
    call_id: str
    message: str = ""
    schema: JsonObject | None = None
    name: str = ""
    arguments: str = ""


class ApprovalAnswer(Struct):
    """What a user decided, as a client's next request has it. ``arguments`` replace those of an approved call."""

    id: str
    approved: bool
    arguments: str | None = None
    reason: str = ""


Answers: TypeAlias = tuple[list[ApprovalAnswer], JsonObject]
"""The decisions in the body of a request, and the body without them."""


def reason_in(fields: Mapping[str, JsonValue]) -> str:
    reason = fields.get("reason")
    return reason if isinstance(reason, str) else ""


def asking(approval: ApprovalPrompt) -> Extra:
    """The Extra that requests this approval."""
    return Extra(APPROVAL, msgspec.to_builtins(approval))


def approval_in(event: Extra) -> ApprovalPrompt | None:
    """The approval that this Extra requests, or None if it requests none."""
    if event.dialect != APPROVAL:
        return None
    try:
        return msgspec.convert(event.data, ApprovalPrompt)
    except msgspec.ValidationError:
        return None
