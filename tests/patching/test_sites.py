"""Each region of a table is found, or its site says why not; any order of changes ends as asked for."""

import asyncio
import importlib
import itertools
import subprocess
import sys
import textwrap
import threading

import pytest
from planted import Notes, plant, snapshot, table

from sglang_instrument.errors import TableError
from sglang_instrument.patching.rewriting.patcher import Patcher

SOURCE = """
import asyncio


def pad(x):
    return x


class A:
    def work(self, n):
        a = pad(n)
        return a

    async def two(self, n):
        a = pad(n)
        await asyncio.sleep(0)
        return pad(a)


class B(A):
    pass


work_alias = A.work
"""
WHOLE = {"target": "A.work", "region": [{"event": "work"}]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("planted_module", None)
    sys.modules.pop("planted_other", None)


@pytest.fixture
def make():
    """Make patchers, and uninstall them at the end of the test."""
    made = []

    def patcher(*patches, **keys):
        notes = Notes()
        new = Patcher([table(*patches, **keys)], make_probe=notes.probe)
        made.append(new)
        return new, notes

    yield patcher
    for made_patcher in made:
        made_patcher.uninstall()


def states(patcher):
    return [site.state for site in patcher.results()]


@pytest.mark.parametrize(
    "order", [*itertools.permutations("imu"), *itertools.product("iu", "m", "iu", "iu", "iu")]
)
def test_any_order_of_import_install_and_uninstall_ends_in_the_state_last_asked_for(folder, make, order):
    patcher, notes = make(WHOLE)
    for action in order:
        if action == "m":
            module = plant(folder, SOURCE)
        elif action == "i":
            patcher.install()
        else:
            patcher.uninstall()
    last = [action for action in order if action != "m"][-1]
    module.A().work(1)
    assert notes.events == (["work"] if last == "i" else [])
    patcher.uninstall()
    pristine = snapshot(module, module.A)
    notes.clear()
    patcher.install()
    module.A().work(1)
    assert notes.events == ["work"]
    patcher.uninstall()
    assert snapshot(module, module.A) == pristine


def test_a_module_imported_while_installed_looks_as_if_we_had_not_been_there(folder, make):
    plain = plant(folder, SOURCE)
    loader, finders = type(plain.__loader__), list(sys.meta_path)
    patcher, _ = make(WHOLE)
    patcher.install()
    module = plant(folder, SOURCE)
    assert type(module.__loader__) is loader
    assert module.__spec__.loader is module.__loader__
    patcher.uninstall()
    assert sys.meta_path == finders


def test_installing_twice_records_once_and_uninstalling_twice_is_harmless(folder, make):
    module = plant(folder, SOURCE)
    before = snapshot(module, module.A)
    patcher, notes = make(WHOLE)
    patcher.install()
    patcher.install()
    module.A().work(1)
    assert notes.events == ["work"]
    assert patcher.uninstall() == []
    assert patcher.uninstall() == []
    assert snapshot(module, module.A) == before


def test_names_copied_before_and_after_see_the_same_function(folder, make):
    module = plant(folder, SOURCE)
    patcher, notes = make(WHOLE)
    early = module.A.work
    patcher.install()
    late, alias = module.A.work, module.work_alias
    for function in (early, late, alias):
        function(module.A(), 1)
    assert notes.events == ["work"] * 3
    patcher.uninstall()
    for function in (early, late, alias):
        function(module.A(), 1)
    assert len(notes.events) == 3


def test_a_coroutine_suspended_across_install_and_uninstall_finishes_right(folder, make):
    module = plant(folder, SOURCE)
    patcher, notes = make({"target": "A.two", "region": [{"event": "late", "after": "sleep"}]})

    async def main():
        before = module.A().two(1)
        before.send(None)  # suspended in the original code
        patcher.install()
        within = module.A().two(2)
        within.send(None)
        patcher.uninstall()
        results = []
        for coroutine in (before, within):
            with pytest.raises(StopIteration) as stopped:
                coroutine.send(None)
            results.append(stopped.value.value)
        return results

    assert asyncio.run(main()) == [1, 2]
    assert notes.events == ["late"]  # the old frame still runs the rewritten code, harmlessly


def test_source_that_was_edited_since_the_import_is_refused(folder, make):
    module = plant(folder, SOURCE)
    code = module.A.work.__code__
    (folder / "planted_module.py").write_text(SOURCE.replace("return a", "return a + 0"))
    patcher, _ = make(WHOLE)
    patcher.install()
    (site,) = patcher.results()
    assert site.state == "changed"
    assert "differs from the running code" in site.note
    assert module.A.work.__code__ is code


def test_what_somebody_else_patched_is_refused_and_left_alone(folder, make):
    module = plant(folder, SOURCE)
    other = (lambda self, n: "other").__code__
    module.A.work.__code__ = other
    patcher, _ = make(WHOLE)
    patcher.install()
    assert states(patcher) == ["changed"]
    assert patcher.uninstall() == []
    assert module.A.work.__code__ is other


def test_what_somebody_patched_after_us_stays_and_is_named(folder, make):
    module = plant(folder, SOURCE)
    patcher, _ = make(WHOLE)
    patcher.install()
    other = (lambda self, n: "other").__code__
    module.A.work.__code__ = other
    assert patcher.uninstall() == ["planted_module.A.work: other code has changed its __code__ since"]
    assert module.A().work(1) == "other"


def test_a_function_without_source_is_named(folder, make):
    module = plant(folder, SOURCE)
    (folder / "planted_module.py").unlink()
    patcher, _ = make(WHOLE)
    patcher.install()
    assert states(patcher) == ["no-source"]
    assert module.A().work(3) == 3


def test_a_target_that_is_not_there_is_missing_and_its_neighbours_are_not(folder, make):
    plant(folder, SOURCE)
    patcher, _ = make({"target": ["A.gone", "Gone.work"], "region": [{"event": "gone"}]}, WHOLE)
    patcher.install()
    gone, work = patcher.results()
    assert (gone.state, gone.note) == ("missing", "planted_module has no A.gone or Gone.work")
    assert (work.state, work.lines) == ("found", (11, 12))


def test_a_module_that_nobody_imported_is_pending(make):
    patcher, _ = make({"target": "f", "region": [{"event": "e"}]}, module="planted_nowhere")
    patcher.install()
    assert states(patcher) == ["pending"]


def test_the_first_candidate_that_exists_is_taken(folder, make):
    module = plant(folder, SOURCE)
    patcher, notes = make({"target": ["A.gone", "A.work", "A.two"], "region": [{"event": "e"}]})
    patcher.install()
    module.A().work(1)
    asyncio.run(module.A().two(1))
    assert notes.events == ["e"]
    assert [site.target.name for site in patcher.results()] == ["A.work"]


def test_two_names_of_one_function_record_once(folder, make):
    module = plant(folder, SOURCE)
    patcher, notes = make(
        {"target": "A.work", "region": [{"event": "outer"}]},
        {"target": "B.work", "region": [{"event": "inner"}]},
    )
    patcher.install()
    module.B().work(1)
    assert notes.events == ["outer", "inner"]


def test_a_function_reached_from_a_module_imported_later_is_done_again_with_both(folder, make):
    module = plant(folder, SOURCE)
    before = snapshot(module, module.A)
    patcher, notes = make(
        WHOLE, {"target": "planted_other:C.work", "region": [{"event": "other", "at": "pad"}]}
    )
    patcher.install()
    other = plant(folder, "from planted_module import A\nclass C(A): pass\n", "planted_other")
    other.C().work(1)
    assert notes.events == ["work", "other"]
    assert states(patcher) == ["found", "found"]
    patcher.uninstall()
    assert snapshot(module, module.A) == before


def test_a_reloaded_module_is_patched_again(folder, make):
    module = plant(folder, SOURCE)
    patcher, notes = make(WHOLE)
    patcher.install()
    importlib.reload(module)
    module.A().work(1)
    assert notes.events == ["work"]


def test_variants_of_an_event_are_told_apart_by_requires(folder, make, monkeypatch):
    monkeypatch.setattr(
        "sglang_instrument.patching.rewriting.patcher.installed_version", lambda package: "0.5.2"
    )
    plant(folder, SOURCE)
    variants = [
        {"event": "part", "at": "pad", "requires": "<0.5"},
        {"event": "part", "from": "pad", "requires": ">=0.5"},
        {"event": "new", "at": "nowhere", "requires": ">=0.6"},
    ]
    patcher, _ = make({"target": "A.work", "region": variants})
    patcher.install()
    shown = [(site.state, site.expected) for site in patcher.results()]
    assert shown == [("missing", False), ("found", True), ("missing", False)]


def test_a_variant_for_another_version_is_taken_where_its_shape_is_the_only_one(folder, make, monkeypatch):
    monkeypatch.setattr(
        "sglang_instrument.patching.rewriting.patcher.installed_version", lambda package: "0.5.2"
    )
    plant(folder, SOURCE)
    variants = [
        {"event": "part", "at": "pad", "requires": "<0.5"},
        {"event": "part", "at": "nowhere", "requires": ">=0.5"},
    ]
    patcher, _ = make({"target": "A.work", "region": variants})
    patcher.install()
    assert states(patcher)[0] == "found"


def test_a_field_that_is_not_in_the_language_costs_its_region_alone(folder):
    module = plant(folder, SOURCE)
    notes = Notes()

    def make_probe(region):
        if region.event == "bad":
            raise TableError("patches/x.toml: bad field")
        return notes.probe(region)

    patch = {"target": "A.work", "region": [{"event": "bad"}, {"event": "good"}]}
    patcher = Patcher([table(patch)], make_probe=make_probe)
    patcher.install()
    assert [(site.state, site.note) for site in patcher.results()] == [
        ("refused", "patches/x.toml: bad field"),
        ("found", ""),
    ]
    module.A().work(1)
    assert notes.events == ["good"]
    patcher.uninstall()


def test_an_error_while_patching_never_reaches_the_import(folder):
    def make_probe(region):
        raise RuntimeError("planted")

    patcher = Patcher([table(WHOLE)], make_probe=make_probe)
    patcher.install()
    module = plant(folder, SOURCE)
    assert module.A().work(1) == 1
    (site,) = patcher.results()
    assert site.state == "refused"
    assert "planted" in site.note
    patcher.uninstall()


def test_an_import_that_fails_fails_as_before(folder, make):
    patcher, _ = make(WHOLE, {"target": "planted_nowhere:f", "region": [{"event": "nowhere"}]})
    patcher.install()
    with pytest.raises(ZeroDivisionError):
        plant(folder, "1 / 0\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'planted_nowhere'"):
        importlib.import_module("planted_nowhere")
    plant(folder, SOURCE)
    assert states(patcher) == ["found", "pending"]


def test_a_package_and_its_submodule_can_both_be_targets(folder, make):
    package = folder / "planted_package"
    package.mkdir()
    (package / "__init__.py").write_text("from planted_package.inner import g\ndef f(): return g()\n")
    (package / "inner.py").write_text("def g(): return 1\n")
    patcher, notes = make(
        {"target": "planted_package:f", "region": [{"event": "f"}]},
        {"target": "planted_package.inner:g", "region": [{"event": "g"}]},
    )
    patcher.install()
    module = importlib.import_module("planted_package")
    assert module.f() == 1
    assert notes.events == ["f", "g"]
    for name in ("planted_package", "planted_package.inner"):
        sys.modules.pop(name)


def test_the_patch_listener_is_called_once_per_change_and_not_by_queries(folder):
    changes = []
    patcher = Patcher(
        [table(WHOLE)], make_probe=Notes().probe, patched=lambda: changes.append(patcher.results())
    )
    patcher.install()
    assert changes == []  # nothing is imported
    plant(folder, SOURCE)
    assert len(changes) == 1
    assert states(patcher) == ["found"]
    patcher.install()
    assert len(changes) == 1
    patcher.uninstall()


def test_a_function_built_into_c_is_wrapped_and_put_back(folder):
    module = plant(
        folder, "from math import sqrt\nfrom math import sqrt as kept\nclass S:\n    root = sqrt\n"
    )
    before = snapshot(module, module.S)
    notes = Notes()

    def wrap(function, probe):
        def wrapper(*args):
            with probe():
                return function(*args)

        return wrapper

    patch = {"target": "sqrt", "region": [{"event": "sqrt"}, {"event": "part", "at": "x"}]}
    patcher = Patcher([table(patch)], make_probe=notes.probe, wrap=wrap)
    patcher.install()
    copied = plant(folder, "from planted_module import sqrt\n", "planted_other")
    assert (module.sqrt(4.0), copied.sqrt(9.0)) == (2.0, 3.0)
    assert notes.events == ["sqrt", "sqrt"]
    assert states(patcher) == ["found", "no-source"]
    patcher.uninstall()
    assert snapshot(module, module.S) == before
    assert copied.sqrt is module.kept


def test_the_methods_behind_an_actor_class_are_reached(folder, make):
    source = SOURCE + (
        "class Modified(A): pass\n"
        "class Metadata: modified_class = Modified\n"
        "class Actor: __ray_metadata__ = Metadata()\n"
    )
    module = plant(folder, source)
    patcher, notes = make({"target": "Actor.work", "region": [{"event": "work"}]})
    patcher.install()
    module.Modified().work(1)
    assert notes.events == ["work"]


def test_threads_that_install_and_uninstall_and_call_leave_everything_as_it_was(folder, make):
    module = plant(folder, SOURCE)
    before = snapshot(module, module.A)
    patcher, _ = make(WHOLE)
    wrong = []

    def switch():
        for _ in range(10):
            patcher.install()
            patcher.uninstall()

    def call():
        wrong.extend(number for number in range(2000) if module.A().work(number) != number)

    threads = [threading.Thread(target=target) for target in (switch, switch, call, call)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert snapshot(module, module.A) == before


def test_a_module_is_patched_from_an_archive(folder, make, tmp_path):
    script = """
        import sys, zipfile
        with zipfile.ZipFile("planted.zip", "w") as archive:
            archive.writestr("zipped.py", "def f(n):\\n    return n\\n")
        sys.path.insert(0, "planted.zip")
        import zipped
        from planted import Notes, table
        from sglang_instrument.patching.rewriting.patcher import Patcher
        notes = Notes()
        patch = {"target": "f", "region": [{"event": "f"}]}
        Patcher([table(patch, module="zipped")], make_probe=notes.probe).install()
        zipped.f(1)
        print(notes.events)
    """
    code = f"import sys; sys.path[:0] = {sys.path!r}\n" + textwrap.dedent(script)
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.stdout.strip(), run.stderr) == ("['f']", "")


def test_functions_of_one_definition_have_each_their_own_regions(folder, make):
    source = "def make():\n    def f(n):\n        return n\n    return f\none, two = make(), make()\n"
    module = plant(folder, source)
    before = snapshot(module)
    patcher, notes = make(
        {"target": "one", "region": [{"event": "one"}]},
        {"target": "two", "region": [{"event": "two"}]},
        {"target": "planted_other:three", "region": [{"event": "three"}]},
    )
    patcher.install()
    other = plant(folder, "from planted_module import one as three\n", "planted_other")
    assert states(patcher) == ["found"] * 3
    assert (other.three(1), module.two(2)) == (1, 2)
    assert notes.events == ["one", "three", "two"]
    patcher.uninstall()
    assert snapshot(module) == before


def test_a_field_whose_local_is_not_there_is_named_and_its_neighbours_are_read(folder, make):
    region = {"event": "work", "exit": {"length": "size(tokens)", "n": "n", "either": "tokens | n"}}
    module = plant(folder, SOURCE)
    patcher, _ = make({"target": "A.work", "region": [region]})
    patcher.install()
    assert [(site.state, site.note) for site in patcher.results()] == [("found", "no local for length")]
    assert module.A().work(3) == 3


def test_a_local_of_a_function_around_is_no_missing_one(folder, make):
    source = "def make(size):\n    def f(n):\n        return n * size\n    return f\nf = make(2)\n"
    plant(folder, source)
    patcher, _ = make({"target": "f", "region": [{"event": "f", "exit": {"size": "size", "gone": "other"}}]})
    patcher.install()
    assert [site.note for site in patcher.results()] == ["no local for gone; write a string as \"'other'\""]
