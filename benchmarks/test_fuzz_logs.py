"""Wrong logs of every kind, others each time: every command answers or says why not, within limits.

`FUZZ_LOGS=500 python -m pytest benchmarks/test_fuzz_logs.py -s` tries more logs; `FUZZ_SEED=N` tries those of
one run again. A fault names the kind of the log and its seed. `tests/cli/test_hostile_corpus.py` tries the
same few each time; `tests/support/limited_commands.py` has the limits.
"""

import os
import random
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from hostile_logs import hostile_logs, run_limited, sound_logs

LOGS = int(os.environ.get("FUZZ_LOGS", "24"))
SEED = int(os.environ.get("FUZZ_SEED", random.randrange(10**6)))
AT_ONCE = 12  # logs of a child


def test_no_command_breaks_a_limit_on_any_wrong_log(tmp_path):
    sound = sound_logs(tmp_path / "sound")
    kinds = list(sound)
    seeds = [(kinds[number % len(kinds)], SEED + number) for number in range(LOGS)]
    count, faults = 0, []
    for begin in range(0, LOGS, AT_ONCE):
        logs = hostile_logs(sound, tmp_path / "logs", seeds[begin : begin + AT_ONCE])
        commands, new_faults = run_limited(logs, tmp_path / "scratch")
        count, faults = count + commands, faults + new_faults
        shutil.rmtree(tmp_path / "logs")
        shutil.rmtree(tmp_path / "scratch")
    print(f"\nfuzz: seed {SEED}, {LOGS} logs, {count} commands, {len(faults)} faults")
    for fault in faults:
        print(fault.get("log"), fault.get("command"), fault["fault"], sep="\n")
    assert not faults
