"""What `advise` proposes for the engine becomes settings of a twin, with the engine's own names."""

import pytest

from sglang_instrument.analysis.advice.levers import LEVERS
from sglang_instrument.cli.main import main
from sglang_instrument.testing import synthetic_run
from sglang_instrument.twin.trials.receipts import _WORDS, measurable


def lever(name: str, proposed: object, setting: str = "any.name", now: object = None) -> dict[str, object]:
    return {"lever": name, "setting": setting, "proposed": proposed, "now": now}


def test_the_first_three_settings_of_the_engine_are_measured() -> None:
    levers = [
        lever("response cap", 620),
        lever("running limit", 32, "actor_rollout_ref.rollout.max_num_seqs"),
        lever("attention backend", "fa3, flashinfer or triton, as the GPU allows"),
        lever("schedule policy", "lpm"),
        lever("servers", 3),
        lever("running limit", 64),
    ]
    asked = [(each.place, each.setting.name, each.value) for each in measurable(levers)]
    assert asked == [
        (1, "max_running_requests=32", 32),
        (3, "schedule_policy=lpm", "lpm"),
        (4, "servers=3", 3),
    ]


@pytest.mark.parametrize(
    ("setting", "now", "asked"),
    [
        ("max_total_tokens", 8192, ["max_total_tokens=16384"]),
        ("mem_fraction_static", 0.7, ["mem_fraction_static=0.75"]),
        ("mem_fraction_static", 0.93, ["mem_fraction_static=0.95"]),
        ("mem_fraction_static", 0.95, []),
        ("mem_fraction_static", None, []),
    ],
)
def test_of_more_room_in_the_cache_a_value_is_tried(setting: str, now: object, asked: list[str]) -> None:
    levers = [lever("key-value cache", "more room, or a lower response cap", setting, now)]
    assert [each.setting.name for each in measurable(levers)] == asked


def test_of_a_policy_by_load_the_one_that_keeps_prefixes_is_tried() -> None:
    levers = [lever("router policy", "by load, such as least_load or cache_aware")]
    assert [each.setting.name for each in measurable(levers)] == ["router=cache_aware"]


def test_each_lever_that_a_twin_measures_is_a_lever() -> None:
    names = {each.name for each in LEVERS}
    assert set(_WORDS) | {"key-value cache", "router policy"} <= names


def test_without_a_setting_of_the_engine_the_answer_says_so(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_run(tmp_path / "run", steps=4)
    code = main(["advise", str(tmp_path / "run"), "--twin", "python -m sglang.launch_server"])
    assert code == 2
    assert "a twin has nothing to measure" in capsys.readouterr().err
