"""The notation in which the server's models write calls and reasoning into their text."""

from streamglot.inband import Format, Think
from streamglot.inband.engines.json_calls import JsonCalls

ACTS = Format(
    "acts",
    '<act>{"name": "weather", "arguments": {"city": "Oslo"}}</act>',
    (JsonCalls("<act>", end=("</act>",)),),
    Think(("<muse>",), ("</muse>",)),
)
