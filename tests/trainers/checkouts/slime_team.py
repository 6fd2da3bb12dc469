"""A module of a team for slime, named by path: a generate function of two calls, a tool, and a reward."""

import asyncio

from slime.rollout.sglang_rollout import GenerateState
from slime.utils.http_utils import post

LONG_PROMPT = 100  # tokens; a reply to one is long, too, and outlasts the others


async def search(question):
    await asyncio.sleep(0.01)
    return "secret 5"


async def generate(args, sample, sampling_params):
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    tokenizer = GenerateState(args).tokenizer
    sample.tokens = tokenizer.encode(sample.prompt, add_special_tokens=False)
    is_long = len(sample.tokens) >= LONG_PROMPT
    sampling = {**sampling_params, "max_new_tokens": 500 if is_long else 6, "ignore_eos": True}
    for call in range(2):
        payload = {"input_ids": sample.tokens, "sampling_params": sampling, "return_logprob": True}
        reply = await post(url, payload)
        pairs = reply["meta_info"]["output_token_logprobs"]
        sample.append_response_tokens(
            args,
            tokens=[token for _, token, *_ in pairs],
            log_probs=[logprob for logprob, *_ in pairs],
            trainable=True,
            meta_info=reply["meta_info"],
            text=reply["text"],
        )
        if sample.status.value == "aborted":
            break
        if call == 0:
            answer = tokenizer.encode(await search("x"), add_special_tokens=False)
            sample.append_response_tokens(args, tokens=answer, trainable=False, text="secret answer")
    return sample


async def reward(args, sample, **keywords):
    await asyncio.sleep(0.01)
    return {"score": 0.5, "why": "secret reason"}
