"""One case for a whole table, where a case for each row would cost more than the row."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any


def each(**values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs the test for each combination of these values. All of them run; a failure names those that failed."""
    columns = {name: list(column) for name, column in values.items()}
    assert all(columns.values()), "a table is empty"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def table(**fixtures: Any) -> None:
            failures: list[tuple[dict[str, Any], Exception]] = []
            for row in product(*columns.values()):
                given = dict(zip(columns, row, strict=True))
                try:
                    test(**given, **fixtures)
                except Exception as error:  # the other rows run as well
                    failures.append((given, error))
            if failures:
                first = failures[0][1]
                for failed, why in failures[:20]:
                    first.add_note(f"failed with {failed!r:.200}: {str(why).partition(chr(10))[0]:.200}")
                raise first

        signature = inspect.signature(test)
        fixtures = [one for name, one in signature.parameters.items() if name not in columns]
        table.__signature__ = signature.replace(parameters=fixtures)  # type: ignore[attr-defined]  # what pytest reads fixtures from
        return table

    return decorate
