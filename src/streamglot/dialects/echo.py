"""State belongs to its maker, and travels inside another dialect's opaque field.

``Echo.provider`` names the maker of opaque state: the format of the API, and after an ``@`` who answered there
(``openai_chat@deepseek``, ``anthropic@10.0.0.5:8000``). A client that returns a native field of its dialect cannot say who made
it: such state has the name of the format alone, and every upstream that speaks the format is offered it.

A client of dialect A keeps and returns A's opaque fields (a signature, encrypted reasoning) and nothing else. State in the format
of A is written into them unchanged. State in another format is packed into them with a prefix, together with its maker, and
unpacked when the client sends the conversation back. It is sent to its maker, and to no other.
"""

from __future__ import annotations

import base64
from typing import Final

import msgspec

from ..events import Echo
from ..json_types import JSON_ERRORS

OURS = "streamglot"
"""The provider of marks that are no provider's state."""
UNREADABLE = "unreadable"
_MARK = "sglot1."
AT: Final = "@"
"""Stands between the format and who answers, so that its absence says that nobody is named."""
_decoder = msgspec.json.Decoder(Echo)
_IDENTIFYING: Final = (
    *("id", "encrypted_content", "signature", "data", "redactedContent", "thoughtSignature", "encryptedValue"),
    *("extra_content", "reasoning_details", "providerMetadata"),
)
"""Fields of which one is enough to recognize state: clients remove other fields, and writers add some."""


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


def maker(dialect: str, provider: str | None) -> str:
    """The maker of state in this dialect. ``provider`` is who answers there, or the maker itself; without it, nobody is named."""
    if not provider or provider == dialect or AT in provider:
        return provider or dialect
    return f"{dialect}{AT}{provider}"


def in_format(provider: str, dialect: str) -> str:
    """The same maker for an inner dialect: a service that carries the format of another one."""
    return dialect + provider[len(format_of(provider)) :]


def format_of(provider: str) -> str:
    """The dialect in whose format this maker's state is."""
    return provider.partition(AT)[0]


def is_native(echo: Echo | None, dialect: str) -> bool:
    """Whether this state is in the format of the dialect, whoever made it."""
    return echo is not None and (echo.provider == dialect or format_of(echo.provider) == dialect)


def belongs_to(echo: Echo, provider: str) -> bool:
    """Whether this maker may get the state: it made it, or it speaks the format and nobody is named."""
    return echo.provider == provider or echo.provider == format_of(provider)


def same_state(one: Echo, other: Echo) -> bool:
    """Whether both are the same state, perhaps with fields that a client removed or a writer added."""
    if format_of(one.provider) != format_of(other.provider):
        return False
    return one.data == other.data or any((value := one.data.get(name)) and value == other.data.get(name) for name in _IDENTIFYING)
