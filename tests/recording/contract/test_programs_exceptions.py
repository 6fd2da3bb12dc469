"""Exceptions of the program that arrive while our code runs reach the program; those of values do not."""

import functools
import os
import signal
import sys
import zlib

import orjson
import pytest

from sglang_instrument import SGLangLogManager, bind, event, instrument, span, step
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.context import CURRENT, UNBOUND
from sglang_instrument.recording.measure.values import reduce, reduce_value
from sglang_instrument.recording.safety import notices
from sglang_instrument.recording.safety.exception_origins import call
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.testing import records

ARRIVED = [
    type(f"Arrived{base.__name__}", (base,), {})
    for base in (Exception, ValueError, TypeError, KeyError, AttributeError, RuntimeError, StopIteration)
]


@pytest.fixture(params=ARRIVED, ids=lambda error: error.__name__)
def error(request):
    return request.param


def plain(error, number, frame):
    raise error


def one_shot(error, number, frame):
    signal.signal(number, signal.SIG_DFL)
    raise error


def of_any_arguments(error, *arguments):
    signal.signal(arguments[0], signal.SIG_DFL)
    raise error


def nested(error, number, frame):
    signal.signal(number, signal.SIG_DFL)
    plain(error, number, None)


class Handling:
    def __init__(self, error, number, frame):
        signal.signal(number, signal.SIG_DFL)
        raise error


@pytest.fixture(
    params=[plain, one_shot, of_any_arguments, nested, Handling], ids=lambda function: function.__name__
)
def handled(request, error):
    """Install a signal handler that raises `error`; return the signal's number."""
    before = signal.signal(signal.SIGALRM, functools.partial(request.param, error))
    yield signal.SIGALRM
    signal.signal(signal.SIGALRM, before)


class Signalled:
    """A value whose methods receive a signal while they run."""

    __module__ = "numpy"  # the shape of an array is asked for; no code of an ordinary object is called

    def __init__(self, number):
        self.number = number

    def __repr__(self):
        os.kill(os.getpid(), self.number)
        for _ in range(1000):  # the handler runs between two of these
            pass
        return "repr"

    __str__ = __repr__

    @property
    def uid(self):
        return repr(self)

    shape = uid


class Iterated:
    """A value that is asked for its shape, as arrays are, and whose `__iter__` is called for it."""

    __module__ = "numpy"

    @property
    def shape(self):
        return self

    def __init_subclass__(cls):
        cls.__module__ = "numpy"


class SignalledError(Exception):
    def __str__(self):
        return repr(Signalled(signal.SIGALRM))


@instrument(fields={"id": "x.uid"})
def called(x):
    return x


def failing(x):
    with span("parse"):
        raise SignalledError


ACTS = {
    "a value": reduce_value,
    "an entry": lambda x: reduce({"x": [x]}),
    "a field of a span": lambda x: span("parse", x=x),
    "a field of an event": lambda x: event("parse", x=x),
    "a field that is added": lambda x: span("parse").add(x=x),
    "a field of a function": called,
    "a bound id": lambda x: bind(request_id=x).__enter__(),
    "a bound step": lambda x: step(x).__enter__(),
    "a message": failing,
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS.keys())
def test_what_a_signal_handler_raises_reaches_the_program(handled, error, act):
    spans.log_error_messages(True)
    try:
        with records(), pytest.raises(error):
            act(Signalled(handled))
    finally:
        spans.log_error_messages(False)
    assert CURRENT.get() is UNBOUND
    assert not spans.OPEN


def test_what_a_signal_handler_raises_reaches_the_program_from_the_reference_s_class(
    handled, error, tmp_path
):
    with pytest.raises(error):
        SGLangLogManager().log(tmp_path / "a.jsonl", "e", duration=1.0, extra={"k": Signalled(handled)})


def test_what_a_value_raises_does_not_whatever_it_is(error):
    class Failing(Iterated):
        def __iter__(self):
            raise error("the value's own")

    assert reduce_value(Failing()) == f"<Failing: {error.__name__}>"
    assert notices.noticed() == []


def test_a_value_that_passes_its_frame_on_is_no_signal_handler():
    class Failing(Iterated):
        def __iter__(self):
            return self.fails(sys._getframe())

        def fails(self, frame):
            raise KeyError(3)

    assert reduce_value(Failing()) == "<Failing: KeyError>"


C_CALLS = [
    (int, "x"),
    (zlib.decompress, b"x"),
    (orjson.dumps, object()),
    (next, iter(())),
    ({}.__getitem__, 3),
    (bytes, 2**62),
]


@pytest.mark.parametrize("function_and_argument", C_CALLS, ids=lambda call: call[0].__name__)
def test_a_usual_error_of_c_code_is_not_the_program_s(function_and_argument):
    try:
        call(*function_and_argument)
    except BaseException:
        assert reraise_if_programs_own() is None
    else:
        pytest.fail("nothing was raised")


def test_an_error_of_torch_s_c_code_is_not_the_program_s():
    torch = pytest.importorskip("torch")
    try:
        call(torch.linalg.inv, torch.zeros(2, 2))
    except BaseException as error:
        kind = type(error)
        assert reraise_if_programs_own() is None
    assert kind is torch.linalg.LinAlgError


ASYNCHRONOUS = """
    import ctypes, threading, time
    import sglang_instrument as si
    from sglang_instrument.recording.safety import notices

    class Stop(BaseException): pass
    class Late(ValueError): pass
    class Told(LookupError):
        def __init__(self): super().__init__("its own text")

    si.bind, si.event, si.span  # Python's own import may lose an exception, too

    def stop(thread, kind):
        kind = ctypes.py_object(kind)
        return ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), kind)

    def arrives(kind, act):
        got, done, ready = [], threading.Event(), threading.Event()
        def work():
            try:
                try:
                    ready.set()
                    while not done.is_set():
                        act()
                    got.append("lost")
                except kind: got.append("arrived")
            except kind: got.append("arrived")
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait()
        time.sleep(0.001)
        stop(thread, kind)
        thread.join(0.5)
        done.set()
        thread.join()
        return got == ["arrived"]
"""


@pytest.mark.parametrize("native", ["0", ""], ids=["pure", "compiled"])
@pytest.mark.parametrize("installed", [False, True], ids=["off", "on"])
def test_an_exception_that_another_thread_sets_arrives(run_script, native, installed):
    done = run_script(
        ASYNCHRONOUS
        + f"""
    if {installed}:
        si.install()

    def acts():
        with si.bind(request_id="r", turn=2), si.step(3):
            si.event("hit", n=3)
            with si.span("tool_execution", k="text") as made: made.add(more=1.0)

    kinds = (Stop, Late, Told, TimeoutError)
    print(sum(not arrives(kinds[number % 4], acts) for number in range(80)))
    """,
        SGLANG_INSTRUMENT_NATIVE=native,
    )
    assert done.stdout == "0\n"


IN_A_VALUE = """
    class Slow:
        __module__ = "numpy"  # as an array, asked for its shape
        @property
        def shape(self):
            inside.set()
            while not over: pass
            return ()

    inside, over, ended = threading.Event(), [], []

    def work():
        try:
            with si.span("parse", v=Slow()): pass
            ended.append("lost")
        except Stop: ended.append("arrived")

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait()
    stop(thread, Stop)
    thread.join(60)
    print(*ended, [(one["notice"].split()[0], one["times"]) for one in notices.noticed()])
"""


def test_one_that_arrives_in_a_value_s_own_code_is_lost_and_counted(run_script):
    assert run_script(ASYNCHRONOUS + IN_A_VALUE).stdout == "lost [('Stop', 1)]\n"


def test_one_that_arrives_while_our_code_is_imported_arrives_too(run_script):
    done = run_script(
        """
        import sys
        import sglang_instrument as si

        class Stop(BaseException): pass

        class Stopping:
            def find_spec(self, name, *_):
                if name == "datetime":
                    sys.meta_path.remove(self)
                    raise Stop

        sys.meta_path.insert(0, Stopping())
        try:
            si.bind
            print("lost")
        except Stop:
            print("arrived")
        with si.bind(step=3): pass
        """
    )
    assert done.stdout == "arrived\n"
