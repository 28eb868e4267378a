"""What a client says of how its answer is kept. No upstream is to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..dialects.fields import Fields
from ..errors import Unsupported
from .endpoints import Endpoint
from .http.call import Call

if TYPE_CHECKING:
    from ..store import Store

_YES: Final = ("1", "true", "yes")


class RetentionOptions(msgspec.Struct):
    """``keep`` lets the answer go on when the client is gone, ``background`` answers at once and lets it go on,
    ``conversation`` names what it belongs to."""

    keep: bool = False
    background: bool = False
    conversation: bool = False


def retention_options(
    endpoint: Endpoint, call: Call, body: dict[str, Any], store: Store | None
) -> tuple[RetentionOptions, dict[str, Any]]:
    """The client's wish, and the body without it."""
    rest = dict(body)
    found = RetentionOptions()
    if isinstance(rest.get("keep"), bool):
        found.keep = rest.pop("keep")
    else:
        found.keep = call.query("keep").lower() in _YES or call.headers.get("x-streamglot-keep", "").lower() in _YES
    if isinstance(rest.get("session_id"), str):
        del rest["session_id"]  # a name for us: APIs that do not know the field refuse it
    if isinstance(rest.get("extensions"), bool):
        del rest["extensions"]  # a flag for us, for the same reason
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


def _can_be_fetched(body: dict[str, Any], store: Store | None) -> None:
    if store is None:
        raise Unsupported("an answer in the background must be kept, and this gateway keeps nothing: set store.url")
    if not store.settings.content:
        raise Unsupported("an answer in the background must be kept, and store.content is off: set it, or leave out background")
    if body.get("store") is False:
        raise Unsupported(
            "an answer in the background is fetched by its id, which store: false forbids; leave out store, or background",
            detail={"param": "store"},
        )
