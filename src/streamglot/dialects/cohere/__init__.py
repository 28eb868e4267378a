"""Cohere chat, version 2 of its API."""
