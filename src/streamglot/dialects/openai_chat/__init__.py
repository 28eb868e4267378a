"""OpenAI's chat completions, and everything that calls itself compatible with them."""
