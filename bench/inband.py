"""How fast is the in-band parser, and does its cost grow with the length only?

    python -m bench.inband

Arguments of 1 KB, 100 KB and 1 MB in 4-character pieces, for a JSON and for an XML notation, and plain text; the
exponent compares the time for 1 MB with that for 100 KB (1 is linear, 2 is quadratic).
"""

from __future__ import annotations

import math
import sys
import time
import tracemalloc

from streamglot.events import TextDelta
from streamglot.inband import inband

TOOLS = [{"name": "write", "parameters": {"type": "object", "properties": {"content": {"type": "string"}}}}]
WORDS = "The quick brown fox jumps over the lazy dog, and then it sleeps until noon. "
NOTATIONS = {
    "hermes": ('<tool_call>\n{"name": "write", "arguments": {"content": "', '"}}\n</tool_call>'),
    "qwen3_coder": ("<tool_call>\n<function=write>\n<parameter=content>\n", "\n</parameter>\n</function>\n</tool_call>"),
    "lfm2": ('<|tool_call_start|>[write(content="', '")]<|tool_call_end|>'),
    "glm4x": ("<tool_call>write<arg_key>content</arg_key><arg_value>", "</arg_value></tool_call>"),
    "gemma4": ('<|tool_call>call:write{content:<|"|>', '<|"|>}<tool_call|>'),
}
SIZES = (1_000, 100_000, 1_000_000)


def pieces_of(text: str) -> list[TextDelta]:
    return [TextDelta(text[start : start + 4]) for start in range(0, len(text), 4)]


def seconds(format: str, text: str) -> tuple[float, int]:
    """The best of three runs, and the number of pieces."""
    pieces = pieces_of(text)
    best = math.inf
    for _ in range(3):
        box = inband(format, TOOLS, starts_in_reasoning=False)
        feed = box.feed
        start = time.process_time()
        for piece in pieces:
            feed(piece)
        box.close()
        best = min(best, time.process_time() - start)
    return best, len(pieces)


def memory() -> int:
    """Bytes that remain after 100 MB of plain text."""
    box = inband("hermes", TOOLS)
    piece = TextDelta(WORDS * 13)
    tracemalloc.start()
    for _ in range(100_000):
        box.feed(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def main() -> int:
    good = True
    text = WORDS * (1_000_000 // len(WORDS))
    for format in ("hermes", "qwen3_coder", "llama3_json", "tool_tags"):
        taken, count = seconds(format, text)
        good &= count / taken >= 200_000
        print(f"{format:14} plain text       {count / taken:10,.0f} pieces/s")
    for format, (before, after) in NOTATIONS.items():
        times = {}
        for size in SIZES:
            body = (WORDS * (size // len(WORDS) + 1))[:size]
            times[size], count = seconds(format, before + body + after)
            print(f"{format:14} {size:9,} chars  {count / times[size]:10,.0f} pieces/s")
        exponent = math.log(times[SIZES[2]] / times[SIZES[1]], SIZES[2] / SIZES[1])
        good &= exponent < 1.1 and count / times[SIZES[2]] >= 100_000
        print(f"{format:14} exponent         {exponent:10.3f}")
    peak = memory()
    good &= peak < 1_000_000
    print(f"memory peak over 100 MB of plain text: {peak:,} bytes")
    print("good" if good else "BELOW THE LINE")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
