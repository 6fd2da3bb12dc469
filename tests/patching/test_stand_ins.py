"""Targets that are mocks or RPC stubs, and modules that raise: each is named, and costs no other target."""

import sys
import types
from unittest import mock

import pytest
from planted import Notes, plant, snapshot, table

import sglang_instrument
from sglang_instrument.patching.rewriting.patcher import Patcher

SOURCE = """
def work(): return 1
class C:
    def go(self): return 1
"""
TABLE = """
trainer = "mine"
module = "planted_module"
[[patch]]
target = "C.go"
region = [{ event = "go" }]
[[patch]]
target = "work"
region = [{ event = "work" }]
"""


class Stub:
    """Answers each name with a new object, and counts what it is asked."""

    asked = 0

    def __getattr__(self, name):
        Stub.asked += 1
        return Stub()

    def __call__(self, *arguments):
        return 5


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables/mine.toml").write_text(TABLE)
    monkeypatch.delitem(sys.modules, "planted_module", raising=False)  # tests of other files plant it, too
    yield tmp_path
    sys.modules.pop("planted_module", None)


@pytest.fixture
def states(install, folder):
    """Install with the table; return the state and the note of each target."""

    def install_here():
        install(patches=str(folder / "tables"), trainers=["mine"])
        return {
            each["event"]: (each["state"], each.get("note")) for each in sglang_instrument.status()["patches"]
        }

    return install_here


STAND_INS = {
    "Mock": mock.Mock(return_value=5),
    "MagicMock": mock.MagicMock(return_value=5),
    "of a function": mock.Mock(spec=lambda: 1, return_value=5),
    "Stub": Stub(),
}


@pytest.mark.parametrize("stand_in", STAND_INS.values(), ids=STAND_INS.keys())
@pytest.mark.parametrize("wrapper", [lambda target: target, staticmethod, classmethod, property])
def test_a_target_that_answers_for_any_attribute_is_left_alone_and_named(folder, states, stand_in, wrapper):
    module = plant(folder, SOURCE)
    module.C.go = wrapper(stand_in)
    before, asked = vars(module.C)["go"], Stub.asked
    assert states()["work"] == ("found", None)
    if wrapper is classmethod or wrapper is property:  # Python itself calls it
        return
    assert states()["go"][0] in ("no-source", "found")
    assert vars(module.C)["go"] is before or wrapper is staticmethod
    assert module.C().go() == 5
    assert Stub.asked == asked
    sglang_instrument.uninstall()
    assert vars(module.C)["go"] is before


def test_a_mock_says_why_it_is_not_measured(folder, states):
    module = plant(folder, SOURCE)
    with mock.patch.object(module.C, "go", return_value=5) as go:
        state, note = states()["go"]
        assert state == "no-source"
        assert "MagicMock" in note
        assert module.C().go() == 5
        go.assert_called_once()
    sglang_instrument.uninstall()
    assert module.C().go() == 1


def test_the_function_behind_decorators_that_store_it_is_still_reached(folder, states):
    module = plant(
        folder,
        "import functools\n"
        "def plain(f):\n    def wrapper(*a): return f(*a)\n    return wrapper\n"
        "class Slotted:\n    __slots__ = ('__wrapped__',)\n    def __init__(self, f): self.__wrapped__ = f\n"
        "    def __call__(self): return self.__wrapped__()\n"
        "@Slotted\n@functools.lru_cache\n@plain\ndef work(): return 1\n"
        "class C:\n    @functools.cached_property\n    def go(self): return 1\n",
    )
    assert states() == {"go": ("found", None), "work": ("found", None)}
    assert (module.work(), module.C().go) == (1, 1)


def test_closures_that_lead_on_without_an_end_are_left_after_a_bounded_search(folder, states):
    module = plant(folder, SOURCE)

    def wrapped(inner):
        return lambda: inner()

    work = lambda: 1  # noqa: E731 - a function of another name
    for _ in range(100_000):
        work = wrapped(work)
    module.work = work
    assert states()["go"] == ("found", None)


RAISING = "def __getattr__(name): raise {}\n"


@pytest.mark.parametrize("error", ["KeyError(name)", "RuntimeError(name)", "ImportError(name)", "SystemExit"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_module_that_raises_for_unknown_names_is_patched(folder, states, error, when):
    if when == "before":
        module = plant(folder, SOURCE + RAISING.format(error))
    before = states()
    if when == "after":
        assert before == {"go": ("pending", "not imported yet"), "work": ("pending", "not imported yet")}
        module = plant(folder, SOURCE + RAISING.format(error))
    assert states() == {"go": ("found", None), "work": ("found", None)}
    sglang_instrument.uninstall()
    untouched = snapshot(module, module.C)
    states()
    sglang_instrument.uninstall()
    assert snapshot(module, module.C) == untouched


@pytest.mark.parametrize("stand_in", [mock.MagicMock(), Stub(), types.SimpleNamespace(work=len)])
def test_a_stand_in_for_a_module_is_named_and_not_asked(folder, states, monkeypatch, stand_in):
    monkeypatch.setitem(sys.modules, "planted_module", stand_in)
    asked = Stub.asked
    for state, note in states().values():
        assert state == "missing"
        assert f"has a {type(stand_in).__name__} of this name" in note
    assert Stub.asked == asked


@pytest.mark.parametrize("stand_in", [mock.MagicMock(), Stub(), object(), types.ModuleType("ray")])
def test_a_stand_in_for_ray_is_left_alone(install, monkeypatch, stand_in, caplog):
    if isinstance(stand_in, types.ModuleType):
        stand_in.init = mock.Mock()
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    known = dict(getattr(stand_in, "__dict__", {}))
    install()
    assert sglang_instrument.installed()
    assert dict(getattr(stand_in, "__dict__", {})) == known
    assert not [record for record in caplog.records if "skipped" in record.message]


def test_a_patch_whose_search_fails_is_named_and_the_others_are_applied(folder):
    plant(folder, SOURCE)
    failing = table(
        {"target": "C.go", "region": [{"event": "go", "requires": ">=1"}]},
        {"target": "work", "region": [{"event": "work"}]},
    )
    object.__setattr__(failing, "package", 5)  # importlib.metadata raises for such a name
    patcher = Patcher([failing], make_probe=Notes().probe)
    patcher.install()
    go, work = patcher.results()
    assert (go.state, go.note) == ("refused", "the search for it failed: TypeError")
    assert work.state == "found"
    patcher.uninstall()
