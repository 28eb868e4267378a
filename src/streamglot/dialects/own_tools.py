"""How calls that our own tool loop ran are named in dialects that have a form for tools of a server."""

from typing import Final

OWN_SERVER: Final = "streamglot"
"""The name of the server that ran them. A client brings such calls back in its next request, where they are known by it."""
