"""Give verl's rollout requests, a tool and an engine that take almost no time: its own code and ours remain.

verl's own requests spend a millisecond per turn on templates and tokens, which would hide microseconds.
"""

import torch
from verl.tools.schemas import OpenAIFunctionToolSchema
from verl.workers.rollout.schemas import AsyncRolloutRequestStateEnum as State
from verl.workers.rollout.schemas import Message

TOOL = "calc_gsm8k_reward"
CALL = f'<tool_call>\n{{"name": "{TOOL}", "arguments": {{"answer": "5"}}}}\n</tool_call>'
ANSWER = "#### 5"
CALLS = 2  # then the answer: three turns
PROMPT, REPLY = torch.ones(1, 40, dtype=torch.long), torch.ones(1, 60, dtype=torch.long)


class Schema:
    """A tool's schema with only its name."""

    class function:  # noqa: N801 - verl's name
        name = TOOL


class Request:
    """The methods of a request that verl's rollout calls; all requests share their tensors."""

    prompt_ids = prompt_attention_mask = prompt_position_ids = PROMPT
    response_ids = response_attention_mask = response_position_ids = response_loss_mask = REPLY
    input_ids = attention_mask = position_ids = loss_mask = torch.cat((PROMPT, REPLY), -1)
    tool_schemas = (Schema,)
    tools_kwargs = {TOOL: {}}  # noqa: RUF012 - read only
    interaction_kwargs = {}  # noqa: RUF012
    multi_modal_data = multi_modal_inputs = None
    rollout_offset = 0
    max_model_len = 384

    def __init__(self, number):
        self.batch_data_id, self.request_id = number, f"request {number}"
        self.state, self.messages, self.reward_scores = State.PENDING, [], {}

    def __deepcopy__(self, memo):
        return Request(self.batch_data_id)

    def get_generation_prompt_ids(self, processing_class):
        return [len(self.messages)]

    def add_assistant_message(self, processing_class, content, content_ids=None, tool_calls=None):
        self.messages.append(
            Message.model_construct(role="assistant", content=content, tool_calls=tool_calls)
        )

    def add_tool_response_messages(self, processing_class, contents):
        pass

    def update_metrics(self, metrics, tool):
        pass

    def finalize(self, processing_class, reward_scores, finish_reason):
        self.state, self.reward_scores = State.COMPLETED, reward_scores


class Tool:
    """Does nothing and returns at once."""

    name = TOOL

    def get_openai_tool_schema(self):
        return OpenAIFunctionToolSchema

    async def create(self, instance_id, **kwargs):
        return instance_id, None

    async def execute(self, instance_id, parameters, **kwargs):
        return None, 0.0, {}

    async def calc_reward(self, instance_id, **kwargs):
        return 1.0

    async def release(self, instance_id, **kwargs):
        pass


class Words:
    """A tokenizer that decodes the two replies."""

    def decode(self, ids, **kwargs):
        return CALL if len(ids) == 1 else ANSWER


class Engine:
    """Replies at once: tool calls first, then the answer; the prompt tells the number of the turn."""

    def __init__(self, **arguments):
        pass

    async def async_generate(self, input_ids, **_):
        ids = [0, 0] if input_ids[0] >= CALLS else [0]
        meta = {"finish_reason": {"type": "stop"}, "completion_tokens": len(ids), "cached_tokens": 0}
        return {"text": "", "output_ids": ids, "meta_info": meta}

    async def flush_cache(self):
        pass

    async def abort_request(self, rid="", abort_all=False):
        pass

    def shutdown(self):
        pass


def make_light(rollout, requests):
    """Replace verl's request, tool and tokenizer by these."""
    rollout._tool_map = {TOOL: Tool()}
    rollout.processing_class = Words()
    rollout._preprocess_prompt_to_async_rollout_requests = lambda prompts, n=1: [
        Request(number) for number in range(requests)
    ]
