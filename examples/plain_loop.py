"""A loop that must not wait, such as that of a game: it draws a frame and takes the new part of the answer.

python examples/plain_loop.py Why is the sky blue?
"""

import sys
import time

import streamglot


def main() -> None:
    words = sys.argv[1:]
    model = words.pop(1) if words[:1] == ["--model"] else ""
    running = streamglot.run_in_thread(model=model, messages=" ".join(words[1:] if model else words) or "Say hello.")
    frames = 0
    while not running.finished:
        frames += 1  # here the program does its other work
        for event in running.drain():
            match event:
                case streamglot.TextDelta(text=text):
                    print(text, end="", flush=True)
                case streamglot.StreamError(message=message):
                    print(f"\nerror: {message}", file=sys.stderr)
        time.sleep(1 / 60)
    print(f"\n({frames} frames were drawn meanwhile)")


if __name__ == "__main__":
    main()
