"""What lies between caller and server is waited for, as far as the twin's own calls do not take it anyway."""

import pytest

from sglang_instrument.twin import AgendaTurn
from sglang_instrument.twin.playing.call_path import CallPath

TURN = AgendaTurn(50, 50, 40, 0.0, 1.0, sent_sec=0.6, returned_sec=0.2)


def reply(sec: object) -> dict[str, dict[str, object]]:
    return {"meta_info": {"e2e_latency": sec}}


def test_the_twins_own_path_is_left_out() -> None:
    path = CallPath()
    assert path.missing_sec(TURN) == (0.0, 0.0)  # nothing is known of it yet
    path.count(1.1, [reply(1.0)])
    path.count(1.3, [reply(0.5), reply(1.0)])  # of two samples, the longer one
    assert path.missing_sec(TURN) == pytest.approx((0.75 * 0.6, 0.25 * 0.6))


def test_a_twin_that_is_slower_waits_for_nothing() -> None:
    path = CallPath()
    path.count(2.0, [reply(1.0)])
    assert path.missing_sec(TURN) == (0.0, 0.0)


@pytest.mark.parametrize("sec", [None, "1", 3.0, -1.0])
def test_a_server_that_does_not_tell_its_time_changes_nothing(sec: object) -> None:
    path = CallPath()
    path.count(2.0, [reply(sec)])
    assert path.missing_sec(TURN) == (0.0, 0.0)


def test_a_turn_without_a_path_waits_for_nothing() -> None:
    path = CallPath()
    path.count(1.1, [reply(1.0)])
    assert path.missing_sec(AgendaTurn(50, 50, 40, 0.0, 1.0)) == (0.0, 0.0)
