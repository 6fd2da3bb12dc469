"""The report has a section on the training loop where the log holds the trainer's phases."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.report.html.build import write_report
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape


@pytest.mark.parametrize("recorded", [True, False])
def test_both_sides_are_shown_where_the_trainer_is_in_the_log(recorded: bool, tmp_path: Path) -> None:
    trainer = Trainer(sec=30.0, recorded=recorded, weights_sec=1.0)
    run = open_run(write_run(tmp_path / "run", replace(usual_shape(1, steps=3), requests=6, trainer=trainer)))
    write_report(run, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    match = re.search(r'<section id="loop".*?</section>', text, re.DOTALL)
    assert ('href="#loop"' in text) == (match is not None) == recorded
    if match is not None:
        assert "This run is synchronous." in match[0]
        assert all(f">{part}<" in match[0] for part in ("generation", "update", "weight sync"))
        assert len(re.findall(r"<tr><td>\d+</td>", match[0])) == 3
