"""The model listings of a server of this dialect, for its clients, in particular editors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ...json_types import JsonObject

API_VERSION: Final = "0.13.0"
"""The API version that is reported. Editors refuse servers with an older version than they need."""
UNKNOWN_TIME: Final = "2026-01-01T00:00:00Z"
_NEVER: Final = "2318-04-10T00:00:00Z"
"""The unload time of a model that stays loaded."""
_CAPABILITIES: Final = ("completion", "tools")
_DETAILS: Final[JsonObject] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}

Named = Iterable[tuple[str, str]]
"""Model names, each with its owner."""


def version() -> JsonObject:
    return {"version": API_VERSION}


def tags(models: Named) -> JsonObject:
    """The available models."""
    return {"models": [_entry(name, owner) for name, owner in models]}


def running(models: Named) -> JsonObject:
    """The loaded models: all of them, permanently."""
    more = {"expires_at": _NEVER, "size_vram": 0}
    return {"models": [{**_entry(name, owner), **more} for name, owner in models]}


def show(name: str, owner: str, context_tokens: int | None = None, capabilities: Iterable[str] = _CAPABILITIES) -> JsonObject:
    """One model. Editors read ``capabilities``, and the context length in ``model_info``."""
    known = {} if context_tokens is None else {f"{owner}.context_length": context_tokens}
    return {
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": {**_DETAILS, "family": owner, "families": [owner]},
        "model_info": {"general.architecture": owner, "general.basename": name, **known},
        "capabilities": list(capabilities),
        "modified_at": UNKNOWN_TIME,
    }


def _entry(name: str, owner: str) -> JsonObject:
    details = {**_DETAILS, "family": owner, "families": [owner]}
    return {"name": name, "model": name, "modified_at": UNKNOWN_TIME, "size": 0, "digest": "", "details": details}
