"""Stand in for Miles' request of several turns with tools."""

from copy import deepcopy
from types import SimpleNamespace

from miles.rollout.base_types import GenerateFnOutput
from miles.rollout.generate_utils.tool_call_utils import (
    execute_tool_calls,
    update_sample_with_tool_responses,
)
from miles.utils.http_utils import post
from miles.utils.misc import load_function
from miles.utils.types import Sample


def compute_request_payload(args, input_ids, sampling_params):
    """Say what to ask for, or why not."""
    if len(input_ids) > args.rollout_max_context_len:
        return None, Sample.Status.TRUNCATED
    return {"input_ids": input_ids, "sampling_params": dict(sampling_params)}, None


async def update_sample_from_response(args, sample, payload, output, update_loss_mask=False):
    """Add the reply."""
    sample.update(payload["input_ids"], output)


def parse_non_stream(text, tool_specs):
    """Find the calls of tools: each reply asks for one."""
    return text, [SimpleNamespace(name=tool_specs[0]["function"]["name"], parameters='{"a": 1}')]


async def generate(input):
    """Ask, call tools, ask again."""
    args = input.args
    sample = deepcopy(input.sample)
    execute_tool_function = load_function(args.generate_execute_tool_function_path)
    tool_specs = load_function(args.generate_tool_specs_path)
    sample.tokens = [ord(letter) for letter in sample.prompt]
    for _turn in range(args.generate_max_turns):
        payload, halt_status = compute_request_payload(args, sample.tokens, input.sampling_params)
        if payload is None:
            sample.status = halt_status
            break
        output = await post("http://router/generate", payload, headers=None)
        await update_sample_from_response(args, sample, payload=payload, output=output, update_loss_mask=True)
        if output["meta_info"]["finish_reason"]["type"] in ("abort", "length"):
            break
        _, tool_calls = parse_non_stream(output["text"], tool_specs)
        if len(tool_calls) == 0:
            break
        tool_messages = await execute_tool_calls(tool_calls, execute_tool_function)
        update_sample_with_tool_responses(sample, tool_messages, tokenizer=None)
    return GenerateFnOutput(samples=sample)
