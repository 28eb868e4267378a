"""What a client says of how its answer is kept. No upstream is to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..errors import Unsupported
from .call import Call
from .faces import Face

if TYPE_CHECKING:
    from ..store import Store

_YES: Final = ("1", "true", "yes")


class Wish(msgspec.Struct):
    """``keep`` lets the answer go on when the client is gone, ``background`` answers at once and lets it go on,
    ``conversation`` names what it belongs to."""

    keep: bool = False
    background: bool = False
    conversation: bool = False


def wish(face: Face, call: Call, body: dict[str, Any], store: Store | None) -> tuple[Wish, dict[str, Any]]:
    """The client's wish, and the body without it."""
    rest = dict(body)
    found = Wish()
    if isinstance(rest.get("keep"), bool):
        found.keep = rest.pop("keep")
    else:
        found.keep = call.query("keep").lower() in _YES or call.headers.get("x-streamglot-keep", "").lower() in _YES
    if face.asked_again and store is not None:
        found.background = rest.pop("background", None) is True
        found.conversation = bool(rest.pop("conversation", None))
        if found.background and not store.settings.content:
            raise Unsupported("an answer in the background must be kept, and store.content is off")
    elif face.asked_again and rest.get("background"):
        raise Unsupported("an answer in the background must be kept, and this gateway keeps nothing: set store.url")
    found.keep = (found.keep or found.background) and store is not None
    return found, rest
