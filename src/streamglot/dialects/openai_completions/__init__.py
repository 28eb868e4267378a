"""OpenAI's text completions, the older API: one prompt in, one text out. Base models and old clients still speak it."""
