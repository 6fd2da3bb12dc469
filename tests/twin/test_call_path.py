"""What lies between caller and server is waited for, as far as the twin's own calls do not take it anyway."""

import pytest

from sglang_instrument.twin import AgendaTurn
from sglang_instrument.twin.playing.call_path import CallPath

TURN = AgendaTurn(50, 50, 40, 0.0, 1.0, sent_sec=0.6, returned_sec=0.2)


def reply(sec: object) -> dict[str, dict[str, object]]:
    return {"meta_info": {"e2e_latency": sec}}


def path_of(*turns: AgendaTurn) -> CallPath:
    path = CallPath()
    path.begin_step(turns)
    return path


def test_the_mean_over_a_step_is_that_of_the_record() -> None:
    shorter = AgendaTurn(50, 50, 40, 0.0, 1.0, sent_sec=0.2, returned_sec=0.2)
    path = path_of(TURN, shorter)
    assert path.missing_sec(TURN) == (0.0, 0.0)  # nothing is known of the twin's own calls yet
    path.count(1.1, [reply(1.0)])
    path.count(1.2, [reply(0.5), reply(1.0)])  # of two samples, the longer one
    waits = [sec for turn in (TURN, shorter) for sec in path.missing_sec(turn)]
    assert waits == pytest.approx([0.45, 0.15, 0.15, 0.15])
    assert sum(waits) / 2 + 0.15 == pytest.approx((0.8 + 0.4) / 2)


def test_a_twin_that_is_slower_waits_for_nothing() -> None:
    path = path_of(TURN)
    path.count(2.0, [reply(1.0)])
    assert path.missing_sec(TURN) == (0.0, 0.0)


@pytest.mark.parametrize("sec", [None, "1", 3.0, -1.0])
def test_a_server_that_does_not_tell_its_time_changes_nothing(sec: object) -> None:
    path = path_of(TURN)
    path.count(2.0, [reply(sec)])
    assert path.missing_sec(TURN) == (0.0, 0.0)


def test_a_turn_without_a_path_waits_for_nothing() -> None:
    without = AgendaTurn(50, 50, 40, 0.0, 1.0)
    path = path_of(without)
    path.count(1.1, [reply(1.0)])
    assert path.missing_sec(without) == (0.0, 0.0)
