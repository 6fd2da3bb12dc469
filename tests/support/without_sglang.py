"""Ask the model what it says without SGLang, and without us; once for all processes of a test session."""

import json
import os
import subprocess
import sys

from engine_log import PROMPTS, TOKENS
from filelock import FileLock
from sglang_server import model_of_the_demo

GREEDY = """
import json, sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
for prompt in json.loads(sys.argv[2]):
    ids = torch.tensor([prompt])
    for _ in range(int(sys.argv[3])):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    print(json.dumps(ids[0, len(prompt):].tolist()))
"""


def replies_without_sglang(tmp_path_factory):
    """Return the most probable reply to each of `PROMPTS`, of `TOKENS` tokens."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # that of the session; each of its processes has a folder below it
    replies = folder / "without_sglang.jsonl"
    with FileLock(folder / "without_sglang.lock"):
        if not replies.exists():
            replies.write_text(_computed())
    return list(map(json.loads, replies.read_text().splitlines()))


def _computed():
    command = [sys.executable, "-W", "ignore", "-c", GREEDY, str(model_of_the_demo())]
    done = subprocess.run(
        [*command, json.dumps(PROMPTS), str(TOKENS)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
