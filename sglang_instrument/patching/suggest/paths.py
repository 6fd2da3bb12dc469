"""Find in a function what names the step, the request and a turn, as paths that a field can read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from sglang_instrument.patching.places.anchors import FunctionDef

STEPS: Final = (
    "global_steps",
    "global_step",
    "rollout_id",
    "training_step",
    "train_step",
    "step",
    "iteration",
)
REQUESTS: Final = (
    "request_id",
    "rid",
    "uid",
    "session_id",
    "sample_id",
    "task_id",
    "trajectory_id",
    "req_id",
)
VALIDATES: Final = ("validate", "evaluation", "is_eval", "is_validation", "eval_mode")


def path_to(function: FunctionDef, names: Iterable[str], others: Iterable[FunctionDef] = ()) -> str | None:
    """Return a path to a value with one of the names, from a parameter; None if the source shows none.

    Args:
        function: Where the path is read.
        names: The best name first.
        others: Functions of the same class: their paths from `self` are valid in all.
    """
    parameters = parameters_of(function)
    copies = _copies(function)
    here: list[str] = [_of_original(path, copies) for path in _paths(function)]
    of_self = [path for other in others for path in _paths(other) if path.startswith("self.")]
    shown: list[str] = [*here, *of_self] if "self" in parameters else here
    for name in names:
        if name in parameters:
            return name
        for path in shown:
            root, _, _ = path.replace("[", ".").partition(".")
            if root in parameters and _ends(path, name):
                return path
    return None


def _copies(function: FunctionDef) -> dict[str, str]:
    """Return the locals that are a name's value or its copy: `_req = deepcopy(req)`."""
    copies: dict[str, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Call) and getattr(value.func, "id", "") in ("copy", "deepcopy"):
                value = value.args[0] if value.args else value
            if isinstance(value, ast.Name):
                copies[node.targets[0].id] = value.id
    return copies


def _of_original(path: str, copies: dict[str, str]) -> str:
    root, _, _ = path.replace("[", ".").partition(".")
    return copies[root] + path.removeprefix(root) if root in copies else path


def parameters_of(function: FunctionDef) -> list[str]:
    """Return the names of a function's parameters; what it gathers in `*args` or `**kwargs` has none."""
    given = function.args
    return [parameter.arg for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _ends(path: str, name: str) -> bool:
    return path.endswith((f".{name}", f'["{name}"]'))


def _paths(function: FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        path = _path(node)
        if path is not None and ("." in path or "[" in path):
            yield path


def _path(node: ast.AST) -> str | None:
    """Return an expression as a field's path: `a.b["c"]`, also for `a.b.get("c")`; None if it is none."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        holder = _path(node.value)
        return None if holder is None else f"{holder}.{node.attr}"
    key: ast.AST | None = None
    holder_node: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        holder_node, key = node.value, node.slice
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and node.args
    ):
        holder_node, key = node.func.value, node.args[0]
    if holder_node is None or not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        return None
    holder = _path(holder_node)
    return None if holder is None or '"' in key.value else f'{holder}["{key.value}"]'
