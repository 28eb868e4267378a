"""Transforms events into events, and collects them into an answer. Pure."""

from .choices import PerChoice, UniqueCallIds
from .collect import ChoiceSnapshot, Collect, Snapshot, collect
from .json_fragments import JsonFragments
from .replay import replay
from .sentences import SentenceBuffer
from .stage import Stage
from .steps import messages_of

__all__ = [
    "ChoiceSnapshot",
    "Collect",
    "JsonFragments",
    "PerChoice",
    "SentenceBuffer",
    "Snapshot",
    "Stage",
    "UniqueCallIds",
    "collect",
    "messages_of",
    "replay",
]
