"""Anthropic's messages, in both generations of its API, and everything that calls itself compatible with them."""
