"""What `advise` proposes for the engine becomes settings of a twin, with the engine's own names."""

import pytest

from sglang_instrument.analysis.advice.levers import LEVERS
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run
from sglang_instrument.twin.trials.receipts import _WORDS, measurable


def lever(name: str, proposed: object, setting: str = "any.name") -> dict[str, object]:
    return {"lever": name, "setting": setting, "proposed": proposed}


def test_the_first_three_settings_of_the_engine_are_measured() -> None:
    levers = [
        lever("response cap", 620),
        lever("running limit", 32, "actor_rollout_ref.rollout.max_num_seqs"),
        lever("attention backend", "fa3, flashinfer or triton, as the GPU allows"),
        lever("schedule policy", "lpm"),
        lever("servers", 3),
        lever("running limit", 64),
    ]
    names = [setting.name for setting in measurable(levers)]
    assert names == ["max_running_requests=32", "schedule_policy=lpm", "servers=3"]


def test_each_lever_that_a_twin_measures_is_a_lever() -> None:
    assert set(_WORDS) <= {each.name for each in LEVERS}


def test_without_a_setting_of_the_engine_the_answer_says_so(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_run(tmp_path / "run", steps=4)
    code = main(["advise", str(tmp_path / "run"), "--twin", "python -m sglang.launch_server"])
    assert code == 2
    assert "a twin has nothing to measure" in capsys.readouterr().err
