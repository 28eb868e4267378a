"""Decides whether keys are required, and why.

One rule serves the gateway, its start, its 401, ``keys list`` and ``doctor``. Pure.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from .config_checks import LOOPBACK as LOOPBACK
from .config_settings import ServerConfig

ADD: Final = "make a key with `streamglot keys add NAME`"
OPEN: Final = 'or set server.authentication = "none" to let in everybody on this machine'


class Authentication(Struct, frozen=True):
    """``summary`` describes the state, ``step`` the next step. ``usable``: whether any request can pass."""

    required: bool
    usable: bool
    summary: str
    step: str = ""


def authentication(
    server: ServerConfig, *, stored: int, revoked: int, had_keys: bool, store: str = "the store"
) -> Authentication:
    """Decides from the settings and the keys.

    ``stored`` and ``revoked`` are numbers of keys in the store. ``had_keys``: the store or this process ever had some. After the
    first key, requests without one are refused until ``server.authentication`` changes that: a database that was replaced,
    emptied or restored from an old copy must not let everybody in.
    """
    configured = len(server.keys)
    valid = configured + stored
    here = server.host in LOOPBACK
    if server.authentication == "none":
        ignored = f"; {_counted(valid, 'key')} in the store {'is' if valid == 1 else 'are'} ignored" if valid else ""
        return Authentication(False, True, f'keys are not required: server.authentication is "none"{ignored}')
    if valid:
        places = [f"{configured} in the configuration"] if configured else []
        places += [f"{stored} in {store}"] if stored else []
        return Authentication(True, True, f"keys are required: {' and '.join(places)}")
    leave = f"{ADD}, {OPEN}" if here else f"{ADD}, or add [[server.keys]]"
    if revoked:
        all_of_them = "the only one was" if revoked == 1 else f"all {revoked} were"
        return Authentication(True, False, f"keys are required and none is valid: {all_of_them} revoked", leave)
    if had_keys:
        return Authentication(
            True, False, f"keys are required and none is known: {store} had keys before and has none now", f"restore it, {leave}"
        )
    if server.authentication == "required":
        return Authentication(True, False, 'keys are required and there is none: server.authentication is "required"', leave)
    if not here:
        return Authentication(
            True, False, f"keys are required and there is none: {server.host} can be reached from outside", leave
        )
    return Authentication(False, True, "keys are not required: there is none, and only this machine can reach the gateway")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
