"""``dry_run``: records what a policy would do, and does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...errors import ConfigError
from ..policy import Policy


class DryRun(Policy, frozen=True):
    """Wraps any ``policy``. It sees and judges everything; nothing is held, changed or refused. Its records say ``dry_run``."""

    policy: Policy | None = None

    use: ClassVar[str] = "dry_run"
    title: ClassVar[str] = "Records what another policy would do, and changes nothing."
    nested: ClassVar[tuple[str, ...]] = ("policy",)

    @property
    def shadow(self) -> bool:
        return True

    def members(self) -> Sequence[Policy]:
        if self.policy is None:
            raise ConfigError('dry_run: there is no policy to run; add policy = { use = "…" }')
        return (self.policy,)
