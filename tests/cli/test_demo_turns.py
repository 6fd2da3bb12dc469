"""In the demo, tools and interactions belong to the turn whose reply they answer; without an engine.

PyTorch is imported by the test alone: each process that collects tests would need seconds for it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from logged import read_records

import sglang_instrument
from sglang_instrument.demo.calculator import Calculator
from sglang_instrument.demo.faults import Fault
from sglang_instrument.demo.interaction import Verifier
from sglang_instrument.demo.problems import call, say

#: Of one request: a tool's answer after the first and the third, the user's after the second and the last.
REPLIES = [call("1 + 2"), say(7), call("3 + 4", "5 + 6"), say(3)]


class Tokenizer:
    """One token a character."""

    pad_token_id = 0

    def __call__(self, text, add_special_tokens=False):
        return {"input_ids": [ord(character) for character in text]}

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return "".join(message["content"] for message in messages)


class Engine:
    """Gives the replies one after another."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._replies = iter(REPLIES)

    async def async_generate(self, input_ids, sampling_params):
        text = next(self._replies)
        ids = [ord(character) for character in text]
        return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": {"type": "stop"}}}

    def flush_cache(self) -> None:
        pass


@pytest.fixture
def alone(tmp_path):
    """A group of one process."""
    dist = pytest.importorskip("torch", reason="the demo's requirements are not installed").distributed
    dist.init_process_group("gloo", init_method=(tmp_path / "meeting").as_uri(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_tools_and_answers_belong_to_the_turn_whose_reply_they_answer(alone: None, tmp_path: Path) -> None:
    from sglang_instrument.demo.batch import DataProto
    from sglang_instrument.demo.rollout import DemoRollout, RolloutConfig

    sglang_instrument.install(experiment="demo", log_dir=str(tmp_path), trainers=["demo"])
    fault = Fault((), worker=0, workers=1, steps=1)
    engine = Engine()
    limits = RolloutConfig(max_model_len=10_000)
    rollout = DemoRollout(
        *(engine, Tokenizer(), [Calculator(fault)], {"verifier": Verifier()}, limits),
        on_request_done=lambda: None,
    )
    batch = {
        "raw_prompt": [[{"role": "user", "content": "1 + 2"}]],
        "tools_kwargs": [{"calculator": {"expected": "3"}}],
        "interaction_kwargs": [{"name": "verifier", "expected": "3"}],
    }
    rollout.generate_sequences(
        DataProto(non_tensor_batch=batch, meta_info={"global_steps": 1, "validate": False})
    )
    engine.loop.close()
    sglang_instrument.uninstall()
    records = read_records(tmp_path)["demo/step_1/worker_0.jsonl"]

    def turns(event: str) -> list[int]:
        return [record["extra"].get("turn") for record in records if record["event"] == event]

    assert turns("turn_engine_call") == [0, 1, 2, 3]
    assert turns("tool_calling_state") == turns("tool_execution") == [0, 2]
    assert turns("interacting_state") == turns("interaction_response") == [1, 3]
