"""The compiled parts are used if they were built, all or none, and records are the same either way."""

import ast
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_instrument
from sglang_instrument import native
from sglang_instrument.native.stamps import NEEDS, PARTS, stamp_of

ROOT = Path(native.__file__).parents[2]  # the source tree or the installed package
NOT_BUILT = "the compiled parts are not built: `make native`"
ASKED_FOR_PURE = os.environ.get("SGLANG_INSTRUMENT_NATIVE") == "0"

SEEN = """
import asyncio, json, sys
import sglang_instrument as si
from sglang_instrument import native
from sglang_instrument.testing import records

@si.instrument
async def turn(number):
    async with si.span("parse", tokens=number):
        await asyncio.sleep(0)

with records() as seen, si.bind(step=3, worker=1, request_id="r"):
    asyncio.run(turn(7))
    si.event("after")
kept = [{key: record.get(key) for key in ("event", "extra", "step", "task")} for record in seen]
print(json.dumps([native.ON, native.REASON, kept]))
"""


def answer_of(package_parent, **environment):
    """Import the package from a folder in a process; return whether it is compiled, why not, its records."""
    done = subprocess.run(
        [sys.executable, "-c", SEEN],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=package_parent,
        env={**os.environ, "PYTHONPATH": str(package_parent), "SGLANG_INSTRUMENT_NATIVE": "", **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def built(root, part):
    """Return the compiled files of a part, for each Python."""
    *folders, name = PARTS[part].split(".")
    return list(root.joinpath(*folders).glob(f"{name}.*.so"))


def is_built():
    return all(built(ROOT, part) for part in PARTS)


@pytest.fixture
def copied(tmp_path):
    """A copy of the package with compiled parts, for tests that damage it."""
    ignored = shutil.ignore_patterns("__pycache__", ".build*")
    shutil.copytree(ROOT / "sglang_instrument", tmp_path / "sglang_instrument", ignore=ignored)
    return tmp_path


@pytest.fixture(scope="module")
def compiled():
    """Skip where nothing is built, as on a machine without a compiler, and where the whole suite is pure."""
    if ASKED_FOR_PURE:
        pytest.skip("these tests start pure processes themselves, beside compiled ones")
    if not is_built():
        pytest.skip(NOT_BUILT)


@pytest.fixture(scope="module")
def pure(compiled):
    """What a process without compiled parts tells."""
    return answer_of(ROOT, SGLANG_INSTRUMENT_NATIVE="0")


@pytest.mark.skipif(not is_built(), reason=NOT_BUILT)
def test_what_was_built_is_used_unless_it_is_asked_not_to():
    assert native.ON is not ASKED_FOR_PURE, native.REASON
    assert (native.REASON is None) is not ASKED_FOR_PURE


def test_pure_and_compiled_processes_record_the_same(pure):
    with_it = answer_of(ROOT)
    assert (with_it[:2], pure[:2]) == ([True, None], [False, "SGLANG_INSTRUMENT_NATIVE=0"])
    assert with_it[2] == pure[2]
    assert [record["event"] for record in pure[2]] == ["parse", "turn", "after"]


@pytest.mark.parametrize("part", PARTS)
def test_one_part_with_what_it_needs_records_the_same(pure, part):
    on, reason, records = answer_of(ROOT, SGLANG_INSTRUMENT_NATIVE=part)
    assert on
    assert reason == f"SGLANG_INSTRUMENT_NATIVE={part}"
    assert records == pure[2]


def test_an_unknown_part_is_reported_and_everything_is_pure():
    on, reason, records = answer_of(ROOT, SGLANG_INSTRUMENT_NATIVE="spans,spam")
    assert not on
    assert "no part 'spam', there are values, tasks" in reason
    assert records


def test_parts_need_parts():
    assert {part for needed in NEEDS.values() for part in needed} <= PARTS.keys()


@pytest.mark.parametrize("part", PARTS)
def test_what_a_compiled_module_replaces_is_in_both_in_the_same_order(part):
    pure, compiled = ast.parse(pure_source(part)), compiled_names(part)
    defined = pure_names(pure)
    replaced = replaced_by(pure)
    assert set(replaced) <= set(compiled)
    assert set(replaced) <= set(defined) | imported_by(pure)
    both = [name for name in compiled if name in defined]
    assert both == sorted(both, key=defined.index)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_compiled_that_the_pure_module_does_not_use(part):
    source = pure_source(part)
    pure = ast.parse(source)
    both = {*pure_names(pure)} & {*compiled_names(part)}
    assert both <= {*replaced_by(pure), *re.findall(r"_compiled\.(\w+)", source)}


def pure_source(part):
    folder, name = PARTS[part].rsplit(".", 1)
    return (ROOT / folder.replace(".", "/") / f"{name.removeprefix('_')}.py").read_text()


def pure_names(tree):
    """Return the functions, classes and variables that a pure module defines, in order."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            stored = (node_inside for node_inside in ast.walk(node) if isinstance(node_inside, ast.Name))
            names += [name.id for name in stored if isinstance(name.ctx, ast.Store)]
    return names


def imported_by(tree):
    """Return the names that a pure module imports for others: `from ... import name as name`."""
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {alias.name for node in imports for alias in node.names if alias.asname}


def replaced_by(tree):
    """Return the names that a pure module gives to `use_compiled`."""
    [call] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "native.use_compiled"
    ]
    return [node.value for node in ast.walk(call) if isinstance(node, ast.Constant)]


def compiled_names(part):
    """Return the Python functions, classes and variables of a .pyx and of what it includes, in order."""

    def expanded(path):
        source = (ROOT / path).read_text()
        return re.sub(r'^include "(.*)"$', lambda line: expanded(line[1]), source, flags=re.MULTILINE)

    source = expanded(PARTS[part].replace(".", "/") + ".pyx")
    definitions = re.findall(
        r"^(?:(?:def|cdef class|cpdef \w+) (?=\w+[(:])(\w+)|(\w+(?:, \w+)*) = )", source, re.MULTILINE
    )
    return [name for defined, assigned in definitions for name in (defined or assigned).split(", ")]


def test_parts_of_another_state_of_the_sources_are_refused(compiled, copied):
    source = copied / "sglang_instrument/recording/measure/_spans.pyx"
    source.write_text(source.read_text() + "\n# changed\n")
    on, reason, records = answer_of(copied)
    assert not on
    assert "spans was built from other sources" in reason
    assert records


def test_one_missing_part_turns_all_of_them_off(compiled, copied):
    for file in built(copied, "region_spans"):
        file.unlink()
    on, reason, records = answer_of(copied)
    assert not on
    assert "patching.probes._region_spans was not built for this Python" in reason
    assert records


def test_a_broken_file_is_no_reason_to_fail(compiled, copied):
    for file in built(copied, "spans"):
        file.write_bytes(b"not a library")
    on, reason, records = answer_of(copied)
    assert not on
    assert reason.startswith("ImportError")
    assert records


def test_a_stamp_covers_what_a_module_includes_and_cimports(tmp_path):
    folder = tmp_path / "sglang_instrument"
    folder.mkdir()
    (folder / "one.pyx").write_text(
        'include "sglang_instrument/part.pxi"\n'
        "from sglang_instrument.two cimport Two\nfrom libc.math cimport floor\n"
    )
    for name in ("part.pxi", "two.pxd", "other.pxd", "one.pxd"):
        (folder / name).write_text("")
    before = stamp_of(str(tmp_path), "sglang_instrument.one")
    (folder / "other.pxd").write_text("# nothing of ours")
    assert stamp_of(str(tmp_path), "sglang_instrument.one") == before
    for name in ("part.pxi", "two.pxd", "one.pyx", "one.pxd"):
        (folder / name).write_text((folder / name).read_text() + "# changed\n")
        changed = stamp_of(str(tmp_path), "sglang_instrument.one")
        assert changed != before
        before = changed


def test_status_says_whether_compiled_parts_are_used(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPERIMENT_NAME", "run")
    sglang_instrument.install(log_dir=str(tmp_path), trainers="none")
    try:
        said = sglang_instrument.status()
    finally:
        sglang_instrument.uninstall()
    assert (said["native"], said["native_reason"]) == (native.ON, native.REASON)


def test_public_functions_show_their_signature_and_docstring():
    assert list(inspect.signature(sglang_instrument.span).parameters) == ["event", "phase", "extra"]
    assert list(inspect.signature(sglang_instrument.event).parameters) == ["name", "phase", "extra"]
    assert "Time a block, as in" in sglang_instrument.span.__doc__
    assert "Record an instant event: " in sglang_instrument.event.__doc__
    assert sglang_instrument.span.__module__ == "sglang_instrument.recording.measure.spans"
