"""Let one detector look, where a test compares what depends on no finding: all 30 take longest."""

from functools import partial

import pytest

from sglang_instrument.analysis.verdict import overlaps, verdict
from sglang_instrument.analysis.verdict.detectors.endings import find_endings


@pytest.fixture
def one_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "findings_in", partial(overlaps.findings_in, detectors=[find_endings]))
