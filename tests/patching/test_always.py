"""`always` fields, such as ids that are made inside a region, are read at any end of the region."""

import asyncio
import importlib.util
import sys
import textwrap

import pytest

from sglang_instrument.errors import TableError
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.patching.tables.reading import parse_table
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety import notices

MODULE = """
    import asyncio

    def plain(job, fails):
        job.rid = "made"
        for turn in range(3):
            if fails and turn == 2:
                raise KeyError(turn)
        return turn

    def in_a_loop(jobs):
        for job in jobs:
            job.rid = job.rid * 2
            int(job.rid)

    async def awaited(job):
        job.rid = "made"
        await asyncio.sleep(60)

    async def generated(job, fails):
        job.rid = "made"
        yield 1
        if fails:
            raise KeyError(job)
        await asyncio.sleep(60)
        yield 2

    def gives_up(jobs):
        for job in jobs:
            try:
                int(job.rid)
            finally:
                pass

    def reads_its_own(job):
        raise KeyError(len(locals()))
"""
ALWAYS = {"rid": "job.rid"}


class Job:
    rid = None


@pytest.fixture
def patched(tmp_path):
    """Write `MODULE` and patch a region of it for the test; returns (module, records, sites)."""
    made = []

    def make(target, **region):
        name = f"always_{tmp_path.name}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(MODULE))
        spec = importlib.util.spec_from_file_location(name, path)
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        content = {"trainer": "t", "module": name, "patch": [{"target": target, "region": [region]}]}
        table = parse_table(str(path), content)
        patcher = Patcher([table], make_probe=probes_for(table.patches[0].regions))
        patcher.install()
        made.append((patcher, name))
        return module, records, patcher.results()

    before, records = spans.current_buffer(), []
    notices.forget()
    spans.use_buffer(records, int)
    yield make
    spans.use_buffer(before, int)
    assert notices.noticed() == []
    for patcher, name in made:
        assert patcher.uninstall() == []
        del sys.modules[name]


def test_an_always_field_is_read_after_an_exception_and_other_locals_are_not(patched):
    module, records, _ = patched("plain", event="e", always=ALWAYS, exit={"turn": "turn", "is": "'e'"})
    with pytest.raises(KeyError):
        module.plain(Job(), fails=True)
    assert module.plain(Job(), fails=False) == 2
    assert [(record.extra, record.error) for record in records] == [
        ({"rid": "made", "is": "e"}, "KeyError"),
        ({"rid": "made", "turn": 2, "is": "e"}, None),
    ]


def test_what_the_locals_hold_when_the_exception_passes_is_read(patched):
    module, records, _ = patched("in_a_loop", event="e", block="rid", always=ALWAYS)
    jobs = [Job(), Job()]
    jobs[0].rid, jobs[1].rid = "7", "x"
    with pytest.raises(ValueError, match="xx"):
        module.in_a_loop(jobs)
    assert [(record.extra, record.error) for record in records] == [
        ({"rid": "77"}, None),
        ({"rid": "xx"}, "ValueError"),
    ]


def test_a_cancelled_coroutine_is_named(patched):
    module, records, _ = patched("awaited", event="e", always=ALWAYS)

    async def cancel():
        task = asyncio.create_task(module.awaited(Job()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancel())
    assert [(record.extra, record.error) for record in records] == [({"rid": "made"}, "CancelledError")]


@pytest.mark.parametrize(
    ("how", "error"), [("fails", "KeyError"), ("is cancelled", "CancelledError"), ("is closed", None)]
)
def test_a_generator_that_does_not_come_to_its_end_is_named(patched, how, error):
    module, records, _ = patched("generated", event="e", generator=True, always=ALWAYS, exit={"last": "item"})

    async def consume():
        items = module.generated(Job(), how == "fails")
        assert await anext(items) == 1
        rest = (
            asyncio.create_task(anext(items)) if how != "is closed" else asyncio.create_task(items.aclose())
        )
        await asyncio.sleep(0)
        rest.cancel() if how == "is cancelled" else None
        await asyncio.gather(rest, return_exceptions=True)

    asyncio.run(consume())
    [record] = records
    assert (record.error, record.extra["rid"], record.extra["items"]) == (error, "made", 1)
    assert ("last" in record.extra) is (error is None)


def test_a_field_that_cannot_be_read_is_left_out(patched):
    module, records, _ = patched("gives_up", event="e", always={"job": "job.rid", "no": "job.nothing"})
    with pytest.raises(TypeError):
        module.gives_up(3)
    assert [(record.extra, record.error) for record in records] == [({}, "TypeError")]


def test_a_function_that_asks_for_its_own_locals_is_left_alone(patched):
    # Reading the frame's locals would update the dict that the function got from locals().
    _, _, [site] = patched("reads_its_own", event="e", always=ALWAYS)
    assert (site.state, site.note) == (
        "refused",
        "the function reads its own locals(), so the rewriter may add none",
    )


@pytest.mark.parametrize("kind", [{"emit": "exit"}, {"emit": "enter"}, {"call": "f"}, {"entering": "lock"}])
def test_instant_events_and_expressions_cannot_have_always_fields(kind):
    region = {"event": "e", "always": ALWAYS, **kind}
    content = {"trainer": "t", "module": "m", "patch": [{"target": "f", "region": [region]}]}
    with pytest.raises(
        TableError, match="always needs a span of statements: emit, call and entering are not"
    ):
        parse_table("t", content)
