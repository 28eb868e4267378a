"""The stream of Qwen's web chat: an upstream that keeps the conversation itself and tells its state in the first event."""
