"""An MCP server of the older protocol, without the SDK: a handshake, pages with an empty cursor, pushed notifications."""

from __future__ import annotations

import json
import sys
from typing import Any

VERSION = "2025-06-18"


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


tools = [tool("echo"), tool("grow")]
started = False
for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked["method"], asked.get("params") or {}
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        server = {"name": "legacy", "version": "1"}
        send(id=asked["id"], result={"protocolVersion": VERSION, "capabilities": capabilities, "serverInfo": server})
    elif method == "notifications/initialized":
        started = True
    elif not started or method not in ("tools/list", "tools/call"):
        if "id" in asked:
            send(id=asked["id"], error={"code": -32601, "message": "there is no such method"})
    elif method == "tools/list":  # one tool a page; the cursor of the second page is empty
        page = 0 if "cursor" not in params else 1 + len(params["cursor"])
        more = {"nextCursor": "x" * page} if page + 1 < len(tools) else {}
        send(id=asked["id"], result={"tools": [tools[page]], **more})
    elif params["name"] == "grow":
        tools.append(tool("grown"))
        send(method="notifications/tools/list_changed")
        send(id=asked["id"], result={"content": [{"type": "text", "text": "done"}]})
    else:
        text = params["arguments"].get("text", "")
        send(id=asked["id"], result={"content": [{"type": "text", "text": text}], "isError": not text})
