"""The models of a server of this dialect, as its clients and the editors among them ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

API_VERSION: Final = "0.13.0"
"""The version of the API that is spoken. Editors refuse servers that say an older one than they need."""
UNKNOWN_TIME: Final = "2026-01-01T00:00:00Z"
_NEVER: Final = "2318-04-10T00:00:00Z"
"""When a model that stays loaded is unloaded."""
_CAPABILITIES: Final = ("completion", "tools")
_DETAILS: Final[dict[str, Any]] = {
    "parent_model": "",
    "format": "",
    "family": "",
    "families": [],
    "parameter_size": "",
    "quantization_level": "",
}

Named = Iterable[tuple[str, str]]
"""The names of models, each with that of its owner."""


def version() -> dict[str, Any]:
    return {"version": API_VERSION}


def tags(models: Named) -> dict[str, Any]:
    """The models that can be asked for."""
    return {"models": [_entry(name, owner) for name, owner in models]}


def running(models: Named) -> dict[str, Any]:
    """The models that are loaded: all that are served, for ever."""
    more = {"expires_at": _NEVER, "size_vram": 0}
    return {"models": [{**_entry(name, owner), **more} for name, owner in models]}


def show(name: str, owner: str, context_tokens: int | None = None, capabilities: Iterable[str] = _CAPABILITIES) -> dict[str, Any]:
    """One model. Editors look for ``capabilities`` and for the length of the context in ``model_info``."""
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


def _entry(name: str, owner: str) -> dict[str, Any]:
    details = {**_DETAILS, "family": owner, "families": [owner]}
    return {"name": name, "model": name, "modified_at": UNKNOWN_TIME, "size": 0, "digest": "", "details": details}
