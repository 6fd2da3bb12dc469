"""Compile the fields of a region into one function, the reader, which reads them all and never raises.

The reader is built as a syntax tree from the parsed fields; no text of a table is executed. Each field has
its own `try`: a field that cannot be read is left out, and the other fields are still read.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from sglang_instrument.patching.probes.reader_code import (
    CONDITION,
    EACH,
    FIELDS,
    HERE,
    HOLDS,
    REGISTRY,
    RUN,
    assign,
    call,
    key_of,
    load,
    of_run,
    store,
    store_as_is,
    take_record_step,
    take_step,
)
from sglang_instrument.patching.probes.reader_names import NAMESPACE
from sglang_instrument.patching.tables import field_functions
from sglang_instrument.patching.tables.field_language import (
    BEFORE,
    BOUND,
    INSIDE,
    LAST,
    LATEST,
    MODULES,
    Constant,
    Expression,
    Path,
    PathStep,
)

#: Reads fields: (the ending run, or None at entry; *locals) -> fields. From the run it reads `duration_sec`,
#: `inside` (records by event) and `value` (the returned value, or the item).
Reader = Callable[..., dict[str, Any]]
#: Reads one condition, from the same arguments: a true or a false value; what cannot be read is false.
Condition = Callable[..., Any]

_DURATION: Final = "duration_sec"  # a field of every record
_OF_RECORDS: Final = frozenset({INSIDE, BEFORE, LAST})  # roots that lead to those of other regions


def locals_of(expressions: Iterable[Expression]) -> tuple[str, ...]:
    """Return the locals that the expressions read, each once, in order of use."""
    return tuple(dict.fromkeys(name for expression in expressions for name in expression.locals))


def local_arguments(names: Iterable[str]) -> ast.arguments:
    """Return the parameters of a reader that takes these locals."""
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def reader(expressions: Mapping[str, Expression], arguments: ast.arguments) -> Reader | None:
    """Build a reader; return None if there are no fields."""
    return build(expressions, arguments) if expressions else None


def condition(expressions: Mapping[str, Expression], arguments: ast.arguments) -> Condition | None:
    """Build a reader of the one condition in `expressions`; return None if there is none."""
    tests = list(_truth_tests(expressions).values())
    return _build({CONDITION: tests[0]}, arguments, HOLDS, ast.Constant(False)) if tests else None


def _truth_tests(expressions: Mapping[str, Expression]) -> dict[str, Expression]:
    """Return expressions that give the truth of each value itself, not of its reduced form in the log."""
    return {
        name: replace(
            expression,
            alternatives=tuple(
                replace(value, function="any")
                if isinstance(value, Path) and value.function is None
                else value
                for value in expression.alternatives
            ),
        )
        for name, expression in expressions.items()
    }


def build(expressions: Mapping[str, Expression], arguments: ast.arguments) -> Reader:
    """Build a reader of `expressions`; its parameters are the run, then `arguments`."""
    return _build(expressions, arguments, FIELDS, ast.Dict([], []))


def _build(
    expressions: Mapping[str, Expression], arguments: ast.arguments, returned: str, start: ast.expr
) -> Callable[..., Any]:
    namespace = dict(NAMESPACE)
    body: list[ast.stmt] = [assign(returned, start)]
    for name, expression in expressions.items():
        body += _field(name, expression, namespace)
    body.append(ast.Return(load(returned)))
    arguments.posonlyargs[:0] = [ast.arg(RUN)]
    # Parsed, not constructed: FunctionDef has other fields in other versions of Python.
    module = ast.parse("def read(): pass")
    function = cast("ast.FunctionDef", module.body[0])
    function.args, function.body = arguments, body
    code = compile(ast.fix_missing_locations(module), "<sglang_instrument fields>", "exec")
    exec(code, namespace)  # noqa: S102 - a tree built here from the parsed language, not a text
    return cast("Callable[..., Any]", namespace["read"])


def _field(name: str, expression: Expression, namespace: dict[str, Any]) -> list[ast.stmt]:
    """Return the statements that read one field; if an alternative raises, they try the next."""
    otherwise: list[ast.stmt] = []
    for value in reversed(expression.alternatives):
        attempt = _attempt(name, value, expression, namespace)
        if not otherwise:  # an exception for a key that each record lacks costs as much as some fields
            attempt = _unless_missing(value, attempt)
        otherwise = [ast.Try(attempt, [_when_unreadable(otherwise)], [], [])]
    return otherwise


def _unless_missing(value: Path | Constant, attempt: list[ast.stmt]) -> list[ast.stmt]:
    """Return the attempt; if its last step is a key, it stores nothing where a dict lacks that key."""
    if isinstance(value, Constant) or value.function or value.registry or not _ends_at_key(value):
        return attempt
    is_there = ast.Compare(key_of(value.steps[-1]), [ast.In()], [load(HERE)])
    is_no_dict = ast.Compare(call("__sglang_type", load(HERE)), [ast.IsNot()], [load("__sglang_dict")])
    is_not_none = ast.Compare(load(HERE), [ast.IsNot()], [ast.Constant(None)])
    may_read = ast.BoolOp(ast.And(), [is_not_none, ast.BoolOp(ast.Or(), [is_no_dict, is_there])])
    *before, read, keep = attempt
    return [*before, ast.If(may_read, [read, keep], [])]


def _ends_at_key(path: Path) -> bool:
    kinds = [step.kind for step in path.steps]
    return path.root not in _OF_RECORDS and kinds[-1:] == ["key"] and "each" not in kinds


def _when_unreadable(otherwise: list[ast.stmt]) -> ast.ExceptHandler:
    """Return a handler for all errors of a value's own code; it re-raises errors from outside."""
    reraise: ast.stmt = ast.Expr(call("__sglang_reraise"))
    return ast.ExceptHandler(load("__sglang_error"), None, [reraise, *otherwise])


def _attempt(
    name: str, value: Path | Constant, expression: Expression, namespace: dict[str, Any]
) -> list[ast.stmt]:
    if isinstance(value, Constant):
        return [store_as_is(name, ast.Constant(value.value))]
    statements, end = _walk(value, expression)
    if value.function == "missing":
        return [_whether_missing(name, statements, end)]
    of_records = value.root in _OF_RECORDS and expression.is_root(value)
    of_durations = of_records and _each_record(value) == _DURATION  # floats: no type checks needed
    if value.function == "percent":
        end = call("__sglang_percent", end, of_run("duration_sec"))
    elif value.function == "total" and of_durations:
        end = call("__sglang_sum", end)
    elif value.function == "size" and not any(step.kind == "each" for step in value.steps):
        return [*statements, assign(HERE, end), store_as_is(name, _size_here())]
    elif value.function is not None:
        end = _measured(value, end, namespace)
    elif of_records and value.steps[-1].kind == "pick":  # an empty list would say that there were none
        end = call("__sglang_some", end)
    if value.registry is not None:
        to_registry, registry = _walk(value.registry, expression)
        statements = [*to_registry, assign(REGISTRY, registry), *statements]
        end = call("__sglang_known", end, load(REGISTRY))
    if of_records:  # values in a record were reduced when it was made
        return [*statements, store_as_is(name, end)]
    return [*statements, *store(name, end)]


def _whether_missing(name: str, statements: list[ast.stmt], end: ast.expr) -> ast.stmt:
    """Return a statement that stores whether a value is None or cannot be read."""
    is_none = ast.Compare(end, [ast.Is()], [ast.Constant(None)])
    handler = _when_unreadable([store_as_is(name, ast.Constant(True))])
    return ast.Try([*statements, store_as_is(name, is_none)], [handler], [], [])


def _size_here() -> ast.expr:
    """Return `len()` for the usual collections, else the slower `field_functions.size()`."""
    usual = ast.Compare(call("__sglang_type", load(HERE)), [ast.In()], [load("__sglang_sized")])
    return ast.IfExp(usual, call("__sglang_len", load(HERE)), call("__sglang_size", load(HERE)))


def _measured(path: Path, end: ast.expr, namespace: dict[str, Any]) -> ast.expr:
    measures = field_functions.measure_named(str(path.function))
    assert measures is not None  # noqa: S101 - the parser let nothing else through
    each = any(step.kind == "each" for step in path.steps)
    alias = f"__sglang_{path.function}{'_each' if each else ''}"
    namespace[alias] = measures[each]
    return call(alias, end)


def _walk(path: Path, expression: Expression) -> tuple[list[ast.stmt], ast.expr]:
    """Return the statements that lead to the path's end, and an expression for the value there.

    One expression is not enough: it would need `:=` for a container that is used twice, and Python forbids
    `:=` in the iterable of a comprehension.
    """
    if path.root in _OF_RECORDS and expression.is_root(path):
        return [], _records(path)
    here, steps = _root(path, expression)
    statements: list[ast.stmt] = [] if path.steps else [_refuse_unbound(here)]
    for index, step in enumerate(steps):
        if step.kind == "each":
            return statements, _each(here, steps[index:], take_step)
        if step.kind in ("attribute", "pick"):
            here = take_step(here, step)
            continue
        statements.append(assign(HERE, here))
        plain = ast.Compare(call("__sglang_type", load(HERE)), [ast.In()], [load("__sglang_plain")])
        subscript = ast.Subscript(load(HERE), key_of(step), ast.Load())
        here = ast.IfExp(plain, subscript, take_step(load(HERE), step))
    return statements, here


def _root(path: Path, expression: Expression) -> tuple[ast.expr, tuple[PathStep, ...]]:
    """Return the value at which a path begins, and the remaining steps; not for paths to records."""
    if not expression.is_root(path):
        return load(path.root), path.steps
    if path.root in (BOUND, LATEST):
        return call(f"__sglang_{path.root}", ast.Constant(path.steps[0].name)), path.steps[1:]
    return load("__sglang_modules") if path.root == MODULES else of_run("value"), path.steps


def _records(path: Path) -> ast.expr:
    """Return an expression for a path from `inside`, `before` or `last`.

    Records are mappings; an event that did not happen has none.
    """
    event = ast.Constant(path.steps[0].name)
    get = ast.Attribute(of_run("inside"), "get", ast.Load())
    here: ast.expr = ast.Call(get, [event, ast.List([], ast.Load())], [])
    if path.root != INSIDE:
        here = call(f"__sglang_{path.root}", event)
    field = _each_record(path)
    if field is not None:
        return _field_of_each(here, field)
    for index, step in enumerate(path.steps[1:], 2):
        if step.kind == "each":
            return _each(here, path.steps[index - 1 :], take_record_step)
        here = take_record_step(here, step)
    return here


def _each_record(path: Path) -> str | None:
    """Return FIELD of the frequent path inside.EVENT[*].FIELD; None for other paths."""
    match path.steps:
        case (_, PathStep("each", "", of=None), PathStep("attribute", field)):
            return str(field)
    return None


def _field_of_each(records: ast.expr, field: str) -> ast.expr:
    """Return `[each[field] for each in records if field in each]`; `records` is a list of dicts.

    The record of a turn that ended early lacks some fields: it is skipped. Each record has a duration.
    """
    if field == _DURATION:
        durations = call("__sglang_map", load("__sglang_duration"), records)
        return ast.List([ast.Starred(durations, ast.Load())], ast.Load())
    has = ast.Compare(ast.Constant(field), [ast.In()], [load(EACH)])
    value = ast.Subscript(load(EACH), ast.Constant(field), ast.Load())
    target = ast.Name(EACH, ast.Store())
    return ast.ListComp(value, [ast.comprehension(target, records, [has], 0)])


def _each(
    over: ast.expr, steps: tuple[PathStep, ...], follow: Callable[[ast.expr, PathStep], ast.expr]
) -> ast.expr:
    """Return `[<rest of the path> for each in elements(over)]`; the first of `steps` is the `[*]`."""
    first, *rest = steps
    end: ast.expr = load(EACH)
    for index, step in enumerate(rest):
        if step.kind == "each":
            end = _each(end, tuple(rest[index:]), follow)
            break
        end = follow(end, step)
    conditions: list[ast.expr] = []
    if follow is take_record_step and rest and rest[0].kind in ("attribute", "key"):  # as in _field_of_each
        conditions.append(ast.Compare(key_of(rest[0]), [ast.In()], [load(EACH)]))
    if first.name:
        asked = follow(load(EACH), PathStep("attribute", first.name))
        conditions.append(call("__sglang_truth", asked))
    if first.of is not None:
        over = call("__sglang_chosen", over, key_of(first))
    target = ast.Name(EACH, ast.Store())
    return ast.ListComp(end, [ast.comprehension(target, call("__sglang_elements", over), conditions, 0)])


def _refuse_unbound(here: ast.expr) -> ast.stmt:
    unbound = ast.Compare(here, [ast.Is()], [load("__sglang_unbound")])
    return ast.If(unbound, [ast.Raise(load("__sglang_unreadable"), None)], [])
