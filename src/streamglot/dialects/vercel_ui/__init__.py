"""The UI message stream (v1) of the Vercel AI SDK. Clients speak it, no upstream does: it is written, its requests read."""
