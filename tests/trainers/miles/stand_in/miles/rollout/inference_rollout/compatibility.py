"""Stand in for Miles' calls of rollout functions and generate functions of both kinds."""

import inspect

from miles.utils.async_utils import run
from miles.utils.misc import load_function


def load_rollout_function(input, path):
    """Return a rollout function by its path."""
    return load_function(path)(input)


def call_rollout_function(fn, input):
    """Call it; if it is a coroutine, run that in the background loop."""
    output = fn(input)
    if inspect.iscoroutine(output):
        output = run(output)
    return output


def load_generate_function(path):
    """Return a generate function by its path."""
    return load_function(path) if path else None
