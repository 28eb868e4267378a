"""Events to events, and to what they add up to. Pure, like all above ``policies``."""

from .collect import Collect, collect
from .per_choice import PerChoice
from .replay import replay

__all__ = ["Collect", "PerChoice", "collect", "replay"]
