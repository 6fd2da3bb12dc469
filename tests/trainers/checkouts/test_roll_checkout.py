"""ROLL's real managers of environments from a checkout: `make test-trainers ROLL=DIR`."""

from conftest import Driven, checkout_of, drive


def test_each_of_roll_s_managers_has_its_turns_calls_and_answers(tmp_path):
    printed = drive("drive_roll.py", tmp_path, checkout_of("ROLL"))
    run = Driven(printed, tmp_path / "run")
    assert set(printed["played"].values()) == {2}
    for step in range(1, 1 + len(printed["played"])):
        for event in ("turn_end", "turn_pre_process", "turn_engine_call", "tool_execution"):
            of_event = run.extras(event, f"step_{step}")
            assert [extra["turn"] for extra in of_event] == [0, 1], event
            assert {extra["request_id"] for extra in of_event} == {5}
        assert [call["generated_tokens"] for call in run.extras("turn_engine_call", f"step_{step}")] == [3, 3]
