"""OpenAI responses: typed items with a lifecycle of their own, over server-sent events."""
