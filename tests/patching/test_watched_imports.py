"""An import that is watched looks as without this package: warnings, tracebacks, specs and lazy modules."""

import pytest

TABLE = """
trainer = "mine"
module = "watched"
[[patch]]
target = "work"
region = [{ event = "work" }]
[[patch]]
target = "watched_too:work"
region = [{ event = "work" }]
"""
PRELUDE = """
import copy, importlib, importlib.machinery, importlib.util, os, pickle, sys, traceback, warnings
import sglang_instrument as si
sys.path.insert(0, os.getcwd())
def install():
    if "ON" in os.environ:
        si.install(patches="tables", trainers=["mine"])
"""


@pytest.fixture
def same(tmp_path, start_script):
    """Run a program with this package and without; return what both print, and the records of the first."""
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/mine.toml").write_text(TABLE)

    def run_once(program, module, **environment):
        (tmp_path / "watched.py").write_text(module)
        (tmp_path / "watched_too.py").write_text("def work(): return 2\n")
        return start_script(PRELUDE + program, **environment).wait()

    def run(program, module="def work(): return 1\n"):
        ours, plain = run_once(program, module, ON="1"), run_once(program, module)
        assert ours.stdout == plain.stdout
        assert "was skipped" not in ours.stderr
        return ours.stdout, [r["event"] for rs in ours.records.values() for r in rs].count("work")

    return run


def test_a_warning_of_a_module_names_the_line_that_imports_it(same):
    printed, recorded = same(
        """
install()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import watched
    importlib.reload(watched)
print([(each.filename, each.lineno) for each in caught])
watched.work()
""",
        "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)\ndef work(): return 1\n",
    )
    assert recorded == 1
    assert "<string>" in printed


FAILURES = pytest.mark.parametrize("failure", ["1 / 0", "import nowhere", "raise KeyError('x')", "def"])


@FAILURES
def test_the_traceback_of_a_failed_import_is_as_without_us(same, failure):
    printed, recorded = same(
        """
install()
for action in (lambda: importlib.import_module("watched"), lambda: __import__("watched")):
    try:
        action()
    except BaseException:
        print(traceback.format_exc())
""",
        failure + "\n",
    )
    assert printed.count("Traceback") == 2
    assert recorded == 0


@FAILURES
def test_the_traceback_of_a_failed_reload_has_no_line_of_ours(same, failure):
    same(
        f"""
install()
import watched_too
with open("watched_too.py", "w") as other:
    other.write({failure!r} + " #  longer than before")
try:
    importlib.reload(watched_too)
except BaseException:
    shown = traceback.format_exc()
print([line for line in shown.splitlines() if "<frozen importlib" not in line])
"""
    )


def test_a_finder_that_raises_fails_the_import_without_a_line_of_ours(same):
    same(
        """
install()
class Refusing:
    def find_spec(self, name, path, target=None):
        if name == "watched":
            raise ImportError("refused")
sys.meta_path.insert(sys.meta_path.index(importlib.machinery.BuiltinImporter), Refusing())
try:
    import watched
except ImportError:
    print(traceback.format_exc())
"""
    )


def test_a_spec_that_is_asked_for_has_the_modules_own_loader_and_can_be_copied(same):
    _, recorded = same(
        """
install()
spec = importlib.util.find_spec("watched")
print(type(spec.loader), isinstance(spec, type(sys.__spec__)), repr(spec)[:30])
for twin in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
    print(type(twin) is type(sys.__spec__), twin == spec, vars(twin).keys() == vars(spec).keys())
import watched
print(type(watched.__spec__) is type(sys.__spec__), watched.__spec__ == spec)
watched.work()
si.uninstall()
print(type(spec) is type(sys.__spec__))
"""
    )
    assert recorded == 1


LAZY = """
def make_lazy():
    spec = importlib.util.find_spec("watched")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["watched"] = module
    spec.loader.exec_module(module)
    return module
"""
LOUD = "print('runs', __spec__.loader is __loader__, type(__loader__))\ndef work(): return 1\n"


@pytest.mark.parametrize("order", ["install(); module = make_lazy()", "module = make_lazy(); install()"])
def test_a_lazy_module_is_not_loaded_by_us_and_is_patched_when_it_loads(same, order):
    printed, recorded = same(
        LAZY
        + order
        + """
si.status()
print("not yet")
module.work()
print(*map(type, (module.__spec__, module.__spec__.loader, vars(module)["__loader__"])))
module.work()
""",
        LOUD,
    )
    assert printed.startswith("not yet")
    assert printed.count("runs True") == 1
    assert recorded == 2


def test_a_lazy_module_that_is_not_loaded_before_uninstall_stays_as_it_was(same):
    printed, recorded = same(
        LAZY
        + """
module = make_lazy()
before = dict(object.__getattribute__(module, "__spec__").__dict__)
install()
si.uninstall()
spec = object.__getattribute__(module, "__spec__")
print(type(spec), [key for key in before if spec.__dict__[key] is not before[key]])
module.work()
""",
        LOUD,
    )
    assert printed.count("runs True") == 1
    assert recorded == 0


def test_a_finder_of_lazy_modules_is_followed(same):
    printed, recorded = same(
        """
install()
class Lazily:
    def find_spec(self, name, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if name == "watched":
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec
sys.meta_path.insert(sys.meta_path.index(importlib.machinery.BuiltinImporter), Lazily())
import watched
print("not yet")
watched.work()
""",
        LOUD,
    )
    assert printed.startswith("not yet")
    assert recorded == 1


def test_threads_that_import_one_module_all_get_it_patched(same):
    _, recorded = same(
        """
import threading
install()
results, ready = [], threading.Barrier(8)
def take():
    ready.wait()
    import watched
    results.append(watched.work())
threads = [threading.Thread(target=take) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(results)
""",
        "import time\ntime.sleep(0.05)\ndef work(): return 1\n",
    )
    assert recorded == 8


def test_a_module_that_replaces_itself_is_patched_where_the_import_takes_it_from(same):
    _, recorded = same(
        """
install()
import watched
print(watched.__name__, watched.work())
""",
        "import sys, types\nreal = sys.modules[__name__] = types.ModuleType('real')\n"
        "def work(): return 3\nreal.work = work\ndel work\n",
    )
    assert recorded == 1


@pytest.mark.parametrize("notices", ["si.status()", "import watched_too"])
def test_a_module_that_a_program_executes_itself_is_patched_at_the_next_status_or_watched_import(
    same, notices
):
    _, recorded = same(
        f"""
install()
spec = importlib.util.find_spec("watched")
module = importlib.util.module_from_spec(spec)
sys.modules["watched"] = module
spec.loader.exec_module(module)
print(type(spec.loader), vars(spec.loader), module.__loader__ is spec.loader)
module.work()
{notices}
module.work()
"""
    )
    assert recorded == 1
