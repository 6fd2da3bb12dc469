"""Make names of kernels readable: templates fill a thousand characters, and the operator stands inside."""

from __future__ import annotations

import re
from typing import Final

_ANONYMOUS: Final = "(anonymous namespace)::"
#: PyTorch's kernels that run an operator given as a template's argument.
_RUNS_AN_OPERATOR: Final = re.compile(
    r"(\w*(?:elementwise|reduce|index|scan|scatter_gather)\w*)<(.+)", re.DOTALL
)
#: How PyTorch names operators inside: `neg_kernel_cuda`, `CUDAFunctor_add<`, `MulFunctor<`, `MeanOps<`.
_OPERATOR: Final = re.compile(
    r"(?P<kernel>\w+?)(?:_tensor_scalar)?_kernel(?:_cuda|_impl)?(?=[(<])"
    r"|CUDAFunctor(?:OnSelf|OnOther)?_(?P<cuda>\w+)"
    r"|(?P<functor>\w+?)Functor(?:_\w+)?<"
    r"|(?P<reduction>\w+?)Ops<"
    r"|(?P<out>\w+)_cuda_out\("
)
_WRAPPERS: Final = ("binary", "aunary", "bunary", "gpu", "gpu_index", "opaque")
_TYPE: Final = re.compile(r"\b(BFloat16|Half|Float8_\w+|double|float|long|int|bool|OpaqueType<\d+\w*>)")
LONGEST: Final = 64  # characters of a name in a table
_LONG_TEMPLATE: Final = 40  # characters of its arguments, and they are left out


def readable_name(name: str, longest: int = LONGEST) -> str:
    """Return a kernel's name without what a reader skips: return type, arguments, long template arguments.

    PyTorch's element-wise and reducing kernels are named by the template, the operator and the type:
    `elementwise_kernel: mul BFloat16`.

    Args:
        name: The kernel's name in a trace, demangled or not.
        longest: In characters; a name that is still longer is cut in the middle.
    """
    return cut_in_the_middle(_operator_in(name) or _without_arguments(name), longest)


def cut_in_the_middle(name: str, longest: int = LONGEST) -> str:
    """Return the name, of at most `longest` characters."""
    back = (longest - 1) * 3 // 10
    return name if len(name) <= longest else f"{name[: longest - 1 - back]}…{name[-back:]}"


def _operator_in(name: str) -> str | None:
    """Return template, operator and type of a kernel that PyTorch made for an operator, or None."""
    made = _RUNS_AN_OPERATOR.search(name) if "at::native::" in name else None
    if made is None:
        return None
    template, inside = made.groups()
    operators = (next(filter(None, match.groups())).lower() for match in _OPERATOR.finditer(inside))
    operator = next((operator for operator in operators if operator not in _WRAPPERS), None)
    if operator is None:
        return None
    kind = _TYPE.search(inside)
    return f"{template}: {operator}{f' {kind[1]}' if kind else ''}"


def _without_arguments(name: str) -> str:
    """Return a C++ name without return type and arguments; template arguments stay where they are short."""
    short = name.removeprefix("void ").replace(_ANONYMOUS, "")
    depth = 0
    for place, character in enumerate(short):
        if character == "(" and depth == 0 and place:
            short = short[:place]
            break
        depth += (character in "<(") - (character in ">)")
    head, bracket, rest = short.partition("<")
    return f"{head}<…>" if head and bracket and len(rest) > _LONG_TEMPLATE else short
