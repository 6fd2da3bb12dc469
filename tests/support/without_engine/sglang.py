"""A stand-in for SGLang, by its name: an engine that replies what the demo's model was taught, at once.

It replaces the engine alone, for runs of the demo whose faults lie elsewhere: the processes of an engine need
half a minute of CPU for their imports. The replies of real engines equal these token for token, which
`test_demo_runs.py` asserts.
"""

import asyncio
from pathlib import Path

from tokenizers import Tokenizer

from sglang_instrument.demo.chat import EOS, message_text
from sglang_instrument.demo.problems import PROBLEMS

REPLIES = {problem.question: problem.replies for problem in PROBLEMS}


class Engine:
    """Takes the arguments of the real one, and uses the path of the model, for its tokenizer."""

    def __init__(self, *, model_path, **_others):
        self.loop = asyncio.new_event_loop()
        self._tokenizer = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json"))

    async def async_generate(self, *, input_ids, sampling_params):
        """Return the reply that follows the assistant's turns in the prompt."""
        prompt = self._tokenizer.decode(list(input_ids), skip_special_tokens=False)
        [replies] = [REPLIES[question] for question in REPLIES if message_text("user", question) in prompt]
        text = replies[prompt.count("<|im_start|>assistant\n") - 1]
        ids = self._tokenizer.encode(text + EOS, add_special_tokens=False).ids
        return {"text": text, "output_ids": ids, "meta_info": {"finish_reason": {"type": "stop"}}}

    def flush_cache(self):
        """There is no cache."""

    def shutdown(self):
        """There are no processes."""
