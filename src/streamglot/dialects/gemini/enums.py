"""Replaces the numbers that some client libraries write for enums by their names. The official client fails on the numbers."""

from __future__ import annotations

from typing import Final

from ...json_types import JsonObject, JsonValue

_SAFETY: Final = ("HATE_SPEECH", "DANGEROUS_CONTENT", "HARASSMENT", "SEXUALLY_EXPLICIT")
_PROBABILITIES: Final = {1: "NEGLIGIBLE", 2: "LOW", 3: "MEDIUM", 4: "HIGH"}
NAMES: Final[dict[str, dict[int, str]]] = {
    "category": {
        **{number: f"HARM_CATEGORY_{word}" for number, word in enumerate(_SAFETY, 1)},
        7: "HARM_CATEGORY_HARASSMENT",
        8: "HARM_CATEGORY_HATE_SPEECH",
        9: "HARM_CATEGORY_SEXUALLY_EXPLICIT",
        10: "HARM_CATEGORY_DANGEROUS_CONTENT",
    },
    "probability": _PROBABILITIES,
    "severity": {number: f"HARM_SEVERITY_{word}" for number, word in _PROBABILITIES.items()},
    "modality": {1: "TEXT", 2: "IMAGE", 3: "VIDEO", 4: "AUDIO", 5: "DOCUMENT"},
    "trafficType": {1: "ON_DEMAND", 2: "PROVISIONED_THROUGHPUT"},
    "blockReason": {1: "SAFETY", 2: "OTHER", 3: "BLOCKLIST", 4: "PROHIBITED_CONTENT"},
    "urlRetrievalStatus": {1: "URL_RETRIEVAL_STATUS_SUCCESS", 2: "URL_RETRIEVAL_STATUS_ERROR"},
}
"""The two APIs number the harm categories differently, but no number has two meanings."""


def named_enums(value: object) -> JsonValue:
    """The same metadata with names instead of numbers; unknown numbers are dropped."""
    if isinstance(value, list):
        return [named_enums(element) for element in value]
    if not isinstance(value, dict):
        return value
    named: JsonObject = {}
    for key, inner in value.items():
        if key not in NAMES or not isinstance(inner, int):
            named[key] = named_enums(inner)
        elif inner in NAMES[key]:
            named[key] = NAMES[key][inner]
        elif key == "blockReason" and inner:
            named[key] = "OTHER"
    return named
