"""Each call that verl's real reward worker makes of a reward model's router is an event, over real HTTP."""

import subprocess

from conftest import LIMIT_SEC, ROOT, interpreter
from logged import read_records

#: The worker's own method; the rest of the worker, which loads tokenizers, is left out.
SCORING = """
import asyncio
from types import SimpleNamespace
from reward_server import reward_server
import sglang_instrument
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

with reward_server('{"score": 0.5}', refused=1) as address:
    worker = SimpleNamespace(reward_router_address=address.removeprefix("http://").partition("/")[0])
    with sglang_instrument.step(3):
        print(asyncio.run(RewardLoopWorker._post_request(worker, {"text": "reply"}, "classify")))
"""


def test_each_attempt_has_its_status_and_its_time(tmp_path):
    done = subprocess.run(
        [interpreter(), "-W", "ignore", "-c", SCORING],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}",
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_INSTRUMENT": "1",
            "EXPERIMENT_NAME": "run",
            "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SEC,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "{'score': 0.5}"
    (records,) = [records for path, records in read_records(tmp_path / "run").items() if "step_3" in path]
    refused, answered = [record for record in records if record["event"] == "reward_request"]
    assert (refused["error"], refused["extra"]) == ("ClientResponseError", {"attempt": 0})
    assert answered["extra"] == {"attempt": 1, "status": 200}
