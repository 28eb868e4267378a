"""The pure core: time per chunk, how it grows, and the official clients in the same run. ``python -m bench.core``."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

import streamglot

from . import streams


def seconds(run: Callable[[], object], repeats: int = 3) -> float:
    """CPU seconds of the best of a few runs."""
    best = math.inf
    for _ in range(repeats):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return best


def read(dialect: str, frames: Iterable[bytes]) -> int:
    reader = streamglot.reader(dialect)
    count = 0
    for frame in frames:
        count += len(reader.feed(frame))
    return count + len(reader.close())


def gather(dialect: str, frames: Iterable[bytes]) -> streamglot.Response:
    reader = streamglot.reader(dialect)
    return streamglot.collect(event for frame in [*frames, None] for event in (reader.feed(frame) if frame else reader.close()))


def pass_on(source: str, target: str, frames: Iterable[bytes]) -> int:
    return sum(len(piece) for piece in streamglot.translate(frames, source, target))


def growth() -> None:
    print("growth: seconds for n and 10 n; the exponent is 1.0 where time per chunk does not grow")
    cases: list[tuple[str, Callable[[int], list[bytes]], int, int]] = [
        ("text, read", streams.chat_text, 20_000, 200_000),
        ("tool arguments, read", streams.chat_call, 20_000, 200_000),
        ("parallel calls, one after another", streams.chat_parallel, 200, 2_000),
        ("parallel calls, interleaved", lambda calls: streams.chat_parallel(calls, interleaved=True), 200, 2_000),
        ("one call of 1 MB and 10 MB in 40-byte pieces", lambda size: streams.chat_call(size // 40, 40), 10**6, 10**7),
    ]
    for name, make, small, large in cases:
        few, many = make(small), make(large)
        once, again = seconds(partial(read, "openai_chat", few)), seconds(partial(read, "openai_chat", many), 1)
        exponent = math.log(again / once) / math.log(len(many) / len(few))
        print(f"  {name:46} {once:8.3f} {again:8.3f}  {again / len(many) * 1e6:6.2f} µs/chunk  exponent {exponent:.3f}")


def against_clients(chunks: int = 20_000) -> None:
    import anthropic
    import openai
    from anthropic._models import construct_type as construct
    from anthropic.lib.streaming._messages import accumulate_event
    from openai._models import construct_type
    from openai.lib.streaming.chat import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    print(f"ratios to the official clients at {chunks} chunks (openai {openai.__version__}, anthropic {anthropic.__version__})")

    def official_chat(frames: list[bytes]) -> None:
        state = ChatCompletionStreamState()
        for frame in frames[:-1]:
            chunk = construct_type(type_=ChatCompletionChunk, value=json.loads(frame[6:]))
            state.handle_chunk(cast(ChatCompletionChunk, chunk))

    for name, frames in (("chat text", streams.chat_text(chunks)), ("chat tool arguments", streams.chat_call(chunks))):
        ours, theirs = seconds(partial(read, "openai_chat", frames)), seconds(partial(official_chat, frames), 1)
        print(
            f"  {name + ' to events':46} {chunks / ours:10,.0f} chunks/s, official {chunks / theirs:8,.0f}: {theirs / ours:6.1f} times"
        )

    def official_anthropic(frames: list[bytes]) -> None:
        snapshot: Any = None
        buffers: dict[int, bytes] = {}
        for frame in frames:
            event = construct(type_=anthropic.types.RawMessageStreamEvent, value=json.loads(frame.split(b"data: ", 1)[1]))
            snapshot = accumulate_event(event=cast(Any, event), current_snapshot=snapshot, json_bufs=buffers)

    frames = streams.anthropic_call(chunks)
    ours, theirs = seconds(lambda: gather("anthropic", frames)), seconds(lambda: official_anthropic(frames), 1)
    print(
        f"  {'anthropic tool input, collected':46} {chunks / ours:10,.0f} chunks/s, official {chunks / theirs:8,.0f}: {theirs / ours:6.1f} times"
    )


def translating(chunks: int = 200_000) -> None:
    print(f"from bytes to bytes, {chunks} chunks, one frame a read")
    for target in ("openai_chat", "anthropic", "openai_responses"):
        for name, frames in (("text", streams.chat_text(chunks)), ("tool arguments", streams.chat_call(chunks))):
            spent = seconds(partial(pass_on, "openai_chat", target, frames))
            print(
                f"  openai_chat to {target:18} {name:16} {chunks / spent:10,.0f} chunks/s  {spent / chunks * 1e6:5.2f} µs/chunk"
            )


if __name__ == "__main__":
    translating()
    growth()
    against_clients()
