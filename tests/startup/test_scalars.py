"""Training looks numbers up and hands them to its tracker; no failure outside disturbs it."""

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from logged import our_threads

import sglang_instrument
from sglang_instrument.patching.probes.tracker_probe import TrackerProbe, feed_trackers
from sglang_instrument.patching.tables.reading import load_table, parse_table
from sglang_instrument.recording.safety import notices
from sglang_instrument.startup.follower import FollowerProcess, environment_of_follower
from sglang_instrument.startup.scalars import Scalars

ENDS_SEC = 600  # on a busy machine, where the follower runs only when nothing else wants to
TRACKER = """
class Tracking:
    def __init__(self, backends):
        self.logger = backends

    def log(self, data, step, backend=None):
        for instance in self.logger.values():
            instance.log(data=data, step=step)
"""
TABLE = """
trainer = "mine"
module = "mytracking"
setting = "scalars"

[[patch]]
target = "Tracking.__init__"
region = [{ event = "tracker_open", phase = "other", tracker = {} }]

[[patch]]
target = "Tracking.log"

[[patch.region]]
event = "tracker_log"
phase = "other"
tracker = { data = "data", step = "step", late = "self.logger", late_to = "board" }
"""


class Board:
    """A tracker that keeps what it is given."""

    def __init__(self):
        self.calls = []

    def log(self, data, step):
        self.calls.append((step, data))


class Writer:
    """A writer of TensorBoard's kind."""

    def __init__(self):
        self.calls = []

    def add_scalar(self, name, value, step):
        self.calls.append((name, value, step))


class Broken:
    def log(self, data, step):
        raise SystemExit("the tracker ends the program")


def tell(folder, step, run_id="now", torn=False, **numbers):
    (folder / "live").mkdir(parents=True, exist_ok=True)
    line = json.dumps({"run_id": run_id, "step": step, "scalars": numbers}) + "\n"
    with (folder / "live" / "scalars.jsonl").open("a") as file:
        file.write(line[:-9] if torn else line)


def wait_until(condition):
    ends = time.monotonic() + ENDS_SEC
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def known(tmp_path):
    """The numbers of the run in `tmp_path`; its thread ends with the test."""
    scalars = Scalars(tmp_path, "now")
    scalars.start()
    yield scalars
    scalars.stop()
    feed_trackers(None)


def has(known, step):
    wait_until(lambda: known.of(step))


def test_numbers_appear_once_the_follower_has_told_them_and_only_those_of_this_launch(tmp_path, known):
    assert known.of(1) == {}
    tell(tmp_path, 1, run_id="before", step_sec=99.0)
    tell(tmp_path, 1, step_sec=2.5, requests=8)
    has(known, 1)
    assert known.of(1) == {"rollout/step_sec": 2.5, "rollout/requests": 8}
    tell(tmp_path, 1, step_sec=3.0)  # the step went on
    wait_until(lambda: known.of(1) == {"rollout/step_sec": 3.0})


def test_a_torn_line_a_foreign_line_and_another_file_do_no_harm(tmp_path, known):
    tell(tmp_path, 1, torn=True, step_sec=1.0)
    path = tmp_path / "live" / "scalars.jsonl"
    with path.open("a") as file:
        file.write('\n"now"\n{"run_id":"now"}\n[]now\n\xff\n')
    tell(tmp_path, 2, step_sec=2.0)
    has(known, 2)
    assert known.of(1) == {}
    path.unlink()
    tell(tmp_path, 3, step_sec=3.0)
    has(known, 3)


def test_only_the_newest_steps_are_kept(tmp_path, known):
    for step in range(400):
        tell(tmp_path, step, step_sec=1.0)
    has(known, 399)
    assert known.of(0) == {}
    assert len(known._known) == 256


def test_what_the_trainer_logs_is_copied_and_its_own_names_win(tmp_path, known):
    tell(tmp_path, 1, step_sec=2.5, tokens=7)
    has(known, 1)
    mine = {"loss": 1.0, "rollout/tokens": 100}
    assert known.along(mine, 1, {}) == {"loss": 1.0, "rollout/tokens": 100, "rollout/step_sec": 2.5}
    assert mine == {"loss": 1.0, "rollout/tokens": 100}
    assert known.along(mine, 1, {}) is mine  # once a step
    assert known.along(mine, 2, {}) is mine  # not known


def test_of_a_list_the_first_element_gets_the_numbers_and_other_things_are_left_alone(tmp_path, known):
    for step in range(5):
        tell(tmp_path, step, step_sec=2.5)
    has(known, 4)
    minibatches = [{"loss": 1.0}, {"loss": 2.0}]
    given = known.along(minibatches, 1, {})
    assert given == [{"loss": 1.0, "rollout/step_sec": 2.5}, {"loss": 2.0}]
    assert minibatches == [{"loss": 1.0}, {"loss": 2.0}]
    for step, other in enumerate(([], None, "text"), 2):
        assert known.along(other, step, {}) is other


def test_a_step_that_is_late_is_logged_under_its_own_number_with_the_next_call(tmp_path, known):
    board, writer = Board(), Writer()
    known.along({}, 1, {})
    known.along({}, 2, {})
    tell(tmp_path, 1, step_sec=1.0)
    tell(tmp_path, 2, step_sec=2.0)
    tell(tmp_path, 3, step_sec=3.0)
    has(known, 3)
    assert known.along({}, 3, {"board": board, "writer": writer}) == {"rollout/step_sec": 3.0}
    assert board.calls == [(1, {"rollout/step_sec": 1.0}), (2, {"rollout/step_sec": 2.0})]
    assert writer.calls == [("rollout/step_sec", 1.0, 1), ("rollout/step_sec", 2.0, 2)]
    known.along({}, 4, {"board": board})
    assert len(board.calls) == 2


class RowsOfGrowingSteps:
    """What W&B does with steps, as its offline file shows: tests/trainers/verl/test_verl_tracking.py."""

    def __init__(self):
        self.rows, self.metrics = {}, []

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, data, step):
        if step >= max(self.rows, default=step):  # else it is dropped
            self.rows.setdefault(step, {}).update(data)


def test_a_tracker_with_rows_gets_late_steps_in_later_rows_one_a_row_and_in_order(tmp_path, known):
    rows, board = RowsOfGrowingSteps(), Board()
    backends = {"wandb": rows, "board": board}

    def train(step):
        rows.log(known.along({"loss": step}, step, backends), step)

    train(1)
    train(2)
    for step in (1, 2, 3, 4):
        tell(tmp_path, step, tokens=10 * step)
    has(known, 4)
    train(3)
    train(3)  # as a validation does
    train(4)
    train(5)
    assert rows.metrics == [("rollout/*", "rollout/step")]
    carried = {step: (row.get("rollout/step"), row.get("rollout/tokens")) for step, row in rows.rows.items()}
    assert carried == {1: (None, None), 2: (None, None), 3: (1, 10), 4: (2, 20), 5: (3, 30)}
    assert [step for step, _ in sorted(board.calls)] == [1, 2, 3, 4], (
        "it takes any step: none waits for a row"
    )
    known.stop()
    [said] = notices.noticed()
    assert "the numbers of 1 step is in" in said["notice"]


def test_numbers_in_time_are_in_the_row_of_their_step(tmp_path, known):
    rows = RowsOfGrowingSteps()
    tell(tmp_path, 1, tokens=10)
    has(known, 1)
    assert known.along({"loss": 1}, 1, {"wandb": rows}) == {
        "loss": 1,
        "rollout/tokens": 10,
        "rollout/step": 1,
    }
    assert rows.rows == {}
    known.stop()
    assert notices.noticed() == []


def test_steps_whose_numbers_no_tracker_takes_any_more_are_said_once_and_counted(tmp_path, known):
    for step in (1, 2):
        known.along({}, step, {})
        tell(tmp_path, step, step_sec=1.0)
        has(known, step)
    assert known.along({}, 3, {}) == {}
    [said] = notices.noticed()
    assert "no tracker here takes earlier steps" in said["notice"]
    assert said["times"] == 2
    assert known.of(1) == {"rollout/step_sec": 1.0}, "scalars(step) has them"
    known.stop()
    assert "the numbers of 2 steps are in" in notices.noticed()[1]["notice"]


def test_a_tracker_that_raises_costs_no_other_and_training_sees_nothing(tmp_path, known):
    board = Board()
    known.along({}, 1, {})
    tell(tmp_path, 1, step_sec=1.0)
    has(known, 1)
    mine = {"loss": 1.0}
    assert known.along(mine, 2, {"broken": Broken(), "board": board}) is mine
    assert board.calls == [(1, {"rollout/step_sec": 1.0})]
    [said] = notices.noticed()
    assert "logging an earlier step to broken" in said["notice"]


def test_a_follower_that_failed_or_never_told_anything_is_said_once(tmp_path, known, monkeypatch):
    monkeypatch.setattr("sglang_instrument.startup.scalars._SILENT_SEC", -1.0)
    for step in range(10):
        known.along({}, step, {})
    assert ["no numbers" in noticed["notice"] for noticed in notices.noticed()] == [True]
    with (tmp_path / "live").mkdir() or (tmp_path / "live" / "scalars.jsonl").open("a") as file:
        print('{"run_id":"now","failed":"no polars"}', file=file)
    wait_until(lambda: len(notices.noticed()) == 2)
    assert "no polars" in notices.noticed()[1]["notice"]


def test_nothing_waits_for_a_file_that_never_answers(tmp_path):
    (tmp_path / "live").mkdir()
    os.mkfifo(tmp_path / "live" / "scalars.jsonl")
    scalars = Scalars(tmp_path, "now")
    for step in range(1000):
        scalars.along({}, step, {})  # a read of the pipe would never return
    scalars.stop()


def probe_of(region):
    [patch] = parse_table("mine", {"trainer": "t", "patch": [{"target": "m:f", "region": [region]}]}).patches
    return TrackerProbe(patch.regions[0])


LOG = {"event": "e", "phase": "other", "tracker": {"data": "data", "step": "step", "late": "self.logger"}}


def test_the_probe_never_raises_and_returns_what_it_was_given(known):
    class Hostile(dict):
        def __iter__(self):
            raise RuntimeError("mine")

        keys = __iter__

    class Owner:
        @property
        def logger(self):
            raise ValueError("no logger")

    probe, mine = probe_of(LOG), {"loss": 1.0}
    assert probe(mine, Owner(), 1) is mine  # no feed
    feed_trackers(known)
    known._known[1] = {"rollout/step_sec": 1.0}
    hostile = Hostile(a=1)
    assert probe(hostile, Board(), 1) is hostile
    assert probe(mine, Owner(), 1) is mine
    assert probe(mine, None, "no number") is mine
    assert probe(mine, None, [1]) is mine
    assert probe(mine, None, 1) == {"loss": 1.0, "rollout/step_sec": 1.0}


def test_a_probe_travels_by_pickle_and_a_process_without_us_gets_one_that_does_nothing(known):
    sent = pickle.dumps((probe_of(LOG), probe_of({**LOG, "tracker": {}})))
    mine = {"loss": 1.0}
    probe, opened = pickle.loads(sent)
    assert probe(mine, None, 1) is mine
    assert opened() is None
    program = "import pickle, sys; p, o = pickle.loads(sys.stdin.buffer.read()); o(); assert p(1, 0, 0) == 1"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], input=sent, check=True)


@pytest.mark.parametrize(
    ("tracker", "wrong"),
    [
        ({"data": "data"}, "needs both data and step"),
        ({"data": "self.data", "step": "step"}, "must be the name of a local"),
        ({"file": "data"}, "unknown key 'file'"),
    ],
)
def test_a_mistake_in_a_table_is_named(tracker, wrong):
    with pytest.raises(sglang_instrument.TableError, match=wrong):
        probe_of({"event": "e", "tracker": tracker})


def test_a_region_that_gives_to_a_tracker_records_nothing():
    with pytest.raises(sglang_instrument.TableError, match="exit has no meaning with tracker"):
        probe_of({**LOG, "exit": {"x": "data"}})


@pytest.mark.parametrize("trainer", ["verl", "slime", "areal", "miles", "roll"])
def test_the_tables_of_trackers_need_the_setting(trainer):
    table = load_table(f"{trainer}/tracker")
    assert table.is_wanted("requests", True)
    assert not table.is_wanted("requests", False)


def test_the_follower_gets_none_of_our_settings(monkeypatch):
    monkeypatch.setenv("SGLANG_INSTRUMENT", "1")
    monkeypatch.setenv("SGLANG_INSTRUMENT_LOG_DIR", "/logs")
    monkeypatch.setenv("MINE", "1")
    environment = environment_of_follower()
    assert environment["MINE"] == "1"
    assert [name for name in environment if name.startswith("SGLANG_INSTRUMENT")] == []


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A tracker of the user's own, and a table for it."""
    (tmp_path / "mytracking.py").write_text(TRACKER)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "mine.toml").write_text(TABLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mytracking", raising=False)
    return tmp_path / "tables"


def roll_out(step):
    with sglang_instrument.bind(step=step, worker=0), sglang_instrument.span("total_step_duration"):
        for name in "ab":
            with sglang_instrument.span("async_rollout_request_complete", request_id=name):
                time.sleep(0.01)


def followers_of(folder):
    """Return the ids of the processes that follow a run."""
    followers = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sglang_instrument.live" in words and str(folder).encode() in words:
            followers.append(int(path.parent.name))
    return followers


def test_with_the_setting_a_finished_step_goes_along_and_uninstall_ends_the_follower(install, mine):
    folder = install(scalars=True, patches=[mine], trainers=["mine"])
    import mytracking

    board, other = Board(), Board()
    tracking = mytracking.Tracking({"board": board, "other": other})
    roll_out(1)
    wait_until(lambda: sglang_instrument.scalars(1))
    data = {"loss": 1.0}
    tracking.log(data, step=1)
    assert data == {"loss": 1.0}
    [(step, given)] = board.calls
    assert (step, given["loss"], given["rollout/requests"]) == (1, 1.0, 2)
    assert other.calls == board.calls
    tracking.log(data, step=2)  # before the follower can know it
    roll_out(2)
    wait_until(lambda: sglang_instrument.scalars(2))
    tracking.log(data, step=3)
    assert [step for step, _ in board.calls] == [1, 2, 2, 3]
    assert board.calls[2][1]["rollout/requests"] == 2
    assert [step for step, _ in other.calls] == [1, 2, 3]  # it is not said to take any step
    assert followers_of(folder)
    sglang_instrument.uninstall()
    wait_until(lambda: not followers_of(folder) and not our_threads())
    tracking.log(data, step=4)
    assert board.calls[-1] == (4, data)
    assert board.calls[-1][1] is data


def test_without_the_setting_nothing_is_patched_and_nobody_follows(install, mine):
    folder = install(patches=[mine], trainers=["mine"])
    import mytracking

    code = mytracking.Tracking.log.__code__
    roll_out(1)
    assert sglang_instrument.scalars(1) == {}
    assert followers_of(folder) == []
    assert not (folder / "live").exists()
    assert not [patch for patch in sglang_instrument.status()["patches"] if "tracker" in patch["event"]]
    sglang_instrument.uninstall()
    assert mytracking.Tracking.log.__code__ is code
    assert sglang_instrument.scalars(1) == {}


DRIVER = """
import os, sys, threading, time
import sglang_instrument
sglang_instrument.install(experiment="run", scalars=True)
folder = sglang_instrument.status()["folder"]
for _ in range(30000):
    if os.path.exists(folder + "/live/lock"):
        break
    time.sleep(0.02)
else:
    sys.exit("the follower holds no lock")
for thread in threading.enumerate():
    if thread.name == "sglang_instrument-follower":
        thread.join()  # it waits for the shell that started the follower
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no children", flush=True)
{then}
"""


def drive(tmp_path, then, **more):
    program = DRIVER.format(then=textwrap.dedent(then))
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path), **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_follower_is_no_child_and_a_driver_that_ends_does_not_wait_for_it(tmp_path):
    driver = drive(tmp_path, "")
    out, errors = driver.communicate(timeout=ENDS_SEC)  # would wait for a follower that inherited a pipe
    assert (out, driver.returncode) == ("no children\n", 0), errors
    wait_until(lambda: not followers_of(tmp_path / "run"))


def test_the_follower_ends_with_a_driver_that_is_killed_and_runs_at_the_lowest_priority(tmp_path):
    driver = drive(tmp_path, "time.sleep(600)")
    assert driver.stdout.readline() == "no children\n"
    [follower] = followers_of(tmp_path / "run")
    wait_until(lambda: os.sched_getscheduler(follower) == os.SCHED_IDLE)
    opened = {os.path.realpath(f"/proc/{follower}/fd/{number}") for number in (0, 1, 2)}
    assert opened == {"/dev/null"}
    driver.send_signal(signal.SIGKILL)
    driver.communicate(timeout=ENDS_SEC)
    wait_until(lambda: not followers_of(tmp_path / "run"))


@pytest.mark.parametrize(("priority", "nice"), [("low", 19), ("normal", 0)])
def test_the_followers_priority_is_a_setting(tmp_path, priority, nice):
    driver = drive(tmp_path, "time.sleep(600)", SGLANG_INSTRUMENT_FOLLOWER_PRIORITY=priority)
    assert driver.stdout.readline() == "no children\n"
    wait_until((tmp_path / "run" / "live" / "lock").exists)  # made after it has set its priority
    [follower] = followers_of(tmp_path / "run")
    assert os.getpriority(os.PRIO_PROCESS, follower) == nice + os.getpriority(os.PRIO_PROCESS, 0)
    assert os.sched_getscheduler(follower) == os.SCHED_OTHER
    driver.send_signal(signal.SIGKILL)
    driver.communicate(timeout=ENDS_SEC)


def test_children_and_other_ranks_start_no_follower(tmp_path):
    program = """
        import sglang_instrument
        sglang_instrument.install(experiment="run", scalars=True)
        session = sglang_instrument.startup.install._session
        assert session.scalars is not None and session._follower is None
    """
    for name, value in (("SGLANG_INSTRUMENT_DRIVER", "host:1"), ("RANK", "1")):
        environment = {**os.environ, "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path), name: value}
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, check=True)
    assert not (tmp_path / "run" / "live").exists()


def test_a_follower_that_cannot_be_started_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    follower = FollowerProcess(tmp_path, "now")
    follower.start()
    wait_until(notices.noticed)
    assert "cannot be started" in notices.noticed()[0]["notice"]
    follower.stop()


def test_a_forked_child_reads_the_numbers_itself(install, mine):
    folder = install(scalars=True, patches=[mine], trainers=["mine"])
    roll_out(1)
    wait_until(lambda: sglang_instrument.scalars(1))
    child = os.fork()
    if child == 0:
        ended = 1
        for _ in range(30_000):
            if sglang_instrument.scalars(1):
                ended = 0
                break
            threading.Event().wait(0.02)
        os._exit(ended)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert len(followers_of(folder)) == 1
    gc.collect()
