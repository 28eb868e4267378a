"""Policies for tests of a running gateway: what they decide is set by the test, by the name of the tool.

The gateway runs in a thread of the test's own process, so a configuration can name these classes and a test can steer them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streamglot.policies import Needs, Piece, Policy, block, refuse
from streamglot.policies.policy import Engine, JudgeContext
from streamglot.policies.verdicts import DEFER, FORWARD, Defer, Verdict
from waiting import soon

REFUSAL = " No."


class Scripted:
    """``verdicts`` by tool; the others are forwarded. An exception is raised. ``held`` are the tools whose judge waits until
    ``release`` is set. ``asked`` are the tools that were judged, ``cancelled`` those whose judge was given up."""

    verdicts: dict[str, Verdict | Exception] = {}
    held: frozenset[str] = frozenset()
    release = threading.Event()
    asked: list[str] = []
    cancelled: list[str] = []


@contextmanager
def judged(verdicts: dict[str, Verdict | Exception] | None = None, *, held: tuple[str, ...] = ()) -> Iterator[type[Scripted]]:
    """Decides like this while it is open."""
    Scripted.verdicts, Scripted.held = verdicts or {}, frozenset(held)
    Scripted.release = threading.Event()
    Scripted.asked, Scripted.cancelled = [], []
    try:
        yield Scripted
    finally:
        Scripted.release.set()
        Scripted.verdicts, Scripted.held = {}, frozenset()


class ScriptedJudge(Policy, frozen=True):
    """Judges whole tool calls as ``Scripted`` says."""

    def needs(self) -> Needs:
        return block("tool_call")

    def judge(self, piece: Piece, context: JudgeContext) -> Defer:
        return DEFER

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        Scripted.asked.append(piece.name)
        try:
            if piece.name in Scripted.held:
                await soon(Scripted.release.is_set)
        except asyncio.CancelledError:
            Scripted.cancelled.append(piece.name)
            raise
        verdict = Scripted.verdicts.get(piece.name, FORWARD)
        if isinstance(verdict, Exception):
            raise verdict
        return verdict


class SilentJudge(Policy, frozen=True, kw_only=True):
    """Never answers about ``tool``; calls of other tools are forwarded at once."""

    tool: str
    seconds: float = 0.05

    def needs(self) -> Needs:
        return block("tool_call")

    def judge(self, piece: Piece, context: JudgeContext) -> Verdict | Defer:
        return DEFER if piece.name == self.tool else FORWARD

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        await asyncio.Event().wait()
        return refuse("")


SCRIPTED = {"use": "gateway.judges:ScriptedJudge", "seconds": 600.0}
