"""Stand in for slime's own tracing: a decorator and a context manager."""

import functools
from contextlib import contextmanager


@contextmanager
def trace_span(target, name, *, attrs=None, record_error=True):
    """Do nothing around a block."""
    yield {}


def trace_function(name, *, target=None, target_getter=None, attrs_getter=None, record_error=True):
    """Wrap a coroutine function, as slime does."""

    def decorator(fn):
        @functools.wraps(fn)
        async def async_wrapper(*args, **kwargs):
            with trace_span(target, name):
                return await fn(*args, **kwargs)

        return async_wrapper

    return decorator
