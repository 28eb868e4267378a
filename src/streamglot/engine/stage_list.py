"""The stages of every exchange, in their one fixed order.

1. The in-band parser, where the model writes calls and reasoning into its text. It belongs to the upstream that answers, so
   ``pipeline.py`` builds it beside the reader.
2. Policies on requests and answers (``[[policies]]``, or given to the client).
3. The buffer that gives reasoning by the sentence (``server.reasoning``).
4. Stages of the configuration (``engine.stages``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..config import Config
from ..plugins import load_object
from ..stages import SentenceBuffer
from ..stages.stage import Stage, StageFactory
from .observer import Observer

if TYPE_CHECKING:
    from ..policies import Policy


def build_stages(config: Config, policies: Sequence[Policy] = ()) -> list[StageFactory]:
    """The factories of all stages behind the in-band parser, in order."""
    stages: list[StageFactory] = []
    if policies or config.policies:
        from ..policies import load_policies, policy_stage

        stages.append(policy_stage([*policies, *load_policies(config.policies)]))
    if config.server.reasoning == "sentence":
        stages.append(lambda _context: SentenceBuffer())
    return [*stages, *(_factory(reference) for reference in config.engine.stages)]


def build_observers(config: Config) -> list[Observer]:
    """The observers that the configuration names; one instance watches all exchanges."""
    return [load_object(reference, "engine.observers")() for reference in config.engine.observers]


def _factory(reference: str) -> StageFactory:
    named = load_object(reference, "engine.stages")
    if isinstance(named, type) and issubclass(named, Stage):
        return lambda _context: named()
    factory: StageFactory = named
    return factory
