"""Amazon Bedrock InvokeModel: AWS event-stream frames around whatever the model's own family writes."""
