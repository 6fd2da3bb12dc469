"""Functions to instrument, each with a twin that is not instrumented and otherwise costs the same."""

from sglang_instrument import instrument

REPLY = {"meta_info": {"completion_tokens": 17}, "output_ids": list(range(20)), "text": "four"}


def part():
    return REPLY


def rewritten():
    return REPLY


def rewritten_twin():
    return REPLY


def ranged():
    reply = part()
    return reply["text"]


def ranged_twin():
    reply = part()
    return reply["text"]


def ranged_with_fields():
    reply = part()
    return reply["text"]


async def rewritten_coroutine():
    return REPLY


@instrument("turn_engine_call")
def decorated():
    return REPLY


@instrument("turn_engine_call")
async def decorated_coroutine():
    return REPLY


async def coroutine_twin():
    return REPLY
