"""Ollama's own API: /api/chat and /api/generate, one JSON object a line."""
