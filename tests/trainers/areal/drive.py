"""Run AReaL's real rollouts on a real server: without us, with us, and without us again; write the results.

python drive.py MODEL FOLDER PORT: logs to FOLDER/run, writes FOLDER/outcome.json.
"""

import asyncio
import inspect
import json
import pickle
import sys
import time
from pathlib import Path
from urllib.request import urlopen

MODEL, FOLDER, PORT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
QUESTIONS = [("Say 6.", "6"), ("Say 9.", "9"), ("Add 1 and 1.", "2"), ("Say 6.", "6")]


def ask(question, answer):
    return {"messages": [{"role": "user", "content": question}], "answer": answer}


def shown(batch):
    """Return the rollout's result for training."""
    return {name: batch[name].tolist() for name in ("input_ids", "loss_mask", "rewards")}


class Rollouts:
    """The ways to request episodes; sampling is greedy, so that results repeat."""

    def __init__(self):
        from areal.api.cli_args import GenerationHyperparameters, InferenceEngineConfig
        from areal.engine.sglang_remote import RemoteSGLangEngine
        from areal.workflow.multi_turn import MultiTurnWorkflow
        from areal.workflow.rlvr import RLVRWorkflow
        from transformers import AutoTokenizer
        from user_code import reward

        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        settings = {"max_concurrent_rollouts": 8, "consumer_batch_size": 2, "max_head_offpolicyness": 1000}
        names = {"experiment_name": "e", "trial_name": "t", "backend": "sglang:d1"}
        self.engine = RemoteSGLangEngine(InferenceEngineConfig(**names, **settings, setup_timeout=300))
        self.engine.initialize(addr=f"127.0.0.1:{PORT}", train_data_parallel_size=1)
        self.greedy = GenerationHyperparameters(max_new_tokens=32, greedy=True, max_tokens=400)
        self.long = GenerationHyperparameters(
            max_new_tokens=900, temperature=5.0, ignore_eos=True, max_tokens=1000
        )
        self.make = lambda settings: RLVRWorkflow(reward, settings, self.tokenizer)
        self.turns = MultiTurnWorkflow(reward, self.greedy, self.tokenizer, max_turns=2, turn_discount=0.5)

    def short(self):
        """Run one of each kind."""
        from torchdata.stateful_dataloader import StatefulDataLoader

        single, engine = self.make(self.greedy), self.engine
        engine.set_version(2)
        out = {"bare": [shown(asyncio.run(single.arun_episode(engine, ask(*QUESTIONS[0]))))]}
        engine.set_version(3)
        asked = [ask(*question) for question in QUESTIONS[:2]]
        out["groups"] = sorted(map(shown, engine.rollout_batch(asked, single, group_size=2)), key=repr)
        out["turns"] = [shown(engine.rollout_batch([ask(*QUESTIONS[2])], workflow=self.turns)[0])]
        engine.submit(asked[0], self.make(self.greedy), task_id=777, is_eval=True)
        out["evaluation"] = [shown(engine.wait_for_task(777, timeout=300))]
        keywords = {"gconfig": self.greedy, "tokenizer": self.tokenizer}
        engine.submit(asked[0], "user_code.ToolWorkflow", keywords, group_size=2, task_id=778)
        out["user"] = [shown(engine.wait_for_task(778, timeout=300))]
        keywords["reward_fn"] = __import__("user_code").failing_reward
        engine.submit(asked[0], "user_code.ToolWorkflow", keywords, task_id=779)
        out["failed"] = [engine.wait_for_task(779, timeout=300)]
        loader = StatefulDataLoader([ask(*question) for question in QUESTIONS], batch_size=2, collate_fn=list)
        for version in (4, 5):
            engine.set_version(version)
            got = engine.prepare_batch(loader, workflow=single, group_size=2)
            out[f"step_{version}"] = len(got)
        self._take_what_is_left()
        return out

    def _take_what_is_left(self):
        """Take what AReaL submits besides for each second that a batch is late: no later rollout gets it."""
        left = len(self.engine.workflow_executor.dispatcher._active_task_ids)
        if left:
            self.engine.wait(left, timeout=300)

    def interrupted(self):
        """Change the version of the weights during a reply; return the versions of the reply's tokens."""
        for task in range(880, 900):  # a fast machine may answer before the pause: try another request
            self.engine.set_version(6)
            self.engine.submit(ask("Say 6.", "6"), workflow=self.make(self.long), task_id=task)
            self._await_running()
            self.engine.pause()
            self.engine.pause_generation()
            self.engine.set_version(9)
            self.engine.continue_generation()
            time.sleep(0.05)  # the aborted reply is sent again while the rollout is paused
            self.engine.resume()
            versions = set(self.engine.wait_for_task(task, timeout=300)["versions"].flatten().tolist())
            if versions >= {6, 9}:
                return task
        raise SystemExit("no reply was cut off")

    def weights_from(self, folder):
        """Load the weights again."""
        from areal.api import WeightUpdateMeta
        from areal.api.cli_args import NameResolveConfig
        from areal.utils import name_resolve, names

        name_resolve.reconfigure(NameResolveConfig(type="nfs", nfs_record_root=str(FOLDER / "names")))
        known = names.update_weights_from_disk("e", "t", self.engine.get_version())
        name_resolve.add(known, str(time.time()), replace=True)
        self.engine.update_weights_from_disk(WeightUpdateMeta(type="disk", path=folder)).result(timeout=300)

    def _await_running(self):
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            with urlopen(f"http://127.0.0.1:{PORT}/v1/loads?include=core", timeout=60) as answer:
                loads = json.load(answer)["loads"]
            if any(load["num_running_reqs"] for load in loads):
                return
        raise SystemExit("the request never reached the server")


def looks():
    """Return kind, signature and pickling of the functions that we patch."""
    from areal.api.reward_api import AsyncRewardWrapper
    from areal.infra import remote_inf_engine
    from areal.infra.workflow_executor import WorkflowExecutor
    from areal.workflow.multi_turn import MultiTurnWorkflow
    from areal.workflow.rlvr import RLVRWorkflow
    from ray import cloudpickle

    functions = [
        remote_inf_engine.RemoteInfEngine.agenerate,
        remote_inf_engine.RemoteInfEngine.pause_generation,
        remote_inf_engine.GroupedRolloutWorkflow.arun_episode,
        remote_inf_engine._update_weights_from_disk,
        WorkflowExecutor.prepare_batch,
        WorkflowExecutor._create_workflow_task,
        RLVRWorkflow.arun_episode,
        MultiTurnWorkflow.arun_episode,
        AsyncRewardWrapper.__call__,
    ]
    for function in functions:
        assert pickle.loads(pickle.dumps(function)) is function
        assert cloudpickle.loads(cloudpickle.dumps(function)) is function
    return [
        [str(inspect.signature(function)), inspect.iscoroutinefunction(function), function.__qualname__]
        for function in functions
    ], [inspect.unwrap(function).__code__ for function in functions]


def main():
    import sglang_instrument

    rollouts = Rollouts()
    before, codes = looks()
    plain = rollouts.short()
    sglang_instrument.install(log_dir=str(FOLDER), experiment="run")
    measured = rollouts.short()
    cut = rollouts.interrupted()
    rollouts.weights_from(MODEL_COPY)
    during, changed = looks()
    status = sglang_instrument.status()
    sglang_instrument.uninstall()
    after, restored = looks()
    outcome = {
        "plain": plain,
        "measured": measured,
        "again": rollouts.short(),
        "cut": cut,
        "looks": [before, during, after],
        "changed": [old is not new for old, new in zip(codes, changed, strict=True)],
        "restored": [old is new for old, new in zip(codes, restored, strict=True)],
        "patches": status["patches"],
    }
    rollouts.engine.destroy()
    (FOLDER / "outcome.json").write_text(json.dumps(outcome))


if __name__ == "__main__":
    import shutil

    MODEL_COPY = str(shutil.copytree(MODEL, FOLDER / "weights"))  # AReaL deletes the weights that it loaded
    main()
