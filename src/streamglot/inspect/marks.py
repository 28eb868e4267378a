"""A table of byte patterns in the first lines of a stream that show its dialect."""

from __future__ import annotations

from typing import Final

EVENTS: Final = "events"
"""The name of streamglot's events (one JSON object per line), wherever a dialect can be named."""
ANY: Final = "openai_chat"
"""The dialect of an empty stream. Every reader reports the same error for it."""
MARKS: Final = (
    (b'"type":"stream_start"', EVENTS),
    (b'"response.created":{', "qwen_web"),
    (b"event:message_start", "anthropic"),
    (b'"type":"message_start"', "anthropic"),
    (b"event:response.", "openai_responses"),
    (b'"type":"response.', "openai_responses"),
    (b'"object":"response"', "openai_responses"),
    (b'"type":"message"', "anthropic"),
    (b"chat.completion", "openai_chat"),
    (b"text_completion", "openai_completions"),
    (b'"candidates":', "gemini"),
    (b'"promptFeedback":', "gemini"),
    (b'"usageMetadata":', "gemini"),
    (b'"type":"message-start"', "cohere"),
    (b'"type":"content-', "cohere"),
    (b'"messageStart":{', "bedrock_converse"),
    (b":event-type\x07\x00\x05chunk", "bedrock_invoke"),
    (b":event-type", "bedrock_converse"),
    (b":exception-type", "bedrock_converse"),
    (b'"done":', "ollama"),
    (b'"choices":', "openai_chat"),
)
"""Patterns that show a dialect, the most specific first. Spaces after colons are removed before the search."""
CLIENT_MARKS: Final = (
    (b'"type":"RUN_STARTED"', "agui"),
    (b'"type":"TEXT_MESSAGE_', "agui"),
    (b'"type":"text-delta"', "vercel_ui"),
    (b'"type":"start-step"', "vercel_ui"),
)
"""Patterns of dialects that only clients read."""
CLIENT_DIALECTS: Final = frozenset(name for _, name in CLIENT_MARKS)
