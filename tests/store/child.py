"""A process that runs turns until it is killed: ``python -m store.child URL``. It prints what its clients have seen, and how many
starts and endings of turns the database has."""

from __future__ import annotations

import asyncio
import random
import sys

from store.turns import answer, ask, begin, user
from streamglot.store import Finished, Store, StoreSettings

STREAMS = 200


def print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def stream(store: Store, number: int) -> None:
    """Runs turns one after the other. A quarter of the streams hang in their third turn; the others run until the process is
    killed."""
    source = random.Random(number)
    step = 0
    while True:
        step += 1
        turn = await begin(store, ask(user(f"stream {number} step {step}")), name=f"s{number}")
        print_line(f"started {turn.id}")
        if number % 4 == 0 and step == 3:
            print_line(f"hangs {turn.id}")
            await asyncio.sleep(3600)
        await asyncio.sleep(source.uniform(0.05, 0.8))
        turn.finish(Finished(ending="end", response=answer(f"answer {number} {step} " * 20)))
        print_line(f"ended {turn.id}")


async def print_written(store: Store) -> None:
    """The writer commits in the order in which turns begin and end."""
    while True:
        written = store.report().written
        print_line(f"written {written.get('starts', 0)} {written.get('endings', 0)}")
        await asyncio.sleep(0.05)


async def main() -> None:
    store = await Store.open(StoreSettings(url=sys.argv[1]))
    await asyncio.gather(print_written(store), *(stream(store, number) for number in range(STREAMS)))


if __name__ == "__main__":
    asyncio.run(main())
