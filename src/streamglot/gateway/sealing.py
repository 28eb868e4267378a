"""Encrypts opaque state on its way to a client, and opens it when it comes back (``server.reasoning_key``).

Without a key, state of another format is packed into the client's opaque fields so that anybody can read it. With a key, the state
itself is replaced by its ciphertext before a writer gets it, so that no dialect knows about it: the writer packs it like the state of
any other provider. State in the client's own format is written as the provider made it, and is the provider's ciphertext already.

What comes back and does not open, was sealed by somebody else, or was never sealed is dropped and counted. The store, the policies
and the upstreams see the open state only.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import structs

from ..dialects import dialect
from ..dialects.common.state import OURS, UNREADABLE
from ..engine.summaries import THOUGHT
from ..errors import ConfigError
from ..events import Choice, Echo, Event, ReasoningEnd, TextEnd, ToolCallEnd, ToolCallStart, ToolResult
from ..installation import require
from ..json_types import JSON_ERRORS
from ..messages import Message, Part, ReasoningPart, Request, Response

DROPPED: Final = "reasoning_state"
"""The name under which ``x-streamglot-dropped`` counts state that did not open."""
_FIELD: Final = "sealed"
_OF_NOBODY: Final = (_FIELD, UNREADABLE, THOUGHT)
"""Fields of state that opens or is dropped. Other state of ours is a mark of a writer."""
_PURPOSE: Final = b"streamglot reasoning 1"
"""Authenticated with the ciphertext, so that nothing else encrypted with the key is taken for state."""
_NONCE_BYTES: Final = 12
"""Bytes of a nonce of AES-GCM. Random ones are safe for 2**32 sealed values of one key."""
_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEY_FILE_BYTES: Final = 4096
"""Bytes that are read of a file with a key: an endless device must not fill the memory."""
_SEALABLE: Final = (TextEnd, ReasoningEnd, ToolCallEnd, ToolCallStart, ToolResult)
_Holder = TypeVar("_Holder", Part, Event)


class Sealer:
    """``keys``: the first one seals, all of them open. ``random`` makes nonces."""

    def __init__(self, keys: Sequence[bytes], random: Callable[[int], bytes] = os.urandom) -> None:
        require("cryptography")
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = [AESGCM(key) for key in keys]
        self._wrong: type[Exception] = InvalidTag
        self._random = random

    def seal(self, echo: Echo) -> Echo:
        nonce = self._random(_NONCE_BYTES)
        sealed = nonce + self._ciphers[0].encrypt(nonce, msgspec.json.encode(echo), _PURPOSE)
        return Echo(OURS, {_FIELD: base64.urlsafe_b64encode(sealed).decode()})

    def open(self, echo: Echo) -> Echo | None:
        """The state that ``seal`` sealed; None if it is anything else."""
        try:
            sealed = base64.urlsafe_b64decode(echo.data[_FIELD])
        except (ValueError, TypeError, KeyError):
            return None
        for cipher in self._ciphers:
            try:
                return msgspec.json.decode(cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _PURPOSE), type=Echo)
            except (self._wrong, ValueError, *JSON_ERRORS):
                continue
        return None

    # --- answers

    def events(self, events: Iterable[Event], client: str) -> list[Event]:
        """The events for a client of this dialect."""
        return [self._event(event, client) for event in events]

    def _event(self, event: Event, client: str) -> Event:
        if isinstance(event, Choice):
            return structs.replace(event, event=self._event(event.event, client))
        return self._sealed(event, client) if isinstance(event, _SEALABLE) else event

    def response(self, response: Response, client: str) -> Response:
        """The whole answer for a client of this dialect."""
        choices = [structs.replace(each, parts=[self._sealed(part, client) for part in each.parts]) for each in response.choices]
        return structs.replace(response, choices=choices)

    def messages(self, messages: Iterable[Message], client: str) -> list[Message]:
        """Stored messages for a client of this dialect."""
        return [
            structs.replace(
                message,
                parts=[self._sealed(part, client) for part in message.parts],
                echo=self._echo(message.echo, client),
            )
            for message in messages
        ]

    def _sealed(self, holder: _Holder, client: str) -> _Holder:
        found = {name: echo for name in ("echo", "native") if (echo := getattr(holder, name, None)) is not None}
        sealed = {name: self._echo(echo, client) for name, echo in found.items()}
        return structs.replace(holder, **sealed) if sealed != found else holder

    def _echo(self, echo: Echo | None, client: str) -> Echo | None:
        return echo if echo is None or _format_of(echo) == client else self.seal(echo)

    # --- requests

    def open_request(self, request: Request, client: str) -> list[str]:
        """Opens the state in a request, in place. Returns what to say of pieces that were dropped."""
        native = (client, OURS) if dialect(client).has_reader else (OURS,)  # a format without upstreams has no state of its own
        dropped = 0
        for message in request.messages:
            kept: list[Part] = []
            for holder in (message, *message.parts):
                lost = False
                for name in ("echo", "native"):
                    echo = getattr(holder, name, None)
                    if echo is None or (_format_of(echo) in native and echo.data.keys().isdisjoint(_OF_NOBODY)):
                        continue
                    opened = self.open(echo)
                    lost = lost or opened is None
                    dropped += opened is None
                    setattr(holder, name, opened)
                if not isinstance(holder, Message) and not (lost and isinstance(holder, ReasoningPart) and not holder.text):
                    kept.append(holder)
            message.parts = kept
        return [f"{DROPPED}={dropped}"] if dropped else []


def _format_of(echo: Echo) -> str:
    """The dialect in whose format this state is."""
    return echo.provider.partition("@")[0]


def sealer_for(setting: str | list[str], environment: Mapping[str, str]) -> Sealer | None:
    """The sealer for ``server.reasoning_key``; None if it is not set."""
    given = [setting] if isinstance(setting, str) else setting
    if not any(given):
        return None
    return Sealer([bytes.fromhex(_key(text, environment)) for text in given])


def _key(text: str, environment: Mapping[str, str]) -> str:
    """The key that is this text, or is in the variable or the file of this name."""
    text = text.strip()
    if _KEY.fullmatch(text):
        return text
    name = text.removeprefix("env:").removeprefix("$")
    if _NAME.fullmatch(name) and name in environment:
        found, where = environment[name].strip(), f"the variable {name}"
    else:
        path = Path(text.removeprefix("file:")).expanduser()
        try:
            with path.open("rb") as file:
                found, where = file.read(_KEY_FILE_BYTES).decode("ascii", "replace").strip(), "the file that it names"
        except (OSError, ValueError):
            raise _no_key("the value is neither a key nor the name of a variable or of a file") from None
    if not _KEY.fullmatch(found):
        raise _no_key(f"{where} has no key")
    return found


def _no_key(why: str) -> ConfigError:
    return ConfigError(f"server.reasoning_key: {why}; a key is 64 hexadecimal digits, for example of `openssl rand -hex 32`")
