"""Locals of a caller's frame are read on each Python, and the frame is as if nobody had looked."""

import asyncio
import gc
import sys
import weakref

import pytest

import sglang_instrument
from sglang_instrument.profilers.in_training.frame_locals import values_of


class Engine:
    pass


def caller_values(*names):
    values = values_of(sys._getframe(1), names)
    # Python 3.10 tells no names: other values of the frame come along
    return [value for value in values if type(value) is Engine]


def locals_of_caller():
    return sys._getframe(1).f_locals


def test_arguments_locals_cells_and_free_variables_are_found():
    def by_argument(self):
        return caller_values("self")

    def by_cell(engine):
        def inner():
            return engine, caller_values("engine")

        return caller_values("engine"), inner()[1]

    def by_local():
        engine = Engine()
        return caller_values("nobody", "engine") == [engine]

    engine = Engine()
    assert by_argument(engine) == [engine]
    assert by_cell(engine) == ([engine], [engine])
    assert by_local()


def test_generators_and_coroutines_are_read_as_functions_are():
    def generates(engine):
        yield caller_values("engine")
        yield caller_values("engine")

    async def awaits(engine):
        await asyncio.sleep(0)
        return caller_values("engine")

    engine = Engine()
    assert list(generates(engine)) == [[engine], [engine]]
    assert asyncio.run(awaits(engine)) == [engine]


def test_modules_and_class_bodies_are_read():
    engine = Engine()
    namespace = {"engine": engine, "caller_values": caller_values}
    exec(
        "found = caller_values('engine')\nclass A:\n    engine = engine\n    inner = caller_values('engine')",
        namespace,
    )
    assert (namespace["found"], namespace["A"].inner) == ([engine], [engine])


def test_a_variable_without_a_value_is_no_value():
    def unset(late):
        values = caller_values("engine", "late", "cell")
        engine = cell = late
        del late
        return values, caller_values("late"), lambda: (engine, cell)

    assert unset(1)[:2] == ([], [])


@pytest.mark.parametrize("held", [False, True])
def test_the_frame_keeps_what_exec_put_there_and_drops_what_the_function_drops(held):
    def fit(self):
        snapshot = locals_of_caller if not held else locals_of_caller()  # before 3.13: the frame's own dict
        exec("made_by_exec = 5")
        batch = Engine()
        batch.itself = batch
        known = weakref.ref(batch)
        seen = dict(snapshot) if held and sys.version_info < (3, 13) else None
        assert caller_values("self") in ([self], [self, batch], [batch, self])
        if seen is not None:
            assert dict(snapshot) == seen
        del batch
        gc.collect()
        assert known() is None
        return sys.version_info >= (3, 13) or eval("made_by_exec")

    assert fit(Engine()) in (5, True)


def test_profiled_steps_leave_the_frames_of_the_trainer_alone(install):
    class Trainer:
        def fit(self):
            exec("made_by_exec = 5")
            batch = Engine()
            known = weakref.ref(batch)
            with sglang_instrument.step(1):
                del batch
            assert known() is None
            return sys.version_info >= (3, 13) or eval("made_by_exec")

        def looks(self):
            mine = locals_of_caller()
            with sglang_instrument.step(2):
                pass
            return "self" in mine

    install(profile_steps="1-9")
    assert Trainer().fit() in (5, True)
    assert Trainer().looks()
