"""Run two rollouts and an evaluation of slime: drive_slime.py CHECKOUT MODEL PORT WAY FOLDER.

Replaced are: the actor's start, engines, data source, and what splits a batch. The server and the router
are real. The rollouts, the generate function, rewards, the abort, the evaluation and what makes training
data are slime's code. The last line is JSON.
"""

import json
import sys
from pathlib import Path

import stubs
from settings import PARALLEL, Prompts, facts, settings

checkout, model, port, way, folder = sys.argv[1:]
stubs.stand_in_for(checkout)

import slime.ray.rollout as home  # noqa: E402
from slime.rollout.sglang_rollout import generate_rollout  # noqa: E402
from slime.utils.eval_config import EvalDatasetConfig  # noqa: E402
from slime.utils.http_utils import init_http_client  # noqa: E402
from slime.utils.types import Sample  # noqa: E402

EVALUATED = ("Add 1 and 1.", "Say 6.")
WAYS = {
    "plain": {"over_sampling_batch_size": 2},
    "functions": {
        "custom_generate_function_path": "slime_team.generate",
        "custom_rm_path": "slime_team.reward",
        "reward_key": "score",
        "eval_reward_key": "score",
    },
}


def manager_of(arguments):
    kind = home.RolloutManager
    kind = kind.__ray_metadata__.modified_class if hasattr(kind, "__ray_metadata__") else kind
    manager = kind.__new__(kind)
    manager.args, manager.data_source, manager.servers = arguments, Prompts(Sample), {}
    manager.train_parallel_config, manager.rollout_id, manager._health_monitors = PARALLEL, -1, []
    manager.custom_reward_post_process_func = manager.custom_convert_samples_to_train_data_func = None
    manager.generate_rollout = manager.eval_generate_rollout = generate_rollout
    return manager


def dataset():
    """Return an evaluation of two questions, asked twice each."""
    path = Path(folder) / "questions.jsonl"
    path.write_text("".join(json.dumps({"prompt": text, "label": "#### 6"}) + "\n" for text in EVALUATED))
    return EvalDatasetConfig(
        name="tiny",
        path=str(path),
        input_key="prompt",
        label_key="label",
        metadata_key="metadata",
        n_samples_per_eval_prompt=2,
        temperature=0.0,
        top_p=1.0,
        top_k=-1,
        max_response_len=8,
        rm_type="f1",
    )


arguments = settings(model, int(port), eval_datasets=[dataset()], **WAYS[way])
init_http_client(arguments)
trained, evaluated = [], []
home.log_rollout_data = home.log_eval_rollout_data = lambda *values, **keywords: None
home.save_debug_rollout_data = lambda path, data, rollout_id, evaluation: (
    evaluated.extend(map(facts, data["tiny"]["samples"]))
    if evaluation
    else trained.append(list(map(facts, data)))
)
manager = manager_of(arguments)
handed = []
manager._split_train_data_by_dp = lambda data: handed.append(data["sample_indices"])
for rollout_id in (0, 1):
    manager.generate(rollout_id)
manager.eval(1)
print(
    json.dumps(
        {"trained": trained, "handed": handed, "evaluated": evaluated, "replaced": sorted(stubs.REPLACED)}
    )
)
stubs.end()
