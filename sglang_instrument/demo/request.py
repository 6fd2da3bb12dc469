"""Hold one request of a rollout: its messages, its tokens, and a mask of the generated tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from sglang_instrument.demo.calculator import OpenAIFunctionToolCall, ToolResponse
from sglang_instrument.demo.chat import GENERATION_PROMPT, encode, message_text


class AsyncRolloutRequestStateEnum(str, Enum):
    """The state of a request."""

    PENDING = "pending"
    RUNNING = "running"
    TOOL_CALLING = "tool_calling"
    INTERACTING = "interacting"
    COMPLETED = "completed"


class FinishReasonTypeEnum(str, Enum):
    """Why a turn or the request finished."""

    LENGTH = "length"
    STOP = "stop"
    TOOL_CALL = "tool_calls"


@dataclass
class Message:
    """One message of the dialogue."""

    role: str
    content: str
    tool_calls: list[OpenAIFunctionToolCall] | None = None


@dataclass
class AsyncRolloutRequest:
    """One dialogue of a batch. Tensors are int64 [1, tokens].

    `loss_mask` marks the tokens that the model generated. `prompt_ids` are the tokens before the first reply,
    `response_ids` all later ones; `finalize` splits them.
    """

    batch_data_id: int
    request_id: str
    messages: list[Message]
    input_ids: torch.Tensor
    rollout_offset: int = 0
    state: AsyncRolloutRequestStateEnum = AsyncRolloutRequestStateEnum.PENDING
    tools_kwargs: dict[str, dict[str, Any]] = field(default_factory=dict)
    interaction_kwargs: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    reward_scores: dict[str, Any] = field(default_factory=dict)
    finish_reason: FinishReasonTypeEnum | None = None

    def __post_init__(self) -> None:
        """Begin with a prompt and no response."""
        self.prompt_ids = self.input_ids
        self.loss_mask = torch.zeros_like(self.input_ids)
        self.response_ids = self.input_ids[:, :0]
        self.response_loss_mask = self.response_ids

    def get_generation_prompt_ids(self, processing_class: Any) -> list[int]:
        """Return the tokens to generate from; first append the assistant's header if it is missing."""
        header = encode(processing_class, GENERATION_PROMPT)
        if self.input_ids[0, -len(header) :].tolist() != header:
            self._append(header, said=False)
        ids: list[int] = self.input_ids[0].tolist()
        return ids

    def add_user_message(self, processing_class: Any, content: str) -> None:
        """Append the user's message."""
        self.messages.append(Message("user", content))
        self._append(encode(processing_class, message_text("user", content)), said=False)

    def add_tool_response_messages(self, processing_class: Any, responses: list[ToolResponse]) -> None:
        """Append the answers of the tools."""
        for response in responses:
            self.messages.append(Message("tool", response.text))
            self._append(encode(processing_class, message_text("tool", response.text)), said=False)

    def add_assistant_message(
        self,
        processing_class: Any,
        content: str,
        content_ids: list[int],
        tool_calls: list[OpenAIFunctionToolCall] | None = None,
    ) -> None:
        """Append the model's reply: its tokens, then the newline that ends a message."""
        self.messages.append(Message("assistant", content, tool_calls))
        self._append(content_ids, said=True)
        self._append(encode(processing_class, "\n"), said=False)

    def update_metrics(self, metrics: dict[str, int], tool_name: str) -> None:
        """Store the counts of one tool call."""
        self.metrics.setdefault(tool_name, []).append(metrics)

    def finalize(self, reward_scores: dict[str, Any], finish_reason: FinishReasonTypeEnum | None) -> None:
        """Split the tokens into prompt and response, and close the request."""
        self.finish_reason = finish_reason
        self.state = AsyncRolloutRequestStateEnum.COMPLETED
        self.reward_scores = reward_scores
        start = self.prompt_ids.shape[-1]
        self.response_ids = self.input_ids[:, start:]
        self.response_loss_mask = self.loss_mask[:, start:]

    def _append(self, ids: list[int], *, said: bool) -> None:
        new = torch.tensor([ids], dtype=self.input_ids.dtype)
        self.input_ids = torch.cat((self.input_ids, new), dim=-1)
        self.loss_mask = torch.cat((self.loss_mask, torch.full_like(new, int(said))), dim=-1)
