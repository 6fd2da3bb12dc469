"""Run generated functions with and without regions in them, and compare all that a caller sees."""

import contextvars
import gc
import itertools
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from grown import Program
from planted import snapshot, table

from sglang_instrument.patching.probes import expression_probes
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety import notices

STEPS_AT_MOST = 40
ERRORS = {"ValueError": ValueError, "StopIteration": StopIteration, "GeneratorExit": GeneratorExit}


def check_program(program: Program, arguments, folder: Path) -> set[str]:
    """Check that a function does the same with its regions; return what happened.

    "refused" by Python, or "found" a region, "recorded" something, "raised" an exception.
    """
    try:
        module = load(program, folder)
    except SyntaxError:  # `nonlocal` of an unknown name, `return` or `break` in `except*`
        return {"refused"}
    owners = [module, *([module.Own] if hasattr(module, "Own") else [])]
    without, pristine = drive(module, program, arguments), snapshot(*owners)
    target = "Own.target" if len(owners) > 1 else "target"
    planted = table({"target": target, "region": list(program.regions)})
    patcher = Patcher([planted], make_probe=probes_for(planted.patches[0].regions))
    notices.forget()
    before, recorded = spans.current_buffer(), []
    patcher.install()
    spans.use_buffer(recorded, int)
    try:
        compare(program, without, drive(module, program, arguments))
    finally:
        spans.use_buffer(before, int)
        sites = [site for site in patcher.results() if site.state == "found"]
        patcher.uninstall()
        sys.modules.pop(module.__name__)
    assert snapshot(*owners) == pristine, f"uninstalled, and not as before: {program!r}"
    assert notices.noticed() == [], f"{program!r}"
    raised = any(how == "raised" and "Stop" not in what[0] for how, what in without[0])
    happened = {"found": sites, "recorded": recorded, "raised": raised}
    return {name for name, value in happened.items() if value}


def compare(program, without, with_regions):
    for expected, seen in zip(without, with_regions, strict=True):
        for step, other in itertools.zip_longest(expected, seen):
            assert step == other, f"{program!r}\nwithout: {step}\nwith:    {other}"
    assert without == with_regions


_numbers = itertools.count()


def load(program: Program, folder: Path) -> ModuleType:
    path = folder / f"grown_{next(_numbers)}.py"
    path.write_text(program.source)
    module = sys.modules["planted_module"] = ModuleType("planted_module")
    module.__file__ = str(path)
    exec(compile(program.source, str(path), "exec"), vars(module))
    return module


def drive(module, program, arguments):
    """Return everything that a caller of the function sees, and the notes of the function."""
    reset(module)
    seen = []
    gc.collect(0)
    gc.disable()  # objects in reference cycles are collected at defined times
    contextvars.copy_context().run(call, module.target, program, arguments, seen)
    gc.enable()
    gc.collect(0)
    noted = list(module.noted)
    reset(module)
    return seen, noted


def reset(module):
    """Restore everything outside of the function that it may have changed."""
    module.noted.clear()
    module.left[0], module.shared = 200, 5
    code = module.target.__code__
    for name, cell in zip(code.co_freevars, module.target.__closure__ or (), strict=True):
        if name in ("p", "q"):
            cell.cell_contents = {"p": 4, "q": [4]}[name]


def call(target, program, arguments, seen):
    if program.kind == "function":
        happens(seen, target, *arguments)
    elif program.kind == "async generator":
        drive_async_generator(target(*arguments), iter(program.drive), seen)
    else:
        drive_generator(target(*arguments), iter(program.drive), seen)


def happens(seen, function, *arguments):
    """Note the result or exception of a call; return whether there was a result."""
    try:
        result = function(*arguments)
    except BaseException as error:
        seen.append(("raised", described(error)))
        return False
    seen.append(("gave", result if isinstance(result, (int, str, float)) else type(result).__name__))
    return True


def drive_generator(generator, steps, seen):
    """Drive a generator by the given steps, then to its end."""
    for _ in range(STEPS_AT_MOST):
        what, *given = next(steps, ("next",))
        if what == "throw":
            goes_on = happens(seen, generator.throw, ERRORS[given[0]]("thrown"))
        elif what == "close":
            goes_on = happens(seen, generator.close) and False
        else:
            goes_on = happens(seen, generator.send, *(given or [None]))
        if not goes_on:
            break
    happens(seen, generator.close)


def drive_async_generator(generator, steps, seen):
    """Drive an async generator by the given steps: ask for items, throw into it or what it awaits."""
    for _ in range(STEPS_AT_MOST):
        what, *given = next(steps, ("next",))
        if what == "throw":
            awaited = generator.athrow(ERRORS[given[0]]("thrown"))
        elif what == "close":
            awaited = generator.aclose()
        else:
            awaited = generator.asend(*(given or [None]))
        before = len(seen)
        drive_generator(awaited, steps, seen)
        if what == "close" or any(
            "StopAsyncIteration" in str(outcome) or "StopIteration" not in str(outcome)
            for outcome in seen[before:]
            if outcome[0] == "raised"
        ):
            break
    drive_generator(generator.aclose(), iter(()), seen)


def described(error, depth=0):
    """Return an exception's text, its lines, and its causes."""
    if error is None or depth > 6:
        return None
    # If entering a `with` is measured, a function of ours enters it, and appears in tracebacks.
    ours = __file__, expression_probes.__file__
    rows = [
        (Path(row.filename).name, row.name, row.lineno, getattr(row, "colno", None))
        for row in traceback.extract_tb(error.__traceback__)
        if row.filename not in ours
    ]
    if isinstance(error, UnboundLocalError) and sys.version_info[:2] == (3, 11):
        # Specialised code stores or reads two locals in one instruction, which has the position of the first.
        # If the second has no value, the traceback may name the line before.
        rows[-1:] = [(*row[:2], None, None) for row in rows[-1:]]
    return (
        *(type(error).__name__, re.sub(" at 0x[0-9a-f]+", "", str(error)), rows),
        described(error.__cause__, depth + 1),
        (error.__suppress_context__, described(error.__context__, depth + 1)),
        [described(inner, depth + 1) for inner in getattr(error, "exceptions", ())],
    )
