"""A block of `bind` that an exception of the program interrupts leaves nothing bound."""

import sys
from pathlib import Path

import pytest
from logged import read_records

import sglang_instrument
from sglang_instrument import bind, event, native, span, step
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.context import CURRENT, UNBOUND
from sglang_instrument.recording.measure.scopes import scopes

PACKAGE = str(Path(sglang_instrument.__file__).parent)

INTERRUPTED = """
    import random, signal
    import sglang_instrument as si
    from sglang_instrument.recording.measure import context, scopes, spans

    def handler(number, frame):
        raise kind

    def blocks(number):
        while True:
            with si.step(7), si.bind(request_id=number, turn=1), si.span("tool_execution"): pass

    si.install()
    random.seed(1)
    left = 0
    signal.signal(signal.SIGALRM, handler)
    for number in range(10_000):
        kind = (KeyboardInterrupt, TimeoutError)[number % 2]
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0002))
            blocks(number)
        except kind:
            pass
        left += context.CURRENT.get() is not context.UNBOUND or bool(spans.OPEN)
        context.CURRENT.set(context.UNBOUND)
    print(left, sum(scope.open for scope in scopes.scopes()))
"""


@pytest.mark.skipif(not native.ON, reason="pure Python drops it later")
def test_of_ten_thousand_interrupted_blocks_none_stays_bound(run_script):
    assert run_script(INTERRUPTED).stdout == "0 0\n"


class Arrived(BaseException):
    pass


class Interrupt:
    """Raises `Arrived` at one line of our code, or before its first line."""

    def __init__(self, place, only=None):
        self.place, self.only, self.count = place, only, 0

    def __call__(self, frame, happened, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE) or happened in ("return", "exception"):
            return self
        if self.only is None or _name(frame) == self.only:
            self.count += 1
            if self.count == self.place:
                raise Arrived
        return self


def _name(frame):
    owner = frame.f_locals.get("self")
    return f"{type(owner).__name__}.{frame.f_code.co_name}"


def interrupted(act, interrupt):
    """Run `act`; return whether it was interrupted, and check that the exception reached the program."""
    arrived = False
    sys.settrace(interrupt)
    try:
        act()
    except Arrived:
        arrived = True
    finally:
        sys.settrace(None)
    assert arrived is (interrupt.count >= interrupt.place)
    return arrived


def blocks():
    with step(7), bind(request_id="r", turn=1), span("tool_execution"):
        pass


def each_place(act, *arguments):
    """Yield, for each line of our code that `act` runs, once it was interrupted there."""
    place = 1
    while interrupted(act, Interrupt(place, *arguments)):
        yield place
        place += 1
    assert place > 1 or native.ON


def test_wherever_it_arrives_a_block_that_follows_drops_what_stayed_bound():
    act = blocks
    for _ in each_place(act):
        with bind(turn=3):
            assert CURRENT.get().extra == {"turn": 3}
            assert CURRENT.get().scope is None
            assert not [scope for scope in scopes() if scope.open]
        assert CURRENT.get() is UNBOUND
        spans.OPEN.clear()


def test_wherever_it_arrives_the_block_around_it_drops_what_stayed_bound():
    def act():
        with bind(worker=2):
            blocks()

    for _ in each_place(act):
        with bind(turn=3):  # the interrupted block may be the outer one
            assert CURRENT.get().extra == {"turn": 3}
        assert CURRENT.get() is UNBOUND
        assert not [scope for scope in scopes() if scope.open]
        spans.OPEN.clear()


@pytest.mark.skipif(native.ON, reason="nothing stays bound")
class TestPurePython:
    def test_a_block_in_the_handler_of_the_exception_drops_it_too(self):
        arrived = []
        sys.settrace(Interrupt(1, "Binding.__exit__"))
        try:
            with step(7), bind(request_id="r"):
                pass
        except Arrived as error:
            arrived.append(error)
            with step(8):
                assert CURRENT.get().request_id is None
                assert [scope.step for scope in scopes() if scope.open] == [8]
        assert arrived

    def test_the_end_of_its_step_is_written_then(self, install):
        def act():
            with step(7):
                event("inside")

        folder = install()
        assert interrupted(act, Interrupt(1, "Binding.__exit__"))
        assert CURRENT.get().step == 7
        with step(8):
            event("after")
        sglang_instrument.uninstall()
        files = read_records(folder)
        for number, name in ((7, "inside"), (8, "after")):
            events = [record["event"] for record in files[f"step_{number}/worker_0.jsonl"]]
            assert events == ["log_opened", name, "step_closed", "log_closed"]

    def test_an_interrupted_span_is_no_longer_open(self, install):
        install()
        act = lambda: span("tool_execution").__enter__().__exit__(None, None, None)  # noqa: E731
        assert interrupted(act, Interrupt(1, "WatchedSpan.__exit__"))
        assert sglang_instrument.status()["open_spans"] == 0
        assert not spans.OPEN


def test_an_open_span_stays_open_however_it_is_held(install):
    install()
    with span("tool_execution"):
        assert sglang_instrument.status()["open_spans"] == 1
    held = span("tool_execution")
    held.__enter__()
    assert sglang_instrument.status()["open_spans"] == 1
    held.__exit__(None, None, None)
    assert sglang_instrument.status()["open_spans"] == 0


def test_a_block_that_outlives_the_one_around_it_ends_once():
    outer, inner = step(7), step(8)
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert CURRENT.get() is UNBOUND
    assert not [scope for scope in scopes() if scope.open]
    inner.__exit__(None, None, None)
    assert CURRENT.get() is UNBOUND
    assert not [scope for scope in scopes() if scope.open]
