"""Name the locals of a generated reader, and make the small parts of its syntax tree."""

import ast
from typing import Any, Final

from sglang_instrument.patching.tables.field_functions import OF_TENSORS
from sglang_instrument.patching.tables.field_language import PathStep

# Names in the generated function; the dunder prefix avoids clashes with a target's locals.
RUN: Final = "__sglang_run"
FIELDS: Final = "__sglang_fields"
HOLDS: Final = "__sglang_holds"
HERE: Final = "__sglang_here"
EACH: Final = "__sglang_each"
VALUE: Final = "__sglang_value"
REGISTRY: Final = "__sglang_registry"

#: Stands for the name of a field whose value is a condition: no table can write it.
CONDITION: Final[Any] = object()


def assign(name: str, value: ast.expr) -> ast.stmt:
    """Return `name = value`."""
    return ast.Assign([ast.Name(name, ast.Store())], value)


def of_run(name: str) -> ast.expr:
    """Return an attribute of the run."""
    return ast.Attribute(load(RUN), name, ast.Load())


def load(name: str) -> ast.expr:
    """Return the value of a name."""
    return ast.Name(name, ast.Load())


def call(name: str, *arguments: ast.expr) -> ast.expr:
    """Return the call of a name."""
    return ast.Call(load(name), list(arguments), [])


def store(name: str, value: ast.expr) -> list[ast.stmt]:
    """Return statements that store a value; the scalar check is inline, as a call costs as much again."""
    scalar = ast.Compare(call("__sglang_type", load(VALUE)), [ast.In()], [load("__sglang_scalars")])
    reduced = ast.IfExp(scalar, load(VALUE), call("__sglang_reduce", load(VALUE)))
    return [assign(VALUE, value), store_as_is(name, reduced)]


def store_as_is(name: str, value: ast.expr) -> ast.stmt:
    """Return a statement that stores a value which needs no reducing."""
    if name is CONDITION:
        return assign(HOLDS, value)
    return ast.Assign([ast.Subscript(load(FIELDS), ast.Constant(name), ast.Store())], value)


def key_of(step: PathStep) -> ast.expr:
    """Return the key of a step: a constant, or the value at a path of attributes."""
    if step.of is None:
        return ast.Constant(step.name)
    key: ast.expr = load(step.of.root)
    for attribute in step.of.steps:
        key = ast.Attribute(key, str(attribute.name), ast.Load())
    return key


def take_step(here: ast.expr, step: PathStep) -> ast.expr:
    """Return the value to which a step leads from `here`."""
    if step.kind != "attribute":
        return take_record_step(here, step)
    if step.name in OF_TENSORS:
        return call("__sglang_attribute", here, ast.Constant(step.name))
    return ast.Attribute(here, str(step.name), ast.Load())


def take_record_step(here: ast.expr, step: PathStep) -> ast.expr:
    """Return the value to which a step leads from `here`, a record of a region: its attributes are keys."""
    if step.kind == "pick":
        pairs: list[ast.expr] = [
            ast.Tuple([ast.Constant(n) for n in pair], ast.Load()) for pair in step.names
        ]
        return call("__sglang_pick", here, ast.Tuple(pairs, ast.Load()))
    return call("__sglang_key", here, key_of(step))
