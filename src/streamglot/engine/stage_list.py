"""The stages of every exchange, in their fixed order.

1. The in-band parser, if the model writes calls and reasoning into its text. It belongs to the upstream that answers, so
   ``pipeline.py`` builds it beside the reader.
2. Policies on requests and answers (``[[policies]]``, or given to the client).
3. The buffer that releases reasoning sentence by sentence (``server.reasoning``).
4. Stages of the configuration (``engine.stages``).
5. The buffer that ends fragments of arguments at bounds of JSON (``server.tool_arguments``).
6. The tool loop, if the exchange may use the gateway's tools. Calls reach it only through the stages before
   it, and these stages check each result (``tool_result``) before the client, the store or the model gets it.
7. Summaries of thoughts (``server.reasoning_summary``), over all turns of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..config import Config
from ..errors import FOREIGN_ERRORS, ConfigError
from ..events import Usage
from ..messages import TokenCounts
from ..plugins import load_object
from ..stages import JsonFragments, SentenceBuffer
from ..stages.stage import ExchangeContext, Stage, StageFactory
from ..tools import ToolLoop
from ..tools.execution import ToolExecutor
from ..tools.questions import DIRECT
from ..upstream.prices import price
from .observer import Observer
from .summaries import ReasoningSummaries

if TYPE_CHECKING:
    from ..policies import Policy

T = TypeVar("T")


def build_stages(config: Config, policies: Sequence[Policy] = (), tools: ToolExecutor | None = None) -> list[StageFactory]:
    """The factories of all stages after the in-band parser, in order. ``tools`` runs the tools of the loop."""
    stages: list[StageFactory] = []
    if policies or config.policies:
        from ..policies import load_policies, policy_stage

        stages.append(policy_stage([*policies, *load_policies(config.policies)]))
    if config.server.reasoning == "sentence":
        stages.append(lambda _context: SentenceBuffer())
    stages += [_factory(reference) for reference in config.engine.stages]
    if config.server.tool_arguments == "json":
        stages.append(lambda _context: JsonFragments())
    if tools is not None and tools.registry:
        stages.append(tool_loop(tools))
    if config.server.reasoning_summary:
        stages.append(_summaries(config.server.reasoning_summary, config.server.reasoning == "summary"))
    return stages


def _summaries(model: str, replace: bool) -> StageFactory:
    return lambda context: ReasoningSummaries(model, context, replace=replace)


def tool_loop(tools: ToolExecutor, *, direct: bool = False) -> StageFactory:
    """The factory of the tool loop. The factory returns None for an exchange without tools of the gateway. ``direct``: the loop
    is for a call that no model made, and for no other."""

    def build(context: ExchangeContext) -> Stage | None:
        runs = bool(context.tools) and (DIRECT in context.state) is direct
        return ToolLoop(tools, context.tools, context, _price_of(context)) if runs else None

    return build


def _price_of(context: ExchangeContext) -> Callable[[Usage], float]:
    """A function for the cost of a model turn at the price of the upstream that answered it; 0 if no price is known."""

    def cost(usage: Usage) -> float:
        counts = TokenCounts(usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens)
        return price(counts, context.upstream_model, context.upstream) or 0.0

    return cost


def build_observers(config: Config) -> list[Observer]:
    """The observers that the configuration names. One instance watches all exchanges."""
    return [_observer(reference) for reference in config.engine.observers]


def _observer(reference: str) -> Observer:
    made: Callable[[], Observer] = load_object(reference, "engine.observers")
    return _created(made, reference, "engine.observers")


def _factory(reference: str) -> StageFactory:
    """The factory of a stage of the configuration. A class is created once, so that a fault of it is found at load time."""
    named = load_object(reference, "engine.stages")
    if not callable(named):
        raise ConfigError(f"engine.stages: {reference} is neither a subclass of Stage nor a function that returns a stage")
    if isinstance(named, type) and issubclass(named, Stage):
        _created(named, reference, "engine.stages")
        return lambda _context: named()
    factory: StageFactory = named
    return factory


def _created(made: Callable[[], T], reference: str, setting: str) -> T:
    try:
        return made()
    except FOREIGN_ERRORS as error:
        raise ConfigError(f"{setting}: {reference} cannot be created: {type(error).__name__}: {error}") from None
