"""The compiled parts are used where they were built, all of them or none, and nobody has to notice which."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_instrument
from sglang_instrument import native
from sglang_instrument.native.stamps import MODULES, stamp_of

ROOT = Path(native.__file__).parents[2]  # the tree, or what is installed
NATIVE = Path(native.__file__).parent
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


def told(package_parent, **environment):
    """Return what a process that imports the package from there says: compiled or not, why not, records."""
    done = subprocess.run(
        [sys.executable, "-c", SEEN],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=package_parent,
        env={**os.environ, "PYTHONPATH": str(package_parent), "SGLANG_INSTRUMENT_NATIVE": "", **environment},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, compiled parts included, to be spoilt."""
    ignored = shutil.ignore_patterns("__pycache__", ".build*")
    shutil.copytree(ROOT / "sglang_instrument", tmp_path / "sglang_instrument", ignore=ignored)
    return tmp_path


@pytest.fixture(scope="module")
def compiled():
    """Skip where nothing is built, as on a machine without a compiler."""
    if not all(list(NATIVE.glob(f"{module}.*.so")) for module in MODULES):
        pytest.skip("the compiled parts are not built: `make native`")


def test_what_was_built_is_used_unless_it_is_asked_not_to(compiled):
    assert native.ON is not ASKED_FOR_PURE, native.REASON
    assert (native.REASON is None) is not ASKED_FOR_PURE


def test_pure_and_compiled_processes_record_the_same(compiled):
    with_it, without = told(ROOT), told(ROOT, SGLANG_INSTRUMENT_NATIVE="0")
    assert (with_it[:2], without[:2]) == ([True, None], [False, "SGLANG_INSTRUMENT_NATIVE=0"])
    assert with_it[2] == without[2]
    assert [record["event"] for record in without[2]] == ["parse", "turn", "after"]


def test_parts_of_another_state_of_the_sources_are_refused(compiled, copied):
    source = copied / "sglang_instrument/native/spans.pyx"
    source.write_text(source.read_text() + "\n# changed\n")
    on, reason, records = told(copied)
    assert not on
    assert "native/spans was built from another state of its sources" in reason
    assert records


def test_one_missing_part_turns_all_of_them_off(compiled, copied):
    for built in (copied / "sglang_instrument/native").glob(f"{MODULES[-1]}.*.so"):
        built.unlink()
    on, reason, records = told(copied)
    assert not on
    assert f"native.{MODULES[-1]} was not built for this Python" in reason
    assert records


def test_a_broken_file_is_no_reason_to_fail(compiled, copied):
    for built in (copied / "sglang_instrument/native").glob("spans.*.so"):
        built.write_bytes(b"not a library")
    on, reason, records = told(copied)
    assert not on
    assert reason.startswith("ImportError")
    assert records


def test_a_stamp_covers_what_a_module_includes_and_cimports(tmp_path):
    (tmp_path / "one.pyx").write_text('include "part.pxi"\nfrom sglang_instrument.native.two cimport Two\n')
    (tmp_path / "part.pxi").write_text("")
    (tmp_path / "two.pxd").write_text("")
    (tmp_path / "other.pxd").write_text("")
    before = stamp_of(str(tmp_path), "one")
    (tmp_path / "other.pxd").write_text("# nothing of ours")
    assert stamp_of(str(tmp_path), "one") == before
    for name in ("part.pxi", "two.pxd", "one.pyx"):
        (tmp_path / name).write_text((tmp_path / name).read_text() + "# changed\n")
        changed = stamp_of(str(tmp_path), "one")
        assert changed != before
        before = changed


def test_status_says_which_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPERIMENT_NAME", "run")
    sglang_instrument.install(log_dir=str(tmp_path), trainers="none")
    try:
        said = sglang_instrument.status()
    finally:
        sglang_instrument.uninstall()
    assert (said["native"], said["native_reason"]) == (native.ON, native.REASON)


def test_what_people_call_tells_its_signature_and_its_words():
    assert list(inspect.signature(sglang_instrument.span).parameters) == ["event", "phase", "extra"]
    assert list(inspect.signature(sglang_instrument.event).parameters) == ["name", "phase", "extra"]
    assert "Time a block, as in" in sglang_instrument.span.__doc__
    assert "Record an instant event: " in sglang_instrument.event.__doc__
    assert sglang_instrument.span.__module__ == "sglang_instrument.recording.spans"
