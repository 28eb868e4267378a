"""A judge of text for a running gateway: it holds each block of text until the test releases it."""

from __future__ import annotations

import threading

from streamglot.policies import Needs, Piece, Policy, block, refuse
from streamglot.policies.policy import Engine, JudgeContext
from streamglot.policies.verdicts import DEFER, FORWARD, Defer, Verdict
from waiting import soon

RELEASE = threading.Event()
REFUSED = "[refused]"


class TextJudge(Policy, frozen=True):
    """Refuses a text with the word "forbidden"."""

    def needs(self) -> Needs:
        return block("text")

    def judge(self, piece: Piece, context: JudgeContext) -> Defer:
        return DEFER

    async def decide(self, piece: Piece, context: JudgeContext, engine: Engine) -> Verdict:
        await soon(RELEASE.is_set)
        return refuse(REFUSED) if "forbidden" in piece.text else FORWARD
