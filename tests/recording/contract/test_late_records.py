"""Records of late atexit handlers are written; those of `__del__` at the very end are counted."""

import json

import pytest
from logged import recorded_events

from sglang_instrument.recording.keep import late_records


def described(script):
    return json.loads((script.folder / "processes/worker_0.json").read_text())


def dones(script):
    return [record["extra"]["index"] for file in script.records.values() for record in recorded_events(file)]


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_handlers_that_were_registered_before_install_record_after_it(run_script, durability):
    script = run_script(
        """
        import atexit, sglang_instrument as si

        @atexit.register
        def late():
            for index in range(1, 4):
                si.event("did", index=index)
            with si.step(2), si.span("total_step_duration", index=4):
                pass

        si.install()
        si.event("did", index=0)
        """,
        SGLANG_INSTRUMENT_DURABILITY=durability,
    )
    assert sorted(dones(script)) == [0, 1, 2, 3, 4]
    assert script.records["step_0/worker_0.jsonl"][-1]["event"] == "log_closed"
    assert script.records["step_2/worker_0.jsonl"][-1]["event"] == "step_closed"
    assert "Exception ignored" not in script.stderr


@pytest.mark.parametrize("first", ["", "si.event('did', index=0)"])
@pytest.mark.parametrize(
    "last", ["last = Late()", "a, b = Late(), None; a.b = a; del a", "class Of: late = Late()"]
)
def test_what_a_finalizer_records_at_the_very_end_is_written_or_counted(run_script, last, first):
    script = run_script(
        f"""
        import sglang_instrument as si

        class Late:
            def __del__(self, si=si):  # names of the module may be gone
                for index in range(1, 12):
                    with si.span("did", index=index):
                        pass

        si.install()
        {first}
        {last}
        """
    )
    # A cycle may be collected earlier, also by our thread while it writes what came before.
    written = dones(script)
    assert len(set(written)) == len(written)
    if first:
        assert 0 in written
        assert len(written) + described(script)["records"]["dropped"] == 12
    assert "Exception ignored" not in script.stderr
    assert "Traceback" not in script.stderr


def test_late_records_that_take_too_long_are_counted(run_script):
    script = run_script(
        f"""
        import atexit, time, sglang_instrument as si
        from sglang_instrument.recording.measure import spans

        @atexit.register
        def late():
            ends = time.monotonic() + {late_records.LONGEST_SEC} + 600
            while spans.current_buffer().dropped_records < 10 and time.monotonic() < ends:
                si.event("did", index=1)
            time.sleep(0.2)
            si.event("did", index=2)

        si.install()
        """
    )
    counts = described(script)["records"]
    assert counts["dropped"] == 11
    assert counts["recorded"] == len(dones(script)) > 100


def test_an_exit_of_a_process_that_records_nothing_late_is_as_before(run_script):
    script = run_script(
        """
        import sglang_instrument as si
        si.install()
        si.event("did", index=0)
        """
    )
    [records] = script.records.values()
    assert [record["event"] for record in records] == ["log_opened", "did", "log_closed"]


def test_uninstall_in_a_late_handler_ends_it(run_script):
    script = run_script(
        """
        import atexit, sglang_instrument as si
        from sglang_instrument.recording.measure import spans

        @atexit.register
        def late():
            si.event("did", index=1)
            si.uninstall()
            assert spans.current_buffer() is spans.OFF
            si.event("did", index=2)

        si.install()
        si.event("did", index=0)
        """
    )
    assert dones(script) == [0, 1]
    assert "Traceback" not in script.stderr


def test_what_other_threads_record_while_the_process_ends_is_written_or_counted(run_script):
    script = run_script(
        """
        import itertools, threading, time, sglang_instrument as si

        recorded, numbers = [], itertools.count()

        def forever():
            while True:
                number = next(numbers)
                si.event("did", index=number)
                recorded.append(number)
                time.sleep(0.0001)

        def last():
            folder = si.status()["folder"]
            time.sleep(0.3)
            open(f"{folder}/recorded", "w").write(str(len(recorded)))

        import atexit
        atexit.register(last)
        si.install()
        si.event("did", index=-1)
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.2)
        """
    )
    written = dones(script)
    at_least = int((script.folder / "recorded").read_text())
    assert sorted(written) == list(range(-1, len(written) - 1))
    assert len(written) >= at_least + 1
