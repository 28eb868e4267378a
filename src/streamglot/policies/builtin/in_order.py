"""``in_order``: several policies as one entry, with one condition for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ..policy import Policy


class InOrder(Policy, frozen=True):
    """``policies`` are applied one after another, like entries of the configuration. ``when`` applies to all of them."""

    policies: Sequence[Policy] = ()

    use: ClassVar[str] = "in_order"
    title: ClassVar[str] = "Runs several policies one after another under one condition."
    nested: ClassVar[tuple[str, ...]] = ("policies",)

    def members(self) -> Sequence[Policy]:
        return tuple(self.policies)
