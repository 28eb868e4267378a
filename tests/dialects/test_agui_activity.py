"""Runs of tools as activity events."""

from __future__ import annotations

import json
from typing import Any

from streamglot import writer
from streamglot.events import Extra, StreamEnd, StreamStart


def written(*chunks: dict[str, Any]) -> list[dict[str, Any]]:
    box = writer("agui", thread_id="t", run_id="r")
    extras = [Extra("agui", {"extensions": {"tool_call_chunks": [chunk]}}) for chunk in chunks]
    data = box.feed([StreamStart(), *extras, StreamEnd("end")]) + box.close()
    events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]
    return [event for event in events if event["type"].startswith("ACTIVITY_")]


def test_a_run_is_a_snapshot_and_patches() -> None:
    start = {"type": "start", "tool_call_id": "c", "tool_name": "weather"}
    args = {"type": "args", "tool_call_id": "c", "delta": "{}"}
    end = {"type": "end", "tool_call_id": "c"}
    for failed, status in (({}, "done"), ({"is_error": True}, "failed")):
        result = {"type": "result", "tool_call_id": "c", "content": "x", **failed}
        snapshot, arguments, delta = written(start, args, end, result)
        assert arguments["patch"] == [{"op": "add", "path": "/arguments", "value": "{}"}]
        assert (snapshot["type"], snapshot["content"]["status"]) == ("ACTIVITY_SNAPSHOT", "running")
        assert (delta["type"], delta["patch"][0]["value"]) == ("ACTIVITY_DELTA", status)
        assert snapshot["messageId"] == delta["messageId"] == "activity-c"
