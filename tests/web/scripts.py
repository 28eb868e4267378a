"""The answers of the scripted upstream for the page."""

from __future__ import annotations

import re
from typing import Any

from gateway.upstream import Pause, Script, Step, sse, streamed, whole

THOUGHT = (
    "The user wants to know how a circuit breaker works. I should name the three states, give a small table, and show code "
    "that is short enough to read.\n\nThe half-open state is the part that people get wrong: only one request may try."
)
TEXT = """A **circuit breaker** stops asking an upstream that keeps failing, so that requests do not pile up behind it.

It has three states:

| State | What happens | Leaves when |
|---|---|---|
| closed | requests pass | 5 failures in a row |
| open | requests are refused at once | 20 s have passed |
| half open | one request tries | it succeeds, or fails |

A minimal one in Python:

```python
class Breaker:
    def __init__(self, failures: int = 5, seconds: float = 20.0) -> None:
        self.failures, self.seconds = failures, seconds
        self._failed, self._opened = 0, 0.0

    def allows(self, now: float) -> bool:
        return self._failed < self.failures or now - self._opened >= self.seconds
```

1. Count *consecutive* failures, not a rate.
2. Let exactly **one** request through when the time is over.
3. Tell the client when to come back: `retry-after`.
"""


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return sse({"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [choice]})


def ending(reason: str = "stop", tokens: int = 402) -> bytes:
    usage = {"prompt_tokens": 31, "completion_tokens": tokens, "total_tokens": 31 + tokens}
    last = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "choices": [], "usage": usage}
    return chunk({}, reason) + sse(last) + sse("[DONE]")


def words(text: str, field: str = "content") -> list[bytes]:
    return [chunk({field: word}) for word in re.findall(r"\s*\S+|\s+$", text)]


def paced(steps: list[bytes], seconds: float) -> list[Step]:
    """A pause behind each step. Pictures need it, tests wait for conditions."""
    return [one for step in steps for one in (step, Pause(seconds))]


def answer(text: str = TEXT, thought: str = THOUGHT, pause: float = 0.0) -> Script:
    steps = words(thought, "reasoning_content") + words(text)
    return streamed(*(paced(steps, pause) if pause else steps), ending())


def text_script(*pieces: str | Step) -> Script:
    """Texts, each a chunk, and steps of a script between them."""
    return streamed(*(chunk({"content": one}) if isinstance(one, str) else one for one in pieces), ending(tokens=len(pieces)))


def calling(name: str, *arguments: str, id: str = "call_1", text: str = "") -> Script:
    """A call whose arguments come in these pieces."""
    first = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
    steps = [chunk({"content": text})] if text else []
    steps.append(chunk({"tool_calls": [first]}))
    steps += [chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in arguments]
    return streamed(*steps, ending("tool_calls", 12))


OVERLOADED = whole({"error": {"message": "The engine is overloaded, try again later", "code": "overloaded"}}, 503)
