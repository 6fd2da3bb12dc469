"""A detector is one file with its causes and its advice, and a planted cause of the same name."""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import sglang_instrument.testing.causes as planted_causes
from sglang_instrument.analysis.verdict.detectors import CAUSES, DETECTORS, JOINERS
from sglang_instrument.analysis.verdict.evidence.detector import Detector, Joiner
from sglang_instrument.testing.causes import Cause as PlantedCause

ALL = (*DETECTORS, *JOINERS)
ROOT = Path(__file__).resolve().parents[3]


def planted_in(module: ModuleType) -> set[str]:
    """Return the words of the causes that a module of `testing.causes` defines."""
    classes = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, PlantedCause) and kind.__module__ == module.__name__
    ]
    return {word for kind in classes for word in kind.words()}


@pytest.mark.parametrize("known", ALL, ids=lambda known: known.name.rpartition(".")[2])
def test_each_detector_has_a_planted_cause_of_its_name_or_says_why_not(known: Detector | Joiner) -> None:
    plantable = {cause.name for cause in known.causes if not cause.not_planted}
    if plantable:
        stem = known.name.rpartition(".")[2]
        module = importlib.import_module(f"sglang_instrument.testing.causes.{stem}")
        assert planted_in(module) == plantable
    assert known.causes
    assert all(cause.advice and cause.named_if and cause.scopes for cause in known.causes)


def test_each_planted_cause_has_a_detector() -> None:
    modules = [
        importlib.import_module(f"{planted_causes.__name__}.{path.stem}")
        for path in Path(planted_causes.__path__[0]).glob("*.py")
    ]
    words = set().union(*map(planted_in, modules))
    assert words <= CAUSES.keys()


def test_no_two_detectors_name_one_cause() -> None:
    names = [cause.name for known in ALL for cause in known.causes]
    assert len(names) == len(set(names)) == len(CAUSES)


def test_each_file_holds_one_detector() -> None:
    names = [known.name for known in ALL]
    assert len(names) == len(set(names))
    folder = ROOT / "sglang_instrument/analysis/verdict/detectors"
    files = [path for path in folder.rglob("*.py") if path.stem != "__init__"]
    assert {name.rpartition(".")[2] for name in names} == {path.stem for path in files}


def test_advice_names_commands_in_places_that_can_be_filled() -> None:
    for cause in CAUSES.values():
        for advice in (cause.advice, cause.advice_of_step):
            assert set(re.findall(r"\{(\w+)\}", advice)) <= {"step", "worker", "workers", "request", "update"}
