"""Tries policies on a recorded stream: shows it before and after, side by side, with what was held and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from ..events import (
    Choice,
    Event,
    ReasoningDelta,
    StreamEnd,
    StreamError,
    StreamStart,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResult,
)
from ..json_types import JsonObject
from ..messages import Request
from ..stages.stage import ExchangeContext
from .drive import Resolve, no_engine, settled
from .policy import Policy
from .running.records import SUBJECT
from .running.stage import PolicyStage, policy_stage


class TrialStep(Struct):
    """One read: when it came, its events, the events that left, and the text that is held behind them."""

    at: float
    fed: list[Event]
    left: list[Event]
    held: str


class Hold(Struct):
    """Text that waited: since when, how long, and the most of it at once."""

    since: float
    seconds: float
    text: str


class Trial(Struct):
    """``holds``: each time that text waited. ``verdicts``: what the policies decided."""

    steps: list[TrialStep]
    holds: list[Hold]
    verdicts: list[JsonObject] = field(default_factory=list)

    @property
    def before(self) -> list[Event]:
        return [event for step in self.steps for event in step.fed]

    @property
    def after(self) -> list[Event]:
        return [event for step in self.steps for event in step.left]


def try_policies(
    reads: Iterable[tuple[float, list[Event]]],
    policies: Sequence[Policy],
    *,
    request: Request | None = None,
    context: ExchangeContext | None = None,
    resolve: Resolve = no_engine,
) -> Trial:
    """Runs policies over a recording: its reads with the seconds at which they came."""
    context = context or ExchangeContext(model=request.model if request is not None else "")
    now = 0.0
    stage = policy_stage(policies, clock=lambda: now)(context)
    if request is not None and isinstance(stage, PolicyStage):
        stage.check_request(request, resolve)
    steps: list[TrialStep] = []
    ended = False
    for now, events in reads:  # the stage reads this variable as its clock
        if not isinstance(stage, PolicyStage):
            steps.append(TrialStep(now, events, events, ""))
            continue
        left = settled(stage, stage.feed(events), resolve) if events and not ended else []
        ended = ended or (bool(left) and isinstance(left[-1], (StreamEnd, StreamError)))
        held = "" if ended else "".join(text for texts in stage.held.values() for text in texts)
        steps.append(TrialStep(now, events, left, held))
    return Trial(steps, list(_holds(steps)), context.annotations.get(SUBJECT, []))


def _holds(steps: list[TrialStep]) -> Iterator[Hold]:
    since, longest = 0.0, ""
    for step in steps:
        if step.held and not longest:
            since = step.at
        if step.held:
            longest = max(longest, step.held, key=len)
        elif longest:
            yield Hold(since, step.at - since, longest)
            longest = ""


def side_by_side(trial: Trial, width: int = 100) -> Iterator[str]:
    """The trial as lines of two columns: the received and the released text of each read, with a mark after the held text."""
    column = max(20, (width - 12) // 2)
    yield f"{'seconds':>8}  {'before':<{column}}  after"
    for step in trial.steps:
        if not step.fed and not step.left:
            continue
        before, after = [list(_shown(events)) for events in (step.fed, step.left)]
        if step.held:
            after.append(f"… {len(step.held)} held: {step.held!r}")
        for row in range(max(len(before), len(after), 1)):
            left = before[row] if row < len(before) else ""
            right = after[row] if row < len(after) else ""
            time = f"{step.at:8.2f}" if row == 0 else " " * 8
            yield f"{time}  {_fitted(left, column):<{column}}  {_fitted(right, column)}".rstrip()


def summary(trial: Trial) -> Iterator[str]:
    """Summarises what was held and what was decided."""
    if trial.holds:
        longest = max(trial.holds, key=lambda hold: hold.seconds)
        max_chars = max(len(hold.text) for hold in trial.holds)
        yield f"held {len(trial.holds)} times, at most {max_chars} characters, at most {longest.seconds:.2f} s"
    else:
        yield "nothing was held"
    for fact in trial.verdicts:
        what = " ".join(str(fact[name]) for name in ("kind", "tool", "pattern") if fact.get(name))
        times = f" ({fact['count']} times)" if fact.get("count", 1) > 1 else ""
        reason = f": {fact['reason']}" if fact.get("reason") else ""
        would = "would " if fact.get("dry_run") else ""
        yield f"{fact['policy']}: {would}{fact['verdict']} {what}{times}{reason}"
    if not trial.verdicts:
        yield "no policy gave a verdict"


def _fitted(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _shown(events: list[Event]) -> Iterator[str]:
    """One line for each run of deltas and for each other event."""
    pieces: list[str] = []
    mark = ""
    for event in events:
        prefix = ""
        if isinstance(event, Choice):
            prefix, event = f"[{event.index}] ", event.event
        match event:
            case TextDelta(text=text):
                new = f"{prefix}text"
            case ReasoningDelta(text=text):
                new = f"{prefix}reasoning"
            case ToolCallDelta(args=text):
                new = f"{prefix}arguments"
            case _:
                new, text = "", ""
        if pieces and new != mark:
            yield f"{mark} {''.join(pieces)!r}"
            pieces.clear()
        mark = new
        if new:
            pieces.append(text)
            continue
        match event:
            case StreamStart():
                yield "start"
            case ToolCallStart(name=name):
                yield f"{prefix}call of {name}"
            case ToolResult(content=content):
                yield f"{prefix}result {content!r}"
            case StreamEnd(reason=reason):
                yield f"{prefix}end: {reason}"
            case StreamError(message=message):
                yield f"error: {message}"
    if pieces:
        yield f"{mark} {''.join(pieces)!r}"
