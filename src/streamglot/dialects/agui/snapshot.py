"""The messages of a run as the client stores them, for a MESSAGES_SNAPSHOT."""

from __future__ import annotations

from collections.abc import Iterable

from ...json_types import JsonObject


class MessageList:
    """Applies the events as the client does. ``history`` are the messages that the client sent, in its own form: a snapshot
    replaces everything that it stores."""

    def __init__(self, history: Iterable[JsonObject]) -> None:
        self.messages: list[JsonObject] = [_without_null(message) for message in history]
        self._by_id: dict[str, JsonObject] = {}
        self._calls: dict[str, tuple[JsonObject, JsonObject]] = {}
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Adds a delta to the open message."""
        self._pieces.append(piece)

    def apply(self, kind: str, fields: JsonObject) -> None:
        metadata: JsonObject = fields.get("metadata", {})
        match kind:
            case "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START":
                self._note(self._message(fields["messageId"], fields["role"], content=""), metadata)
            case "TEXT_MESSAGE_END" | "REASONING_MESSAGE_END":
                message = self._by_id[fields["messageId"]]
                message["content"] = self._joined()
                self._note(message, metadata)
            case "TOOL_CALL_START":
                parent = self._by_id.get(fields["parentMessageId"]) or self._message(fields["parentMessageId"], "assistant")
                function = {"name": fields["toolCallName"], "arguments": ""}
                call: JsonObject = {"id": fields["toolCallId"], "type": "function", "function": function}
                self._note(call, metadata)
                parent.setdefault("toolCalls", []).append(call)
                self._calls[call["id"]] = (call, parent)
            case "TOOL_CALL_END":
                call, _ = self._calls[fields["toolCallId"]]
                call["function"]["arguments"] = self._joined()
                self._note(call, metadata)
            case "TOOL_CALL_RESULT":
                result = {"id": fields["messageId"], "role": "tool", "toolCallId": fields["toolCallId"]}
                self._note(result, metadata)
                self.messages.insert(self._place_of_result(fields["toolCallId"]), {**result, "content": fields["content"]})
            case "REASONING_ENCRYPTED_VALUE":
                entity = fields["entityId"]
                sealed = self._calls[entity][0] if fields["subtype"] == "tool-call" else self._by_id[entity]
                sealed["encryptedValue"] = fields["encryptedValue"]

    def _message(self, message_id: str, role: str, **more: str) -> JsonObject:
        message: JsonObject = {"id": message_id, "role": role, **more}
        self.messages.append(message)
        self._by_id[message_id] = message
        return message

    def _note(self, entity: JsonObject, metadata: JsonObject) -> None:
        if metadata:
            entity["metadata"] = {**entity.get("metadata", {}), **metadata}

    def _place_of_result(self, call_id: str) -> int:
        """The place after the message with the call and its existing results, where the client puts it too."""
        if call_id not in self._calls:
            return len(self.messages)
        parent = self._calls[call_id][1]
        place = next(number for number, message in enumerate(self.messages) if message is parent) + 1
        while place < len(self.messages) and self.messages[place].get("role") == "tool":
            place += 1
        return place

    def _joined(self) -> str:
        text = "".join(self._pieces)
        self._pieces.clear()
        return text


def _without_null(message: JsonObject) -> JsonObject:
    """Optional fields are absent or have a value: the client rejects null."""
    return {name: value for name, value in message.items() if value is not None}
