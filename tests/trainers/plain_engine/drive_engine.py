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
    return [[reply["output_ids"] for reply in several] for several in replies]


def main():
    if SWITCH:
        sglang_instrument.install()
    made = engine()
    import sglang

    outcome = {"version": sglang.__version__, "tokens": made.loop.run_until_complete(rollout(made))}
    Path(FOLDER, "outcome.json").write_text(json.dumps(outcome))
    time.sleep(1)  # shutdown kills the schedulers, which lose what they recorded just before
    made.shutdown()


if __name__ == "__main__":
    main()
