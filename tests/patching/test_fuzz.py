"""Generated functions do the same with and without regions in them: results, errors, lines, side effects.

`benchmarks/test_fuzz.py` makes others each time.
"""

import gc
from collections import Counter
from random import Random

import pytest
from driven import check_program
from grown import grow

FUNCTIONS, AT_A_TIME = 480, 80

#: Warnings of generators that are not finished, and of coroutines that refuse to be closed.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def frozen():
    """Let garbage collections visit only new objects."""
    gc.freeze()


@pytest.mark.parametrize("first", range(0, FUNCTIONS, AT_A_TIME))
def test_a_function_does_the_same_with_regions_over_it(tmp_path, first):
    happened = Counter()
    for seed in range(first, first + AT_A_TIME):
        chance = Random(seed)
        happened.update(check_program(grow(chance), (chance.randrange(4), chance.randrange(4)), tmp_path))
    # The seeds are fixed, and so are these counts, on each version of Python.
    functions = AT_A_TIME - happened["refused"]
    assert happened["found"] > functions / 3, happened
    assert happened["recorded"] > functions / 12, happened
    assert happened["raised"] > functions / 5, happened
