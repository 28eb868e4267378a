"""The name of streamglot's own tool loop in dialects that have a form for server-side tools."""

from typing import Final

OWN_SERVER: Final = "streamglot"
"""The server name of calls that the tool loop ran. They are recognized by it when a client sends them back."""
