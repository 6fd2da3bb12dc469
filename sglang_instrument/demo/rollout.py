"""Roll out a batch of dialogues on the SGLang engine: the demo's stand-in for a trainer's rollout.

It follows verl's `SGLangRollout` (0.5 to 0.6): every instrumented function of verl has its counterpart here
with the same name, and some are as long as in verl. Like any trainer, this module does not use this package:
`patches/demo/rollout.toml` instruments it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from json import JSONDecodeError
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

from sglang_instrument.demo.batch import DataProto, TensorDict, broadcast_pyobj, pad_sequence_to_length
from sglang_instrument.demo.calculator import Calculator, FunctionCallParser, OpenAIFunctionToolCall
from sglang_instrument.demo.chat import EOS, encode
from sglang_instrument.demo.interaction import Verifier
from sglang_instrument.demo.request import (
    AsyncRolloutRequest,
    AsyncRolloutRequestStateEnum,
    FinishReasonTypeEnum,
    Message,
)


@dataclass(frozen=True)
class RolloutConfig:
    """Limits of a rollout, lengths in tokens; `response_length` is the limit for one turn."""

    prompt_length: int = 64
    response_length: int = 512
    max_model_len: int = 1024
    max_assistant_turns: int = 10
    max_user_turns: int = 2


class DemoRollout:
    """Generate the replies to a batch of problems; one coroutine runs all turns of a request."""

    def __init__(
        self,
        engine: Any,
        processing_class: Any,
        tools: list[Calculator],
        interactions: dict[str, Verifier],
        config: RolloutConfig,
        on_request_done: Callable[[], None],
    ) -> None:
        self._engine = engine
        self.processing_class = processing_class
        self.pad_token_id: int = processing_class.pad_token_id
        self.config = config
        self.interaction_map = interactions
        self._tool_map = {tool.name: tool for tool in tools}
        self._function_call_parser = FunctionCallParser()
        self._eos_ids = encode(processing_class, EOS)
        self._on_request_done = on_request_done
        self.sampling_params = {"temperature": 1.0, "top_p": 1.0, "skip_special_tokens": True}
        self._rank = dist.get_rank()
        # One engine per rank, no tensor parallelism: a group per rank. All ranks must make all groups.
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        self._tp_group = groups[self._rank]
        self._tp_rank = 0

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Roll out a batch.

        Args:
            prompts: `non_tensor_batch` has `raw_prompt` (messages), `tools_kwargs` and `interaction_kwargs`,
                one entry a request; `meta_info` has `global_steps`, `validate` and `do_sample`.

        Returns:
            `batch` with prompts, responses, response_mask, input_ids, attention_mask and position_ids, int64
            [requests, tokens]; `non_tensor_batch` with messages, reward_scores and request_id.
        """
        return self._req_level_generate_sequences(prompts)

    @torch.no_grad()
    def _req_level_generate_sequences(self, prompts: DataProto) -> DataProto:
        do_sample = prompts.meta_info.get("do_sample", True)
        req_list = self._preprocess_prompt_to_async_rollout_requests(prompts)

        async def rollout_and_count(req: AsyncRolloutRequest) -> AsyncRolloutRequest:
            done = await self._async_rollout_a_request(req, do_sample)
            self._on_request_done()
            return done

        async def run_all() -> list[AsyncRolloutRequest]:
            return await asyncio.gather(*[rollout_and_count(req) for req in req_list])

        output_req_list = self._engine.loop.run_until_complete(run_all())
        sorted_output_req_list = sorted(
            output_req_list, key=lambda req: (req.batch_data_id, req.rollout_offset)
        )

        dist.barrier()

        self._engine.flush_cache()

        [sorted_output_req_list] = broadcast_pyobj(
            [sorted_output_req_list], rank=self._rank, group=self._tp_group, src=self._rank
        )
        prompt_ids, response_ids, response_masks = [], [], []
        messages, reward_scores, request_ids = [], [], []
        for req in sorted_output_req_list:
            if req.state != AsyncRolloutRequestStateEnum.COMPLETED:
                raise RuntimeError(f"request {req.request_id} is {req.state.value}, not completed")
            prompt_ids.append(req.prompt_ids.squeeze(0))
            response_ids.append(req.response_ids.squeeze(0))
            response_masks.append(req.response_loss_mask.squeeze(0))
            messages.append(req.messages)
            reward_scores.append(req.reward_scores)
            request_ids.append(req.request_id)

        padded_prompts = pad_sequence(
            prompt_ids, batch_first=True, padding_value=self.pad_token_id, padding_side="left"
        )
        padded_prompts = pad_sequence_to_length(
            padded_prompts, self.config.prompt_length, self.pad_token_id, left_pad=True
        )
        responses = pad_sequence(response_ids, batch_first=True, padding_value=self.pad_token_id)
        responses = pad_sequence_to_length(responses, self.config.response_length, self.pad_token_id)
        response_mask = pad_sequence(response_masks, batch_first=True, padding_value=0)
        response_mask = pad_sequence_to_length(response_mask, self.config.response_length, 0)

        input_ids = torch.cat((padded_prompts, responses), dim=-1)
        attention_mask = (input_ids != self.pad_token_id).long()
        position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)

        batch = TensorDict(
            {
                "prompts": padded_prompts,
                "responses": responses,
                "response_mask": response_mask,
                "input_ids": input_ids,
                "attention_mask": attention_mask,
                "position_ids": position_ids,
            },
            batch_size=len(sorted_output_req_list),
        )

        non_tensor_batch = {"messages": messages, "reward_scores": reward_scores, "request_id": request_ids}
        return DataProto(batch=batch, non_tensor_batch=non_tensor_batch)

    def _preprocess_prompt_to_async_rollout_requests(self, prompts: DataProto) -> list[AsyncRolloutRequest]:
        req_list = []
        rows = prompts.non_tensor_batch
        for data_idx, raw_prompt in enumerate(rows["raw_prompt"]):
            text = self.processing_class.apply_chat_template(
                raw_prompt, tokenize=False, add_generation_prompt=True
            )
            req_list.append(
                AsyncRolloutRequest(
                    batch_data_id=data_idx,
                    request_id=str(uuid4()),
                    messages=[Message(**message) for message in raw_prompt],
                    input_ids=torch.tensor([encode(self.processing_class, text)]),
                    tools_kwargs=rows["tools_kwargs"][data_idx],
                    interaction_kwargs=rows["interaction_kwargs"][data_idx],
                )
            )
        return req_list

    async def _async_rollout_a_request(
        self, req: AsyncRolloutRequest, do_sample: bool = True
    ) -> AsyncRolloutRequest:
        _req = deepcopy(req)
        finish_reason_type = None
        output: dict[str, Any] | None = None
        current_turns = 0
        user_turns = 0
        user_turn_rewards: list[float] = []
        request_sampling_params = self.sampling_params.copy()
        if not do_sample:
            request_sampling_params["temperature"] = 0

        while current_turns < self.config.max_assistant_turns:
            if _req.state == AsyncRolloutRequestStateEnum.PENDING:
                await self._handle_pending_state(_req)
                _req.state = AsyncRolloutRequestStateEnum.RUNNING
            elif _req.state == AsyncRolloutRequestStateEnum.TOOL_CALLING:
                parsed_tool_calls = _req.messages[-1].tool_calls or []
                tool_call_results = await asyncio.gather(
                    *[
                        self._tool_map[tool_call.name].execute(_req.request_id, tool_call.arguments)
                        for tool_call in parsed_tool_calls
                    ]
                )
                responses = [response for response, _, _ in tool_call_results]
                _req.add_tool_response_messages(self.processing_class, responses)
                for tool_call, (_, _, metrics) in zip(parsed_tool_calls, tool_call_results, strict=True):
                    _req.update_metrics(metrics, tool_call.name)
                _req.state = AsyncRolloutRequestStateEnum.RUNNING
            elif _req.state == AsyncRolloutRequestStateEnum.RUNNING:
                prompt_length = len(_req.get_generation_prompt_ids(self.processing_class))
                if prompt_length + 1 >= self.config.max_model_len:
                    finish_reason_type = FinishReasonTypeEnum.LENGTH
                    break

                output = await self._handle_engine_call(_req, request_sampling_params)
                content, content_ids = output["text"], self._generated_ids(output)
                finish_reason_type = FinishReasonTypeEnum(output["meta_info"]["finish_reason"]["type"])
                current_turns += 1
                if finish_reason_type == FinishReasonTypeEnum.LENGTH:
                    _req.add_assistant_message(self.processing_class, content, content_ids)
                    break
                if self._function_call_parser.has_tool_call(content):
                    finish_reason_type = FinishReasonTypeEnum.TOOL_CALL
                    _req.state = AsyncRolloutRequestStateEnum.TOOL_CALLING
                    try:
                        _, tool_calls = self._function_call_parser.parse_non_stream(content)
                    except JSONDecodeError:
                        tool_calls = []
                    parsed_tool_calls = [
                        OpenAIFunctionToolCall(tool_call["name"], tool_call["arguments"])
                        for tool_call in tool_calls
                    ]
                    _req.add_assistant_message(self.processing_class, content, content_ids, parsed_tool_calls)
                else:
                    _req.add_assistant_message(self.processing_class, content, content_ids)
                    if (
                        user_turns < self.config.max_user_turns
                        and current_turns < self.config.max_assistant_turns
                    ):
                        _req.state = AsyncRolloutRequestStateEnum.INTERACTING
                    else:
                        finish_reason_type = FinishReasonTypeEnum.STOP
                        break
            elif _req.state == AsyncRolloutRequestStateEnum.INTERACTING:
                user_turns += 1
                messages = [{"role": message.role, "content": message.content} for message in _req.messages]
                interaction = self.interaction_map[_req.interaction_kwargs["name"]]
                should_terminate_sequence, content, reward, _ = await interaction.generate_response(
                    _req.request_id, messages, **_req.interaction_kwargs
                )
                user_turn_rewards.append(reward)
                if should_terminate_sequence:
                    finish_reason_type = FinishReasonTypeEnum.STOP
                    break
                _req.add_user_message(self.processing_class, content)
                _req.state = AsyncRolloutRequestStateEnum.RUNNING

        async def calc_reward_and_release_fn(name: str, tool: Calculator) -> tuple[str, float]:
            reply = next(
                message.content for message in reversed(_req.messages) if message.role == "assistant"
            )
            reward = await tool.calc_reward(_req.request_id, reply=reply)
            await tool.release(_req.request_id)
            return name, reward

        tool_rewards = await asyncio.gather(
            *[calc_reward_and_release_fn(name, self._tool_map[name]) for name in _req.tools_kwargs]
        )
        _req.finalize({**dict(tool_rewards), "user_turn_rewards": user_turn_rewards}, finish_reason_type)
        return _req

    def _generated_ids(self, output: dict[str, Any]) -> list[int]:
        """Return the generated tokens with the end of turn, which not every engine returns."""
        ids = list(output["output_ids"])
        stopped = output["meta_info"]["finish_reason"]["type"] == "stop"
        return ids + self._eos_ids if stopped and ids[-1:] != self._eos_ids else ids

    async def _handle_engine_call(
        self, _req: AsyncRolloutRequest, sampling_params: dict[str, Any]
    ) -> dict[str, Any]:
        generation_prompt_ids = _req.get_generation_prompt_ids(self.processing_class)
        return await self._handle_engine_generate(generation_prompt_ids, sampling_params)

    async def _handle_engine_generate(
        self, generation_prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> dict[str, Any]:
        max_new_tokens = min(
            self.config.response_length, self.config.max_model_len - len(generation_prompt_ids) - 1
        )
        kwargs = {**sampling_params, "max_new_tokens": max_new_tokens}
        output: dict[str, Any] = await self._engine.async_generate(
            input_ids=generation_prompt_ids, sampling_params=kwargs
        )
        return output

    async def _handle_pending_state(self, _req: AsyncRolloutRequest) -> None:
        if _req.tools_kwargs:
            tool_creation_coroutines = [
                self._tool_map[name].create(_req.request_id, **create_kwargs)
                for name, create_kwargs in _req.tools_kwargs.items()
            ]
            await asyncio.gather(*tool_creation_coroutines)
        if _req.interaction_kwargs:
            interaction = self.interaction_map[_req.interaction_kwargs["name"]]
            await interaction.start_interaction(_req.request_id, **_req.interaction_kwargs)
