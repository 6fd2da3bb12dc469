"""Call a real `sglang.Engine` as a team's rollout does: drive_engine.py MODEL FOLDER SCHEDULERS [install].

Step 1 has requests of two calls, step 2 a request with a list of prompts, step 3 one with four samples, all
greedy. `outcome.json` has the version of SGLang, and the tokens of all replies.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import sglang_instrument
from sglang_instrument import bind, span, step

MODEL, FOLDER, SCHEDULERS, *SWITCH = sys.argv[1:]
GREEDY = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
PROMPTS = [[(7 * row + column) % 800 + 20 for column in range(3 + 2 * row)] for row in range(6)]


def engine():
    import sglang

    return sglang.Engine(
        model_path=MODEL,
        dp_size=int(SCHEDULERS),
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        context_length=512,
        max_total_tokens=4096,
        max_running_requests=16,
        chunked_prefill_size=512,
        mem_fraction_static=0.2,
        skip_server_warmup=True,
        sleep_on_idle=True,
        log_level="error",
    )


async def talk(made, name, calls):
    with bind(request_id=name), span("request"):
        return [await made.async_generate(input_ids=prompt, sampling_params=how) for prompt, how in calls]


async def rollout(made):
    with step(1):
        pairs = [[(PROMPTS[row], GREEDY), (PROMPTS[row + 1], GREEDY)] for row in range(4)]
        replies = await asyncio.gather(*(talk(made, f"a{row}", calls) for row, calls in enumerate(pairs)))
    with step(2):
        replies += await talk(made, "b0", [(PROMPTS, GREEDY)])
    with step(3):
        replies += await talk(made, "c0", [(PROMPTS[0], {**GREEDY, "n": 4})])
    if SWITCH:
        wait_until_logged({reply["meta_info"]["id"] for several in replies for reply in several})
    return [[reply["output_ids"] for reply in several] for several in replies]


def wait_until_logged(rids):
    """Wait until schedulers have logged the ends of these requests: `shutdown` kills schedulers at once."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        lines = [line for path in Path(FOLDER).rglob("scheduler_*.jsonl") for line in path.open()]
        ended = [line for line in lines if '"scheduler_finish"' in line]
        if all(any(rid in line for line in ended) for rid in rids):
            return
        time.sleep(0.05)
    raise TimeoutError(f"no scheduler logged the end of each of {rids}")


def main():
    if SWITCH:
        sglang_instrument.install()
    made = engine()
    import sglang

    outcome = {"version": sglang.__version__, "tokens": made.loop.run_until_complete(rollout(made))}
    Path(FOLDER, "outcome.json").write_text(json.dumps(outcome))
    made.shutdown()


if __name__ == "__main__":
    main()
