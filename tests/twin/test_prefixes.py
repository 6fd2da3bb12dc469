"""Hashes of prompts' beginnings tell what two prompts share, and nothing of their tokens."""

import random
from array import array

import pytest

from sglang_instrument.prompt_prefixes import MOST_BLOCKS, block_tokens, prefix_hashes
from sglang_instrument.twin.agendas.prefixes import PromptPrefixes, common_tokens, shared_tokens


def of(tokens):
    return PromptPrefixes(len(tokens), tuple(prefix_hashes(tokens)))


def drawn(dice, length):
    return dice.choices(range(1000), k=length)


@pytest.mark.parametrize("seed", range(40))
def test_what_two_prompts_share_lies_between_both_numbers(seed):
    dice = random.Random(seed)
    shared = dice.choice((0, 5, 16, 100, 700, 5000))
    begin = drawn(dice, shared)
    first = [*begin, -1, *drawn(dice, dice.choice((0, 3, 60, 900)))]
    second = [*begin, -2, *drawn(dice, dice.choice((0, 3, 60, 9000)))]
    same, differing = shared_tokens(of(first), of(second))
    assert same <= shared < differing
    assert shared - same < max(block_tokens(len(first)), block_tokens(len(second)))


def test_a_prompt_that_goes_on_differs_nowhere():
    prompt = drawn(random.Random(1), 1234)
    same, differing = shared_tokens(of(prompt), of([*prompt, 5, 6, 7]))
    assert 1234 - block_tokens(1237) < same <= 1234
    assert differing > 1234


def test_what_most_groups_begin_with_is_common():
    dice = random.Random(2)
    system = drawn(dice, 320)
    prompts = [of([*system, *drawn(dice, 150 + 10 * number)]) for number in range(5)]
    strangers = [of(drawn(dice, 400)) for _ in range(3)]
    assert 288 <= common_tokens([*prompts, *strangers]) <= 320
    assert common_tokens(prompts[:1]) == 0
    assert common_tokens(strangers) == 0


def test_lists_and_arrays_hash_alike_and_other_things_are_refused():
    tokens = drawn(random.Random(3), 200_000)
    assert prefix_hashes(tokens) == prefix_hashes(array("q", tokens))
    assert prefix_hashes(tokens[:15]) == []
    assert all(len(prefix_hashes(tokens[:length])) <= MOST_BLOCKS for length in (16, 255, 4097, 200_000))
    with pytest.raises(TypeError):
        prefix_hashes("text")
    with pytest.raises(TypeError):
        prefix_hashes(["a"] * 20)
