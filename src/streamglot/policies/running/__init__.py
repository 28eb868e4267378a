"""Runs policies over the events of an exchange. ``stage`` is the entry point.

``stage`` has a chain for each choice; a chain has a filter for each policy (``filter``, for blocks and for answers as a whole);
a filter has its pieces judged (``judging``) and gives them to its ``release``, which puts events out in order. ``requests`` does
the same for a request.
"""
