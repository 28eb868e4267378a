"""The name of streamglot's own tool loop in dialects that have a form for server-side tools."""

import re
from typing import Final

OWN_SERVER: Final = "streamglot"
"""The server name of calls that the tool loop ran. They are recognized by it when a client sends them back."""
_OWN_ID: Final = re.compile(r"(?:[a-z]+_)?sglot_")
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_]")


def own_id(prefix: str, call_id: str) -> str:
    """The id of a call that is shown in a provider's own form. It says that no provider knows the call."""
    return f"{prefix}sglot_{_NOT_IN_AN_ID.sub('_', call_id)}"


def is_own_id(call_id: str) -> bool:
    return _OWN_ID.match(call_id) is not None
