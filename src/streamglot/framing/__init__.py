"""Bytes to frames and frames to bytes: what a wire looks like before anybody asks what it means."""

from .aws_eventstream import AwsEventStream
from .frame import Frame, Framing
from .json_array import JsonArray
from .json_depth import JsonDepth
from .ndjson import NdJson
from .sse import Sse

__all__ = ["AwsEventStream", "Frame", "Framing", "JsonArray", "JsonDepth", "NdJson", "Sse"]
