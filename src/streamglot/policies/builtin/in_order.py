"""``in_order``: several policies as one entry, with one condition for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..policy import Policy


class InOrder(Policy, frozen=True):
    """``policies`` follow one another, as entries of the configuration do. ``when`` holds for all of them."""

    policies: Sequence[Policy] = ()

    use: ClassVar[str] = "in_order"
    title: ClassVar[str] = "Runs several policies one after another under one condition."
    nested: ClassVar[tuple[str, ...]] = ("policies",)

    def members(self) -> Sequence[Policy]:
        return tuple(self.policies)
