"""Amazon Bedrock Converse: content blocks in AWS event-stream frames, the same for every model behind it."""
