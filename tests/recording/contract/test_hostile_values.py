"""Exceptions of a value's own code are caught; exceptions of the program's signal handlers are raised."""

import os
import signal

import hostile
import pytest

import sglang_instrument
from sglang_instrument import SGLangLogManager, bind, event, instrument, span, step
from sglang_instrument.patching.probes.probe import build_probe
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.measure.context import CURRENT, UNBOUND
from sglang_instrument.recording.measure.values import reduce, reduce_value
from sglang_instrument.recording.safety import notices
from sglang_instrument.testing import records


@pytest.fixture
def seen():
    with records() as captured:
        yield captured
    assert CURRENT.get() is UNBOUND
    assert not spans.OPEN


@pytest.fixture(params=hostile.BASES, ids=lambda base: base.__name__)
def base(request):
    return request.param


@pytest.fixture(params=hostile.ERRORS, ids=lambda error: error.__name__)
def value(base, request):
    """Return a value of a class derived from `base` whose methods all raise the same error."""
    return hostile.value(base, request.param)


def test_no_name_phase_or_field_raises_whatever_its_methods_do(seen, value):
    with span(value, k=value) as named:
        named.add(more=value)
    with span("parse", phase=value):
        event(value, k=[value], d={"in": value})
    with spans.plain("plain", value)():
        pass
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["step", "worker", "role", "validate", "request_id", "turn"])
def test_nothing_that_is_bound_raises_whatever_its_methods_do(seen, name, value):
    with bind(**{name: value}):
        event("inside")
        bound = getattr(CURRENT.get(), name)
        assert type(bound) in (int, str, bool, type(None))
    with step(value):
        event("inside")
    assert len(seen) == 2


def test_no_argument_of_an_instrumented_function_raises_whatever_its_methods_do(seen, value):
    texts = {
        "a": "x",
        "b": "size(x)",
        "c": "x.y",
        "d": "total(x[*].z)",
        "e": "any(x)",
        "f": "mean(x)",
        "g": "x[0]",
    }
    given = {name: text.replace("x", "result") for name, text in texts.items()}

    @instrument(
        "call", phase=value, fields=texts | given, bind={"turn": "x", "request_id": "x", "validate": "x"}
    )
    def call(x):
        return x

    @instrument(fields={"last": "item", "x": "x"})
    def items(x):
        yield x

    assert call(value) is value
    [item] = items(value)
    assert item is value
    assert [record["event"] for record in seen] == ["call", "items"]


def test_no_local_of_a_region_raises_whatever_its_methods_do(seen, value):
    region = {
        "event": "region",
        "when": "missing(x.y)",
        "process": {"worker": "x"},
        "bind": {"step": "x", "role": "x"},
        "enter": {"a": "x"},
        "exit": {"b": "size(x)", "c": "percent(x)", "d": "x[x.y] | p50(x) | sum(x[*]) | number(x)"},
    }
    table = parse_table(
        "t.toml", {"trainer": "t", "module": "m", "patch": [{"target": "f", "region": [region]}]}
    )
    probe = build_probe(table.patches[0].regions[0])
    with probe(value) as run:
        run.capture("k", value)
        assert run.leave_result(value, value) is value
    assert [record["event"] for record in seen] == ["region"]


def test_no_record_of_the_reference_s_class_raises_whatever_it_is_given(tmp_path, value):
    manager = SGLangLogManager()
    manager.log(
        tmp_path / "a.jsonl", value, duration=value, extra={"k": value}, workid=value, step=value, more=value
    )
    manager.log(value, "event")
    manager.get_handle(value).close()
    manager.close_all()


class Unspeakable(type):
    @property
    def __name__(cls):
        raise SystemExit("the metaclass's own")


class UnnamedError(Exception, metaclass=Unspeakable):
    def __str__(self):
        raise GeneratorExit("the exception's own")

    __repr__ = __str__


@pytest.mark.parametrize("with_messages", [False, True])
def test_an_exception_without_a_readable_name_is_raised_unchanged(seen, with_messages):
    @instrument
    def plain(error):
        raise error

    @instrument(fields={"n": "size(result)"})
    def reading(error):
        raise error

    @instrument
    async def coroutine(error):
        raise error

    def blocks(error):
        with span("barrier_wait_duration"), span("parse"):
            raise error

    spans.log_error_messages(with_messages)
    try:
        for act in (plain, reading, lambda error: coroutine(error).send(None), blocks):
            raised = UnnamedError("the prompt")
            with pytest.raises(UnnamedError) as caught:
                act(raised)
            assert caught.value is raised
            assert caught.value.__context__ is None
    finally:
        spans.log_error_messages(False)
    assert {record["error"].partition(":")[0] for record in seen} == {"UnnamedError"}
    assert len(seen) == 5


def test_a_failure_that_cannot_be_named_is_noted():
    notices.log_swallowed("reading", UnnamedError())
    [said] = notices.noticed()
    assert "UnnamedError" in said["notice"]


def test_a_function_that_cannot_be_asked_anything_is_left_as_it_is():
    class Callable:
        def __getattr__(self, name):
            raise SystemExit("its own")

        def __call__(self):
            return 3

    with records():
        assert instrument("call")(Callable())() == 3


class Signalled:
    """A value of numpy's, as far as its type says, whose methods receive a signal while they run."""

    __module__ = "numpy"

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


class TooLateError(Exception):
    pass


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, None), (signal.SIGTERM, SystemExit), (signal.SIGALRM, TooLateError)]
)
def test_an_exception_from_a_signal_handler_is_raised_wherever_it_arrives(number, error):
    def handler(number, frame):
        raise error(3)

    @instrument(fields={"id": "x.uid"})
    def call(x):
        return x

    before = signal.getsignal(number)
    # Python's own handler raises KeyboardInterrupt; a shell does not set it for background processes.
    signal.signal(number, signal.default_int_handler if error is None else handler)
    try:
        with records():
            for act in (reduce_value, call, lambda x: reduce({"x": [x]}), lambda x: span("parse", x=x)):
                with pytest.raises(error or KeyboardInterrupt):
                    act(Signalled(number))
    finally:
        signal.signal(number, before)
    assert CURRENT.get() is UNBOUND
    assert not spans.OPEN


def test_a_broken_logging_handler_ends_nothing(caplog):
    import logging

    class Broken(logging.Handler):
        def emit(self, record):
            raise SystemExit("a handler's own")

    broken, logger = Broken(), logging.getLogger("sglang_instrument")
    logger.addHandler(broken)
    try:
        notices.notice("key", "text")
    finally:
        logger.removeHandler(broken)
    assert notices.noticed() == [{"notice": "text", "times": 1}]


def test_status_and_flush_say_what_was_noted_and_raise_nothing(install):
    install(log_error_messages=True)
    try:
        with pytest.raises(UnnamedError), span("parse"):
            raise UnnamedError
        assert sglang_instrument.flush(600)
        assert sglang_instrument.status()["records"]["recorded"] == 1
    finally:
        spans.log_error_messages(False)
