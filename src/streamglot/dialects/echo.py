"""Carries opaque state inside another dialect's opaque field.

A client of dialect A keeps and returns A's opaque fields (a signature, encrypted reasoning) and nothing else. State of a provider
with dialect B is therefore packed into A's field with a prefix, and unpacked when the client sends the conversation back. It is
sent to the provider that made it, and to no other.
"""

from __future__ import annotations

import base64

import msgspec

from ..events import Echo
from ..json_types import JSON_ERRORS
from ..messages import Message, Part, Request

OURS = "streamglot"
"""The provider of marks that are no provider's state."""
UNREADABLE = "unreadable"
_MARK = "sglot1."
_decoder = msgspec.json.Decoder(Echo)


def pack(echo: Echo) -> str:
    return _MARK + base64.urlsafe_b64encode(msgspec.json.encode(echo)).decode()


def unpack(text: str) -> Echo | None:
    """The echo that ``pack`` encoded, or None if the text is not one. A text that was changed is state of nobody, so that it is not
    taken for state of the client's own format."""
    if not text.startswith(_MARK):
        return None
    try:
        return _decoder.decode(base64.urlsafe_b64decode(text[len(_MARK) :]))
    except JSON_ERRORS:
        return Echo(OURS, {UNREADABLE: True})


def claimed(request: Request, dialect: str, provider: str) -> Request:
    """Assigns state that names only the dialect to this provider of the dialect, because a client that returns a native field
    does not say whose it was. State that names its provider is unchanged."""
    if dialect == provider or not any(_carries(message, dialect) for message in request.messages):
        return request
    messages = []
    for message in request.messages:
        parts: list[Part] = []
        for part in message.parts:
            echo = getattr(part, "echo", None)
            if echo is not None and echo.provider == dialect:
                part = msgspec.structs.replace(part, echo=Echo(provider, echo.data))
            parts.append(part)
        whole = message.echo
        if whole is not None and whole.provider == dialect:
            whole = Echo(provider, whole.data)
        messages.append(Message(message.role, parts, message.name, whole))
    return msgspec.structs.replace(request, messages=messages)


def _carries(message: Message, dialect: str) -> bool:
    echoes = [message.echo, *(getattr(part, "echo", None) for part in message.parts)]
    return any(echo is not None and echo.provider == dialect for echo in echoes)
