"""``streamglot keys``: adds, lists and revokes the gateway keys in the store."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from ...config import LoadedConfig, load
from ...config.checks import Authentication, authentication
from ...errors import RequestError
from ...store import Spent, StoredKey
from ...text import MAX_KEY_LIMIT
from .. import completion
from ..options import (
    JSON_LINES,
    completed,
    group,
    text,
)
from ..output import table
from ..output.printers import seen
from ..output.units import money, seconds, shown_time
from ..store import StoreView, reading

keys = group("Add, list and revoke the keys of the gateway's callers. The store has only their hashes.")
RATE = click.IntRange(1, MAX_KEY_LIMIT)


@keys.command(
    "add",
    examples=(
        "streamglot keys add alice",
        "streamglot keys add bot -m 'gpt-*' --budget-cost 10 --budget-per 30d",
    ),
)
@click.argument("name", type=text)
@click.option(
    "-m", "--model", "models", type=text, multiple=True, help="A pattern of models that the key may use. May be repeated."
)
@click.option(
    "-T", "--tool", "tools", type=text, multiple=True, help="A pattern of gateway tools that the key may use. May be repeated."
)
@click.option("--no-tools", is_flag=True, help="The key may use no gateway tools.")
@click.option("--requests-per-minute", type=RATE, help="The requests that the key may start in a minute.")
@click.option("--tokens-per-minute", type=RATE, help="The tokens that the key may use in a minute.")
@click.option("--concurrent", type=RATE, help="The streams that the key may have open at once.")
@click.option("--budget-cost", type=click.FloatRange(min=0), help="The budget of the key, in US dollars.")
@click.option("--budget-tokens", type=click.IntRange(0, MAX_KEY_LIMIT), help="The budget of the key, in tokens.")
@click.option("--budget-per", type=text, default="", help="The period of a budget: 30d, 24h …; by default unlimited.")
def keys_add(  # Any: Click passes the options by their names
    name: str, models: tuple[str, ...], tools: tuple[str, ...], no_tools: bool, budget_per: str, **limits: Any
) -> int:
    """Create a key and print it. It is shown only once.

    NAME identifies its owner. A name cannot be used again, even after its key was revoked.
    """
    if tools and no_tools:
        raise click.UsageError("--tool and --no-tools cannot be used together")
    fields = {
        "models": list(models) or None,
        "tools": [] if no_tools else list(tools) or None,
        "budget_seconds": seconds(budget_per) if budget_per else None,
        **limits,
    }

    async def work(view: StoreView) -> str:
        return (await view.keys.add(name, **{field: value for field, value in fields.items() if value is not None}))[1]

    loaded = load()
    secret = reading(work, loaded)
    print(secret)  # standard output gets only the secret, so that it can be piped
    print("the key is shown only this once: the store has only its hash", file=sys.stderr)
    if loaded.config.server.authentication == "none":
        print('the gateway does not require it: server.authentication is "none"', file=sys.stderr)
    return 0


@keys.command("list", examples=("streamglot keys list --revoked",))
@click.option("--revoked", is_flag=True, help="Also list revoked keys.")
@JSON_LINES
def keys_list(revoked: bool, json: bool) -> int:
    """List keys with their limits and usage. The keys themselves are not stored."""
    loaded = load()

    async def work(view: StoreView) -> tuple[list[tuple[StoredKey, Spent]], Authentication]:
        listed = [(key, await view.keys.spent(key)) for key in await view.keys.all(revoked=revoked)]
        return listed, await state_of(view, loaded)

    rows, state = reading(work, loaded)
    if json:
        for key, spent in rows:
            facts = {**msgspec.to_builtins(key), "spent": spent}
            del facts["hash"]
            sys.stdout.buffer.write(seen(msgspec.json.encode(facts) + b"\n"))
    elif rows:
        names = ("key", "begins", "made", "turns", "tokens", "cost", "limits")
        table.show(names, [_row(key, spent) for key, spent in rows], ("turns", "tokens", "cost"))
    if not rows and state.usable and not json:
        print("the store has no keys; `streamglot keys add NAME` creates one", file=sys.stderr)
    _explain(state)
    return 0


@keys.command("revoke", examples=("streamglot keys revoke alice",))
@click.argument("name", type=text, shell_complete=completed(completion.keys))
def keys_revoke(name: str) -> int:
    """Revoke the key with this NAME. The gateway refuses it from now on. Its turns stay in the store."""
    return _revoke(name)


@keys.command("remove", examples=("streamglot keys remove alice",))
@click.argument("name", type=text, shell_complete=completed(completion.keys))
def keys_remove(name: str) -> int:
    """Revoke the key with this NAME: another word for `keys revoke`."""
    return _revoke(name)


def _revoke(name: str) -> int:
    loaded = load()

    async def work(view: StoreView) -> tuple[bool, Authentication]:
        return await view.keys.revoke(name), await state_of(view, loaded)

    revoked, state = reading(work, loaded)
    if not revoked:
        raise RequestError(f"there is no valid key {name!r}; `streamglot keys list` lists them")
    print(f"{name!r} is revoked: the gateway refuses it from now on")
    _explain(state)
    return 0


async def state_of(view: StoreView, loaded: LoadedConfig) -> Authentication:
    """Whether a gateway with this configuration and store requires keys, and whether any key is valid."""
    keys = await view.keys.all(revoked=True)
    valid = sum(key.revoked is None for key in keys)
    had_keys = bool(keys) or view.keys.had_keys()
    return authentication(loaded.config.server, stored=valid, revoked=len(keys) - valid, had_keys=had_keys)


def _explain(state: Authentication) -> None:
    """Warns if the gateway refuses every request because no key is valid."""
    if not state.usable:
        print(f"{state.summary}. Every request is refused with 401: {state.step}", file=sys.stderr)
    elif not state.required:
        print(state.summary, file=sys.stderr)


def _row(key: StoredKey, spent: Spent) -> list[str]:
    made = shown_time(key.created, "%Y-%m-%d")
    return [key.name, f"{key.shown}…", made, str(spent.turns), str(spent.tokens), money(spent.cost), ", ".join(_limits(key))]


def _limits(key: StoredKey) -> list[str]:
    per = "" if key.budget_seconds is None else f" in {key.budget_seconds / 86_400:g} days"
    words = [f"revoked {shown_time(key.revoked, '%Y-%m-%d')}"] if key.revoked is not None else []
    words += [f"models {' '.join(key.models)}"] if key.models != ["*"] else []
    words += [f"tools {' '.join(key.tools) or 'none'}"] if key.tools is not None else []
    words += [f"{key.requests_per_minute} requests/min"] if key.requests_per_minute else []
    words += [f"{key.tokens_per_minute} tokens/min"] if key.tokens_per_minute else []
    words += [f"{key.concurrent} at once"] if key.concurrent else []
    words += [f"{money(key.budget_cost)}{per}"] if key.budget_cost is not None else []
    words += [f"{key.budget_tokens} tokens{per}"] if key.budget_tokens is not None else []
    return words
