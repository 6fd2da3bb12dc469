"""Run every situation of a rollout once, on one engine, and write the results.

drive.py MODEL FOLDER TENSOR_PARALLEL

FOLDER gets the logs of run "run" (and "all_ranks") and `outcome_RANK.json`, which the tests read.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import rollout as verl_rollout
import torch
import user_classes
from rollout import HAS_INTERACTIONS, QUESTIONS, VERSION, batch, change, module, plain

import sglang_instrument

#: Steps of the run, by what happens in them. Before 0.5.0 a step is the number of the training call.
TOOLS, MORE, RAISES, SINGLE, ABORTS, LOG_PROBS, CANCELLED = 1, 2, 3, 4, 5, 6, 77


def snapshot():
    """Return the ids of all objects that a patch could have replaced."""
    owned = {name: id(value) for name, value in vars(module.SGLangRollout).items()}
    globals_ = {name: id(value) for name, value in vars(module).items() if name != "__builtins__"}
    return {"class": owned, "module": globals_, "code": code_of(module.SGLangRollout)}


def code_of(owner):
    """Return id(__code__) of every function below the methods of a class, through decorators' cells."""
    codes, waiting = {}, [(name, value) for name, value in vars(owner).items() if callable(value)]
    while waiting:
        name, function = waiting.pop()
        code = getattr(function, "__code__", None)
        if code is None or name in codes:
            continue
        codes[name] = id(code)
        for number, cell in enumerate(function.__closure__ or ()):
            waiting.append((f"{name}[{number}]", cell.cell_contents))
    return codes


def cancel_a_request(rollout):
    """Cancel a request while its tool runs, as user code might."""
    prompts = batch(rollout, QUESTIONS[:1])
    [request] = rollout._preprocess_prompt_to_async_rollout_requests(prompts, n=1)

    async def cancelled():
        task = asyncio.ensure_future(rollout._async_rollout_a_request(request, do_sample=False))
        while not user_classes.Calculator.began:
            await asyncio.sleep(0.005)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return "CancelledError"

    user_classes.Calculator.hangs = True
    user_classes.Calculator.began = False
    try:
        with sglang_instrument.step(CANCELLED):
            return asyncio.get_event_loop().run_until_complete(cancelled())
    finally:
        user_classes.Calculator.hangs = False


def tool_that_raises(rollout):
    """Return the exception of a tool as the caller of the rollout receives it."""
    user_classes.Calculator.fails = True
    try:
        rollout.generate_sequences(batch(rollout, QUESTIONS[:1], RAISES))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        user_classes.Calculator.fails = False


def with_over_sampling(rollout):
    """Let the last two of four requests hang in their tools; the step needs only two."""
    change(rollout, over_sample_rate=0.5)
    user_classes.Calculator.hangs = True
    try:
        questions = [QUESTIONS[0], QUESTIONS[1], QUESTIONS[2], QUESTIONS[2]]
        return plain(rollout.generate_sequences(batch(rollout, questions, ABORTS)))
    finally:
        user_classes.Calculator.hangs = False
        change(rollout, over_sample_rate=0.0)


def with_log_probs(rollout):
    """Request log-probs; verl passes a tensor [1, tokens], which this engine does not accept."""
    generate = rollout._engine.async_generate

    async def generate_from_list(*args, input_ids, **kwargs):
        if isinstance(input_ids, torch.Tensor):
            input_ids = input_ids.flatten().tolist()
        return await generate(*args, input_ids=input_ids, **kwargs)

    change(rollout, calculate_log_probs=True)
    rollout._engine.async_generate = generate_from_list
    try:
        return plain(rollout.generate_sequences(batch(rollout, QUESTIONS[:1], LOG_PROBS)))
    finally:
        del rollout._engine.async_generate
        change(rollout, calculate_log_probs=False)


def single_turn(rollout):
    change(rollout, multi_turn__enable=False)
    try:
        return plain(rollout.generate_sequences(batch(rollout, step=SINGLE)))
    finally:
        change(rollout, multi_turn__enable=True)


def run_steps(rollout, questions):
    """Return the results of two training steps and a validation."""
    calls = [(TOOLS, False), (MORE, False), (MORE, True)]
    return [plain(rollout.generate_sequences(batch(rollout, questions, *call))) for call in calls]


def everything(rollout, questions, alone):
    """Run all situations; those that end a rollout early only if no other rank would wait for this one."""
    outcome = {"steps": run_steps(rollout, questions)}
    if alone:
        outcome["raises"] = tool_that_raises(rollout)
        outcome["cancelled"] = cancel_a_request(rollout)
        outcome["single"] = attempted(single_turn, rollout)
        if VERSION >= (0, 6, 0):
            outcome["aborts"] = with_over_sampling(rollout)
            outcome["log_probs"] = attempted(with_log_probs, rollout)
    return outcome


def attempted(situation, rollout):
    """Run a situation that fails in some versions without us, too; it must fail in the same way with us."""
    try:
        return situation(rollout)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def switch_on():
    """Install as a user of verl does, who sets `model.external_lib`: verl's workers import it in this way."""
    from verl.utils.import_utils import import_external_libs

    import_external_libs("measure_rollout")


def main(model, folder, tensor_parallel):
    verl_rollout.join_group()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    rollout = verl_rollout.build(model, tensor_parallel)
    questions = QUESTIONS[rank // tensor_parallel :: ranks // tensor_parallel]
    alone = ranks == 1
    before = snapshot()
    without = everything(rollout, questions, alone)
    switch_on()
    instrumented = everything(rollout, questions, alone)
    patches = sglang_instrument.status()["patches"]
    notices = sglang_instrument.status()["notices"]
    sglang_instrument.uninstall()
    after = snapshot()
    if tensor_parallel > 1:
        sglang_instrument.install(log_dir=folder, experiment="all_ranks", all_ranks=True)
        run_steps(rollout, questions)
        sglang_instrument.uninstall()
    outcome = {
        "version": ".".join(map(str, VERSION)),
        "interactions": HAS_INTERACTIONS,
        "questions": questions,
        "without": without,
        "instrumented": instrumented,
        "restored": before == after,
        "patches": patches,
        "notices": notices,
    }
    (Path(folder) / f"outcome_{rank}.json").write_text(json.dumps(outcome, default=repr))
    torch.distributed.barrier()
    if rollout._engine is not None:
        rollout._engine.shutdown()
    os._exit(0)  # do not wait for threads of the engine


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
