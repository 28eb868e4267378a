"""Events to events, and to the answer that they add up to. Pure."""

from .collect import Collect, collect
from .per_choice import PerChoice
from .replay import replay
from .snapshot import ChoiceSnapshot, Snapshot
from .steps import messages_of

__all__ = ["ChoiceSnapshot", "Collect", "PerChoice", "Snapshot", "collect", "messages_of", "replay"]
