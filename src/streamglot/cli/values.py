"""The types of options and arguments, and their shell completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click
from click.shell_completion import CompletionItem

from .output.terminal import well_formed

Offer = Callable[[str], Sequence[str | tuple[str, str]]]
"""A function from the beginning of a word to completions, each with or without a description."""


def text(value: str) -> str:
    """Converts a value to text for requests and the database. (Click shows the name of this function as the type.)"""
    return well_formed(value)


FILE: Final = click.Path(path_type=Path)


def completed(offer: Offer) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Returns Click's completion callback for the words of ``offer``."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = ((word, "") if isinstance(word, str) else word for word in offer(incomplete))
        return [CompletionItem(word, help=about or None) for word, about in words]

    return complete
