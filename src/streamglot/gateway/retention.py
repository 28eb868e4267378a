"""Reads the fields and headers by which a client controls how its answer is stored. They are not sent to an upstream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from ..dialects.common.fields import Fields
from ..errors import Unsupported
from ..json_types import JsonObject
from .endpoints import Endpoint

if TYPE_CHECKING:
    from ..store import Store

_YES: Final = ("1", "true", "yes")
_OWN_FIELDS: Final = {"keep": bool, "session_id": str, "extensions": bool}
"""Fields that only the gateway uses. APIs that do not know a field refuse it."""


class RetentionOptions(msgspec.Struct):
    """How an answer is stored.

    ``keep`` continues the answer after the client disconnects. ``background`` answers at once and continues in the background.
    ``conversation`` names the conversation that the answer belongs to.
    """

    keep: bool = False
    background: bool = False
    conversation: bool = False


def retention_options(
    endpoint: Endpoint, body: JsonObject, headers: Mapping[str, str], keep: str, store: Store | None
) -> tuple[RetentionOptions, JsonObject]:
    """The client's options, and the body without them. ``keep`` is the parameter of the address."""
    found = RetentionOptions()
    own: set[str] = set()
    if not _OWN_FIELDS.keys().isdisjoint(body):
        own = {name for name, kind in _OWN_FIELDS.items() if isinstance(body.get(name), kind)}
    rest = {name: value for name, value in body.items() if name not in own} if own else body
    if "keep" in own:
        found.keep = body["keep"]
    else:
        found.keep = keep.lower() in _YES or headers.get("x-streamglot-keep", "").lower() in _YES
    if endpoint.retrievable:
        fields = Fields(rest)
        found.background = fields.take("background", bool, False)
        found.conversation = _names_a_conversation(fields)
        if found.background:
            _can_be_fetched(body, store)
        rest = rest if store is None else fields.rest
    found.keep = (found.keep or found.background) and store is not None
    return found, rest


def _names_a_conversation(fields: Fields) -> bool:
    held = fields.any("conversation")
    name = held.get("id") if isinstance(held, dict) else held
    if held is not None and not (isinstance(name, str) and name):
        raise fields.wrong("conversation", "the id of a conversation, or an object with its id", held)
    return held is not None


def _can_be_fetched(body: JsonObject, store: Store | None) -> None:
    if store is None:
        raise Unsupported("background needs a store, and this gateway has none: set store.url, or leave out background")
    if not store.settings.content:
        raise Unsupported("background needs stored content, and store.content is off: set it, or leave out background")
    if body.get("store") is False:
        raise Unsupported(
            "background and store: false cannot be used together; leave out one of them",
            detail={"param": "store"},
        )
