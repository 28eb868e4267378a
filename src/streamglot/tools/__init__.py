"""Tools that models call and we run: the registry, its sources, and the loop."""

from .loop import ToolLoop
from .registry import ToolRegistry
from .settings import ToolsConfig
from .tool import FunctionTool, Tool, ToolError, ToolOutput, as_tool, tool

__all__ = [
    "FunctionTool",
    "Tool",
    "ToolError",
    "ToolLoop",
    "ToolOutput",
    "ToolRegistry",
    "ToolsConfig",
    "as_tool",
    "tool",
]
