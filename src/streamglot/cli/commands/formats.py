"""``streamglot formats``: the notations in which models write calls and reasoning into their text."""

from __future__ import annotations

from ...inband import FORMATS, find_format, format_for_model


def run(name: str | None, model: str | None) -> int:
    if model is not None:
        found = format_for_model(model)
        print(f"{model}: {found.name if found else 'no format is known; its text is passed on unchanged'}")
        return 0
    if name is not None:
        print(find_format(name).example)
        return 0
    for row in FORMATS.usable():
        print(f"{row.name:24} {' '.join(row.example.split())}")
    return 0
