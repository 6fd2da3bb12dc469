"""Validity names what differs; a setting is best only if it beats each other one by more than noise."""

import random
from dataclasses import replace

import pytest

from sglang_instrument.twin.agendas.limits import client_limit
from sglang_instrument.twin.trials.comparison import is_best
from sglang_instrument.twin.trials.figures import StepFigures
from sglang_instrument.twin.trials.validity import interval_of, validity_of

USUAL = StepFigures(
    step=1,
    rollout_sec=10.0,
    p50_sec=4.0,
    p99_sec=9.0,
    calls=100,
    prompt_tokens=20_000,
    cached_tokens=15_000,
    generated_tokens=8_000,
    tokens_per_sec=800.0,
    cached_share=0.75,
    queue_sec=0.2,
    call_sec=2.0,
    retractions=0,
)


def test_equal_steps_are_alike_and_the_sentence_says_how_near() -> None:
    record = {step: replace(USUAL, step=step) for step in (1, 2, 3)}
    twin = {step: replace(of_step, rollout_sec=10.3) for step, of_step in record.items()}
    validity = validity_of(record, twin)
    assert validity.differing == []
    assert validity.sentence == (
        "the twin's rollout takes 1.03 of the record's (1.03 to 1.03 by step, over 3 steps): "
        "it is within 3 %, and no part differs"
    )


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"rollout_sec": 11.5}, "rollout"),
        ({"p99_sec": 8.0}, "p99 of requests"),
        ({"calls": 99}, "calls"),
        ({"generated_tokens": 8_001}, "generated tokens"),
        ({"cached_share": 0.69}, "cached share"),
        ({"queue_sec": 0.31}, "queue of a call"),
    ],
)
def test_the_part_that_differs_is_named(changed: dict[str, float], part: str) -> None:
    validity = validity_of({1: USUAL}, {1: replace(USUAL, **changed)})
    assert [each.part for each in validity.differing] == [part]
    assert f"these parts differ: {part}" in validity.sentence


def test_without_a_common_step_nothing_is_held() -> None:
    assert validity_of({1: USUAL}, {2: USUAL}).sentence.startswith("the twin has no step")


def test_noise_alone_makes_no_setting_the_best() -> None:
    def played(mean_sec: float, seed: int) -> dict[tuple[int, int], StepFigures]:
        dice = random.Random(seed)
        return {
            (1, step): replace(USUAL, step=step, rollout_sec=mean_sec * dice.uniform(0.95, 1.05))
            for step in range(8)
        }

    measured = {"as launched": played(10, 1), "same": played(10, 2)}
    assert [name for name in measured if is_best(name, measured)] == []
    measured["faster"] = played(8, 3)
    assert [name for name in measured if is_best(name, measured)] == ["faster"]
    measured["as fast"] = played(8, 4)
    assert [name for name in measured if is_best(name, measured)] == []


def test_the_interval_of_ratios_narrows_with_their_number() -> None:
    few, many = interval_of([0.9, 1.1]), interval_of([0.9, 1.1] * 10)
    assert few[0] == pytest.approx(many[0])
    assert few[1] < many[1] < few[0] < many[2] < few[2]
    assert interval_of([0.9])[1:] == (0.0, float("inf"))


def test_a_limit_of_the_client_shows_in_the_begins_of_requests() -> None:
    begun_at_once = [(0, 100_000 * number) for number in range(1, 9)]
    assert client_limit(begun_at_once) is None
    in_pairs = [(100_000 * (number // 2), 100_000 * (number // 2 + 1) - 100) for number in range(8)]
    assert client_limit(in_pairs) == 2
    spread = [(70_000 * number, 70_000 * number + 100_000) for number in range(8)]
    assert client_limit(spread) is None  # none of them waits for the end of another
