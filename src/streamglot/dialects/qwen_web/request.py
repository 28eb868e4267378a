"""Builds requests for the web chat. Only upstreams use this dialect, so there is no parser.

The upstream keeps the conversation: a request sends the newest turn and names the message that it follows. If no such message is
known (a new chat, or lost state), the whole conversation is written into one message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...errors import Unsupported
from ...json_types import JsonObject, JsonValue
from ...messages import (
    Built,
    Message,
    ReasoningPart,
    RefusalPart,
    Request,
    TextPart,
    ToolCallPart,
    ToolChoice,
    ToolResultPart,
    ToolSpec,
)
from ..parameters import give, give_extra
from ..writer import encode

DIALECT: Final = "qwen_web"
PARAMETERS: Final[dict[str, str]] = {}
"""The web chat accepts none of the shared parameters."""
_LABELS: Final = {"user": "User", "assistant": "Assistant", "tool": "User"}


def continued(state: Mapping[str, JsonValue], message_id: str, timestamp: int) -> JsonObject:
    """The options for ``build`` that continue a conversation; ``state`` is what its streams contained."""
    ids = {name: state.get(of) for name, of in (("chat_id", "chat_id"), ("parent_id", "response_id"))}
    return {"message_id": message_id, "timestamp": timestamp, **{name: value for name, value in ids.items() if value}}


def build(
    request: Request,
    *,
    provider: str = DIALECT,  # noqa: ARG001  # the upstream keeps its own state; nothing opaque is returned to it
    chat_id: str = "",
    parent_id: str | None = None,
    message_id: str = "",
    timestamp: int = 0,
    chat_mode: str = "normal",
    chat_type: str = "t2t",
    describe_tools: Callable[[list[ToolSpec]], str] | None = None,
) -> Built:
    """``chat_id`` is the chat; ``parent_id`` the answer that this turn follows (``response_id`` of its stream), None in a new
    chat. ``message_id`` and ``timestamp`` (seconds) belong to the new message. ``describe_tools`` writes the tools into the
    first turn, because the wire format has no field for them; the calls of the answer are in its text then, too."""
    built = Built({})
    content = _content(request, parent_id, describe_tools)
    message = {
        "fid": message_id,
        "parentId": parent_id,
        "parent_id": parent_id,
        "childrenIds": [],
        "role": "user",
        "content": content,
        "user_action": "chat",
        "files": [],
        "timestamp": timestamp,
        "models": [request.model],
        "chat_type": chat_type,
        "sub_chat_type": chat_type,
        "feature_config": {"thinking_enabled": _thinks(request, built), "output_schema": "phase"},
        "extra": {"meta": {"subChatType": chat_type}},
    }
    built.body.update(
        {
            "stream": request.stream,
            "incremental_output": True,
            "chat_id": chat_id,
            "chat_mode": chat_mode,
            "model": request.model,
            "parent_id": parent_id,
            "messages": [message],
            "timestamp": timestamp,
        }
    )
    if request.output is not None and request.output.kind != "text":
        raise Unsupported("the chosen upstream cannot guarantee JSON", detail={"param": "response_format"})
    if any(turn.name for turn in request.messages):
        built.dropped.append("messages.name")
    give(request, PARAMETERS, built)
    give_extra(request, DIALECT, built)
    return built


def build_chat(request: Request, *, title: str = "New Chat", timestamp: int = 0, chat_mode: str = "normal") -> JsonObject:
    """The body that creates a chat; the response has the chat's id. ``timestamp`` is in milliseconds here."""
    return {
        "title": title,
        "models": [request.model],
        "chat_mode": chat_mode,
        "chat_type": "t2t",
        "timestamp": timestamp,
    }


def _thinks(request: Request, built: Built) -> bool:
    reasoning = request.reasoning
    if reasoning is None:
        return False
    for name in ("effort", "budget_tokens", "summary"):
        if getattr(reasoning, name) not in (None, "none", 0):
            built.dropped.append(f"reasoning.{name}")
    if reasoning.enabled is not None:
        return reasoning.enabled
    return reasoning.effort not in (None, "none") or bool(reasoning.budget_tokens)


# --- the message


def _content(request: Request, parent_id: str | None, describe_tools: Callable[[list[ToolSpec]], str] | None) -> str:
    messages = request.messages
    tools = _tools(request, describe_tools)
    if parent_id is not None:
        newest = max((place for place, turn in enumerate(messages) if turn.role == "assistant"), default=-1)
        return "\n\n".join(text for text in (_text(turn) for turn in messages[newest + 1 :]) if text)
    system = [_text(turn) for turn in messages if turn.role in ("system", "developer")]
    turns = [turn for turn in messages if turn.role not in ("system", "developer")]
    if len(turns) == 1:
        texts = [_text(turns[0])]
    else:
        texts = [f"{_LABELS[turn.role]}: {_text(turn)}" for turn in turns]
    return "\n\n".join(text for text in (*system, tools, *texts) if text)


def _tools(request: Request, describe_tools: Callable[[list[ToolSpec]], str] | None) -> str:
    choice = request.tool_choice or ToolChoice()
    if not request.tools or choice.mode == "none":
        return ""
    if describe_tools is None:
        raise Unsupported(
            "the chosen upstream accepts tools in the text only, and no text for them is set", detail={"param": "tools"}
        )
    if choice.mode == "required" or choice.tools:
        raise Unsupported("the chosen upstream cannot be forced to call a tool", detail={"param": "tool_choice"})
    return describe_tools(request.tools)


def _text(message: Message) -> str:
    texts: list[str] = []
    for part in message.parts:
        match part:
            case TextPart() | RefusalPart():
                texts.append(part.text)
            case ToolCallPart(kind="server") | ReasoningPart():
                pass
            case ToolCallPart():
                call = b'{"name":%b,"arguments":%b}' % (encode(part.name), part.arguments.strip().encode() or b"{}")
                texts.append(f"<tool_call>\n{call.decode()}\n</tool_call>")
            case ToolResultPart() if all(isinstance(piece, TextPart) for piece in part.content):
                texts.append(f"<tool_response>\n{'Error: ' if part.is_error else ''}{part.text}\n</tool_response>")
            case _:
                raise Unsupported("the chosen upstream accepts text only: images and files need its own upload")
    return "\n".join(texts)
