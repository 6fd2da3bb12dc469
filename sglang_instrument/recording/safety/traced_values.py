"""Recognise values that torch is tracing: what is read of them would become a part of the graph.

A tracer passes `Proxy` objects or tensors of its own through the program, or watches all operations of a
thread. Other code may watch in the same way, to count operations, for example; it must not see ours either.
"""

import sys
from typing import Any, Final

_OF_TRACERS: Final = ("torch.fx.", "torch._subclasses.")
_SYMBOLS: Final = frozenset({"SymInt", "SymFloat", "SymBool"})  # the sizes of traced tensors
_DEVICE_CONTEXT: Final = "torch.utils._device"  # the mode of torch.set_default_device() ignores what we read


def is_traced(value: Any) -> bool:
    """Return whether torch is tracing `value`: what it holds may not be read then."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    for base in type(value).__mro__:
        module = base.__module__
        if type(module) is not str or not module.startswith("torch"):
            continue
        if module.startswith(_OF_TRACERS) or (module == "torch" and base.__name__ in _SYMBOLS):
            return True
        if base.__name__ == "Tensor" and base is getattr(torch, "Tensor", None):
            return _is_watched(torch._C)
    return False


def unseen(value: Any) -> Any:
    """Return a context in which a traced tensor can be described; None if there is none."""
    torch = sys.modules.get("torch")
    if (
        torch is None
        or not issubclass(type(value), torch.Tensor)
        or torch._C._get_tracing_state() is not None
    ):
        return None  # torch.jit.trace makes a node of a shape
    return torch._C.DisableTorchFunction()


def _is_watched(torch: Any) -> bool:
    """Return whether other code sees the tensor operations of this thread."""
    if torch._len_torch_dispatch_stack() or torch._get_tracing_state() is not None:
        return True
    if torch._functorch.peek_interpreter_stack() is not None:  # vmap, grad
        return True
    modes = range(torch._len_torch_function_stack())
    return any(type(torch._get_function_stack_at(depth)).__module__ != _DEVICE_CONTEXT for depth in modes)
