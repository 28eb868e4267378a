"""The kinds of values that options and arguments take, and what a shell offers for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from .output.terminal import well_formed

Offer = Callable[[str], Sequence[str | tuple[str, str]]]
"""From the beginning of a word to words, each alone or with what it means."""


def text(value: str) -> str:
    """Text that goes into requests and the database. (Click shows the name of this function as the kind of value.)"""
    return well_formed(value)


FILE: Final = click.Path(path_type=Path)


def completed(offer: Offer) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Click's callback for the words that ``offer`` gives."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = ((word, "") if isinstance(word, str) else word for word in offer(incomplete))
        return [CompletionItem(word, help=about or None) for word, about in words]

    return complete
