"""Bytes to frames and back: the layer below the dialects, which knows where a message begins and ends, but not what it means."""

from ..json.tokenizer import JsonDepth
from .aws_eventstream import AwsEventStream
from .frame import Frame, Framing
from .json_array import JsonArray
from .lines import NdJson
from .sse import Sse

__all__ = ["AwsEventStream", "Frame", "Framing", "JsonArray", "JsonDepth", "NdJson", "Sse"]
