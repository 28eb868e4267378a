"""Transforms events into events, and collects them into an answer. Pure."""

from .call_ids import UniqueCallIds
from .collect import Collect, collect
from .json_fragments import JsonFragments
from .per_choice import PerChoice
from .replay import replay
from .sentences import SentenceBuffer
from .snapshot import ChoiceSnapshot, Snapshot
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
