"""How calls that our own tool loop ran are named in dialects that have a form for tools of a server."""

import re
from typing import Final

OWN_SERVER: Final = "streamglot"
"""The name of the server that ran them. A client brings such calls back in its next request, where they are known by it."""
_OWN_ID: Final = re.compile(r"(?:[a-z]+_)?sglot_")
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_]")


def own_id(prefix: str, call_id: str) -> str:
    """The id of a call that is shown in a provider's own form. It says that no provider knows the call."""
    return f"{prefix}sglot_{_NOT_IN_AN_ID.sub('_', call_id)}"


def is_own_id(call_id: str) -> bool:
    return _OWN_ID.match(call_id) is not None
