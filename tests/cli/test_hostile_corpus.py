"""Every command answers on wrong logs, or says why not, within limits of memory, time and open files.

`benchmarks/test_fuzz_logs.py` tries other logs each time.
"""

from hostile_logs import hostile_logs, run_limited, sound_logs

#: A kind of log, and the seed of its mistakes.
SEEDS = [("run", 1), ("server_log", 3), ("trace", 5)]


def test_no_command_breaks_a_limit_on_a_wrong_log(tmp_path):
    logs = hostile_logs(sound_logs(tmp_path / "sound"), tmp_path / "logs", SEEDS)
    count, faults = run_limited(logs, tmp_path / "scratch")
    assert faults == []
    assert count > 20 * len(SEEDS)
