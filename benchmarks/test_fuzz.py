"""Random functions, others each time, do the same with and without regions in them.

`FUZZ_FUNCTIONS=20000 python -m pytest benchmarks/test_fuzz.py` tries more; one that differs is reduced.
`tests/patching/test_fuzz.py` tries the same functions each time.
"""

import gc
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from driven import check_program
from grown import grow
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FUNCTIONS = int(os.environ.get("FUZZ_FUNCTIONS", "2000"))
TWO_NUMBERS = st.tuples(st.integers(0, 3), st.integers(0, 3))

#: Warnings of generators that are not finished, and of coroutines that refuse to be closed.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def happened():
    """Count what the functions did."""
    gc.freeze()  # garbage collections then visit only new objects
    counted = Counter()
    yield counted
    gc.unfreeze()
    print(f"\nfuzz: Python {sys.version.split()[0]}, {FUNCTIONS} functions: {dict(counted)}")


@settings(max_examples=FUNCTIONS, deadline=None, derandomize=False, suppress_health_check=list(HealthCheck))
@given(chance=st.randoms(use_true_random=False), arguments=TWO_NUMBERS)
def test_a_random_function_does_the_same_with_regions_over_it(happened, tmp_path_factory, chance, arguments):
    happened.update(check_program(grow(chance), arguments, tmp_path_factory.getbasetemp()))
