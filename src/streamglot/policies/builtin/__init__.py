"""The policies that come with streamglot. Each is one file; ``BUILT_IN`` says where."""

from __future__ import annotations

from typing import Final

BUILT_IN: Final[dict[str, str]] = {
    "allow_tools": "tool_lists:AllowTools",
    "deny_tools": "tool_lists:DenyTools",
    "tool_arguments": "tool_arguments:ToolArguments",
    "redact": "redact:Redact",
    "block_patterns": "block_patterns:BlockPatterns",
    "llm_judge": "llm_judge:LlmJudge",
    "external_judge": "external_judge:ExternalJudge",
    "human_approval": "human_approval:HumanApproval",
    "max_output": "max_output:MaxOutput",
    "loop_guard": "loop_guard:LoopGuard",
    "json_schema": "json_schema:JsonSchema",
    "system_note": "system_note:SystemNote",
    "dry_run": "compose:DryRun",
    "parallel": "compose:Parallel",
    "in_order": "compose:InOrder",
}
