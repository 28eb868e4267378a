"""Policies: judge and change a live stream, in every dialect, without stopping it.

    from streamglot.policies import Policy, block, load_policies, policy_stage, refuse

A policy declares what it must see at once (``delta``, ``pattern``, ``sentence``, ``block``, ``answer``, ``request``) and gives
a verdict on each piece (``forward``, ``rewrite``, ``replace``, ``refuse``, ``ask``, ``end``, ``retry``). ``policy_stage`` makes
the stage that the engine runs; ``apply_policies`` runs policies over events without I/O. docs/policies.md is the guide."""

from ..patterns.scanner import Pattern, PatternSet
from .apply import PolicyBox, apply_policies, apply_to_request, run_policies
from .approvals import ApprovalRequest, Approvals, ApprovalSharing, Decision
from .callbacks import Callbacks
from .load import find_policy, load_policies, load_policy
from .needs import Need, Needs, answer, block, delta, hold_back, pattern, request, sentence
from .pieces import Piece
from .policy import Engine, JudgeContext, Options, Policy, When
from .running.judging import Approval, ConcurrentQuestions, Judgement
from .running.members import prepare
from .running.stage import PolicyStage, policy_stage
from .verdicts import (
    DEFER,
    FORWARD,
    Ask,
    Defer,
    End,
    Forward,
    Refuse,
    Replace,
    Retry,
    Rewrite,
    Verdict,
    ask,
    end,
    forward,
    refuse,
    replace,
    retry,
    rewrite,
)

__all__ = [
    "DEFER",
    "FORWARD",
    "Approval",
    "ApprovalRequest",
    "ApprovalSharing",
    "Approvals",
    "Ask",
    "Callbacks",
    "ConcurrentQuestions",
    "Decision",
    "Defer",
    "End",
    "Engine",
    "Forward",
    "JudgeContext",
    "Judgement",
    "Need",
    "Needs",
    "Options",
    "Pattern",
    "PatternSet",
    "Piece",
    "Policy",
    "PolicyBox",
    "PolicyStage",
    "Refuse",
    "Replace",
    "Retry",
    "Rewrite",
    "Verdict",
    "When",
    "answer",
    "apply_policies",
    "apply_to_request",
    "ask",
    "block",
    "delta",
    "end",
    "find_policy",
    "forward",
    "hold_back",
    "load_policies",
    "load_policy",
    "pattern",
    "policy_stage",
    "prepare",
    "refuse",
    "replace",
    "request",
    "retry",
    "rewrite",
    "run_policies",
    "sentence",
]
