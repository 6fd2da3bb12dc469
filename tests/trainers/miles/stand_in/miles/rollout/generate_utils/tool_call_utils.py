"""Stand in for Miles' calls of tools."""

import json


async def execute_tool_calls(tool_calls, execute_one):
    """Execute one call after another."""
    return [await _execute_tool_call(call, execute_one) for call in tool_calls]


async def _execute_tool_call(call, execute_one):
    name, params = call.name, json.loads(call.parameters)
    result = await execute_one(name, params)
    return {"role": "tool", "content": result, "name": name}


def update_sample_with_tool_responses(sample, tool_messages, tokenizer):
    """Add what the tools said."""
    sample.tokens = sample.tokens + [0] * len(tool_messages)
