"""Gemini's generateContent, as Google's AI Studio and Vertex AI speak it."""
