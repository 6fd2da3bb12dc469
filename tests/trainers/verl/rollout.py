"""Build verl's real SGLangRollout on the real engine on a CPU, and batches for it."""

import asyncio
import importlib.metadata
import os
from pathlib import Path

import cpu_engine  # noqa: F401 - before verl
import numpy as np
import torch
import verl
import verl.workers.rollout.sglang_rollout.sglang_rollout as module
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from verl import DataProto

HERE = Path(__file__).parent
VERSION = tuple(map(int, importlib.metadata.version("verl").split(".")[:3]))
HAS_INTERACTIONS = VERSION >= (0, 4, 1)
TOOL = "calc_gsm8k_reward"
PROMPT_LENGTH, RESPONSE_LENGTH = 128, 256

#: The dialogues of the model: one call; a wrong and a right call; no call; a call and a wrong answer.
QUESTIONS = [("Add 2 and 3.", "5"), ("Add 4 and 4.", "8"), ("Say 9.", "9"), ("Add 6 and 1.", "7")]


def settings(tensor_parallel=1, **changes):
    """Return verl's own settings of a rollout, with the changes that tests or a CPU need."""
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        rollout = compose("ppo_trainer").actor_rollout_ref.rollout
    OmegaConf.set_struct(rollout, False)
    rollout.update(
        name="sglang",
        mode="sync",
        dtype="float32",
        load_format="auto",
        prompt_length=PROMPT_LENGTH,
        response_length=RESPONSE_LENGTH,
        tensor_model_parallel_size=tensor_parallel,
        max_model_len=None,
        enforce_eager=True,
        **changes,
    )
    turns = rollout.multi_turn
    turns.enable = True
    turns.tool_config_path = str(HERE / "config/tools.yaml")
    if HAS_INTERACTIONS:
        named = "interaction_0.4.1.yaml" if VERSION == (0, 4, 1) else "interaction.yaml"
        turns.interaction_config_path = str(HERE / "config" / named)
        turns.max_assistant_turns, turns.max_user_turns = 6, 3
    else:
        turns.max_turns = 6
    return rollout


def build(model, tensor_parallel=1, **changes):
    """Return the rollout; it starts the engine."""
    config = settings(tensor_parallel, **changes)
    if VERSION >= (0, 6, 0):
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.config import HFModelConfig, RolloutConfig

        model_config = HFModelConfig(path=model, override_config={"attn_implementation": "eager"})
        rollout = module.SGLangRollout(
            config=omega_conf_to_dataclass(config, RolloutConfig), model_config=model_config, device_mesh=None
        )
    else:
        from transformers import AutoConfig, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(model)
        named = {"tokenizer" if VERSION < (0, 4, 1) else "processing_class": tokenizer}
        hf_config = AutoConfig.from_pretrained(model)
        rollout = module.SGLangRollout(model, config, model_hf_config=hf_config, **named)
    try:
        asyncio.get_event_loop()
    except RuntimeError:  # uvloop creates no event loop by itself, and some versions of sglang do not either
        asyncio.set_event_loop(asyncio.new_event_loop())
    return rollout


def change(rollout, **values):
    """Change settings of an existing rollout, which newer versions freeze."""
    for name, value in values.items():
        owner, _, field = name.rpartition("__")
        config = getattr(rollout.config, owner) if owner else rollout.config
        if OmegaConf.is_config(config):
            config[field] = value
        else:
            object.__setattr__(config, field, value)


def objects(values):
    array = np.empty(len(values), dtype=object)
    for number, value in enumerate(values):
        array[number] = value
    return array


def batch(rollout, questions=QUESTIONS, step=None, validate=False):
    """Return the batch that verl's trainer passes to `generate_sequences`, with `step` if it passes it."""
    tokenizer = getattr(rollout, "processing_class", None) or rollout.tokenizer
    messages = [np.array([{"role": "user", "content": question}]) for question, _ in questions]
    texts = [
        tokenizer.apply_chat_template(list(talk), add_generation_prompt=True, tokenize=False)
        for talk in messages
    ]
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    pads = [PROMPT_LENGTH - len(row) for row in ids]
    input_ids = torch.tensor([[tokenizer.pad_token_id] * p + row for p, row in zip(pads, ids, strict=True)])
    mask = (torch.arange(PROMPT_LENGTH)[None] >= torch.tensor(pads)[:, None]).long()
    tensors = {
        "input_ids": input_ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clip(0),
    }
    truths = [truth for _, truth in questions]
    others = {
        "raw_prompt": objects(messages),
        "tools_kwargs": objects([{TOOL: {"create_kwargs": {"ground_truth": truth}}} for truth in truths]),
    }
    if HAS_INTERACTIONS:
        others["interaction_kwargs"] = objects([{"name": "gsm8k", "ground_truth": truth} for truth in truths])
    meta = {
        "do_sample": False,
        "validate": validate,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if step is not None and VERSION >= (0, 5, 0):  # in earlier versions, the trainer does not pass the step
        meta["global_steps"] = step
    return DataProto.from_dict(tensors, non_tensors=others, meta_info=meta)


def plain(output):
    """Return the result of a rollout as lists to compare: tokens, masks, messages and rewards."""
    messages = output.non_tensor_batch.get("messages", [])
    return {
        "tensors": {name: tensor.tolist() for name, tensor in output.batch.items()},
        "messages": [[message.model_dump(mode="json") for message in talk["messages"]] for talk in messages],
        "rewards": [dict(scores) for scores in output.non_tensor_batch.get("reward_scores", [])],
    }


def join_group():
    """Join the gloo group of the ranks; the rank comes from torchrun's variables."""
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        os.environ.setdefault(variable, os.environ["RANK"])  # verl reads one of these variables
    torch.distributed.init_process_group("gloo")
