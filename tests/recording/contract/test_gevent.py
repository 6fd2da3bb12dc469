"""Programs that replace threads and locks, as gevent does, at any time, go on and are recorded."""

import threading
import time

import pytest

from sglang_instrument.recording.safety.unpatched import Flag, Thread

pytest.importorskip("gevent")

STEPS = {
    "import": "import sglang_instrument as si",
    "install": "si.install(trainers=['none'])",
    "patch": "from gevent import monkey; monkey.patch_all()",
    "record": "with si.step(1), si.span('tool'): pass",
}
ORDERS = (
    "import install patch",
    "import install record patch",
    "import patch install",
    "patch import install",
)


@pytest.mark.parametrize("native", ["", "0"])
@pytest.mark.parametrize("durability", ["buffered", "line"])
@pytest.mark.parametrize("order", ORDERS)
def test_greenlets_go_on_and_are_recorded(run_script, order, durability, native):
    lines = [STEPS[step] for step in order.split()]
    rest = """
import gevent, time
said = []
def works():
    with si.span("tool"):
        gevent.sleep(0.001)
        said.append(1)
gevent.joinall([gevent.spawn(works) for _ in range(20)])
import glob, os
logs = os.environ["SGLANG_INSTRUMENT_LOG_DIR"] + "/run/*/*.jsonl"
written, until = 0, time.time() + 30
while written < EXPECTED and time.time() < until:  # this greenlet never yields, and records are written
    written = sum(open(path).read().count('"event":"tool"') for path in glob.glob(logs))
print(len(said), written, si.flush(5), si.status()["open_spans"])
begun = time.time()
si.uninstall()
assert time.time() - begun < 2
"""
    expected = 21 if "record" in order else 20
    script = run_script(
        "\n".join([f"EXPECTED = {expected}", *lines, rest]),
        SGLANG_INSTRUMENT_DURABILITY=durability,
        SGLANG_INSTRUMENT_NATIVE=native or "1",
    )
    assert script.stdout == f"20 {expected} True 0\n"
    assert "Traceback" not in script.stderr
    events = [record["event"] for records in script.records.values() for record in records]
    assert events.count("tool") == expected
    assert events.count("log_closed") >= 1


def test_an_event_lets_all_waiters_go_on_and_can_be_set_again():
    event, passed = Flag(), []
    waiters = [threading.Thread(target=lambda: passed.append(event.wait(30))) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    assert not event.wait(0.01)
    assert not event.is_set()
    for setter in [threading.Thread(target=event.set) for _ in range(4)]:
        setter.start()
    for waiter in waiters:
        waiter.join(30)
    assert passed == [True] * 4
    assert event.wait(0)


def test_a_thread_can_be_waited_for_and_knows_itself():
    begin, inside = Flag(), []

    def runs():
        begin.wait(30)
        inside.append(thread.is_current())

    thread = Thread(runs, "sglang_instrument-test")
    assert not thread.is_alive()
    thread.start()
    assert "sglang_instrument-test" in [each.name for each in threading.enumerate()]
    begun = time.monotonic()
    thread.join(0.05)
    assert time.monotonic() - begun < 5
    assert (thread.is_alive(), thread.is_current()) == (True, False)
    begin.set()
    thread.join(30)
    assert inside == [True]
    assert not thread.is_alive()
    assert "sglang_instrument-test" not in [each.name for each in threading.enumerate()]
