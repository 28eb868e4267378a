"""Runs policies over the events of an exchange. ``stage.py`` is the entry point.

``stage`` has one ``chain`` for each choice; a chain has a filter for each policy (``filter`` for pieces and blocks,
``whole_answer`` for answers as a whole); a filter has its pieces judged (``judging``) and gives them to its ``release``, which
puts events out in order. ``requests`` does the same for a request."""
