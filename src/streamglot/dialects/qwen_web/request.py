"""Builds requests for the web chat. Only upstreams use this dialect, so there is no parser.

The upstream keeps the conversation: a request sends the newest turn and names the message that it follows. If no such message is
known (a new chat, or lost state), the whole conversation is written into one message.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from msgspec import structs

from ...errors import RequestError, Unsupported, UpstreamProtocolError, excerpt
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
from ..common import upstream_errors
from ..common.fields import give, give_extra
from ..common.lenient import fit
from ..common.writer import encode
from .wire import Chat, refused

DIALECT: Final = "qwen_web"
PARAMETERS: Final[dict[str, str]] = {}
"""The web chat accepts none of the shared parameters."""
OWN: Final = frozenset(("chat_id",))
"""Fields of a client's body that this upstream understands, whatever the client's dialect."""
MARK_BYTES: Final = 8
"""Of a hash of the instructions: enough to see that they changed."""
_SYSTEM: Final = ("system", "developer")
_LABELS: Final = {"user": "User", "assistant": "Assistant", "tool": "User"}


def chat_of(request: Request, chat_id: JsonValue = "") -> str:
    """The chat of a request: the one that its client names, else this one."""
    named = request.extra.get("chat_id")
    if named is not None and not (isinstance(named, str) and named):
        raise RequestError("chat_id must be the id of a chat, as text; correct it, or leave it out for a new chat")
    return named or (chat_id if isinstance(chat_id, str) else "")


def continuation(request: Request, provider: str, message_id: str, timestamp: int) -> JsonObject:
    """The options for ``build`` that continue the conversation: the ids are in the echo of the newest answer, if this upstream
    gave it. An answer in another chat than the client's is not continued."""
    options: JsonObject = {"message_id": message_id, "timestamp": timestamp}
    newest = next((turn for turn in reversed(request.messages) if turn.role == "assistant"), None)
    if newest is None or newest.echo is None or newest.echo.provider != provider:
        return options
    state = newest.echo.data
    if chat_of(request, state.get("chat_id")) != state.get("chat_id"):
        return options
    known = (("chat_id", "chat_id"), ("parent_id", "response_id"))
    ids = {name: value for name, of in known if (value := state.get(of))}
    return {**options, **ids, "instructions": state.get("instructions") or ""}


def read_chat(body: JsonValue) -> JsonObject:
    """The options that name a new chat, from the answer to the request for it."""
    answer: Chat = fit(Chat, body if isinstance(body, dict) else {})
    if upstream_errors.is_error(answer.error):
        raise upstream_errors.refusal(answer.error)
    if answer.success is False:
        raise refused(answer.data)
    data = answer.data if isinstance(answer.data, dict) else {}
    for found in (data.get("id"), data.get("chat_id"), answer.id, answer.chat_id):
        if isinstance(found, str) and found:
            return {"chat_id": found}
    raise UpstreamProtocolError(f"its answer names no chat: {excerpt(body)}")


def build(
    request: Request,
    *,
    chat_id: str = "",
    parent_id: str | None = None,
    instructions: str | None = None,
    message_id: str = "",
    timestamp: int = 0,
    chat_mode: str = "normal",
    chat_type: str = "t2t",
    describe_tools: Callable[[list[ToolSpec]], str] | None = None,
) -> Built:
    """``chat_id`` is the chat, if the client names none; ``parent_id`` the answer that this turn follows (``response_id`` of its
    stream), None in a new chat. ``instructions`` is the mark of the instructions that the chat has; changed ones are sent again. ``message_id`` and ``timestamp`` (seconds) belong to the new message. ``describe_tools`` writes the tools into the
    first turn, because the wire format has no field for them; the calls of the answer are in its text then, too."""
    chat_id = chat_of(request, chat_id)
    told = _instructions(request, describe_tools)
    mark = hashlib.blake2b(told.encode("utf-8", "replace"), digest_size=MARK_BYTES).hexdigest() if told else ""
    built = Built({}, state={"chat_id": chat_id, "instructions": mark} if chat_id else {})
    if parent_id is not None and instructions in (None, mark):
        told = ""
    content = _content(request, parent_id, told)
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
    rest = {name: value for name, value in request.extra.items() if name not in OWN}
    give_extra(structs.replace(request, extra=rest), DIALECT, built)
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


def _instructions(request: Request, describe_tools: Callable[[list[ToolSpec]], str] | None) -> str:
    system = [_text(turn) for turn in request.messages if turn.role in _SYSTEM]
    return "\n\n".join(filter(None, (*system, _tools(request, describe_tools))))


def _content(request: Request, parent_id: str | None, instructions: str) -> str:
    turns = [turn for turn in request.messages if turn.role not in _SYSTEM]
    if parent_id is not None:
        newest = max((place for place, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
        turns = turns[newest + 1 :]
    if parent_id is not None or len(turns) == 1:
        texts = [_text(turn) for turn in turns]
    else:
        texts = [f"{_LABELS[turn.role]}: {_text(turn)}" for turn in turns]
    return "\n\n".join(filter(None, (instructions, *texts)))


def _tools(request: Request, describe_tools: Callable[[list[ToolSpec]], str] | None) -> str:
    choice = request.tool_choice or ToolChoice()
    if not request.tools or choice.mode == "none":
        return ""
    if describe_tools is None:
        raise Unsupported(
            "the chosen upstream accepts tools in the text only, and no notation for them is set: name one as `inband` of this "
            "upstream (`streamglot formats` lists them), or pass describe_tools",
            detail={"param": "tools"},
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
