"""Children of multiprocessing write all their records, however they are started and instrumented."""

import pytest

# Names are bound at import: the target's module installs while a child unpickles its task.
WORK = """
from sglang_instrument import bind, event

def work(rank):
    with bind(worker=rank, step=1):
        for index in range(1000):
            event("did", index=index)
"""
MAIN = """
import importlib, os, sys

if __name__ == "__main__":
    method, preloaded, package = sys.argv[1:]
    context = importlib.import_module(package).get_context(method)
    if preloaded:
        context.set_forkserver_preload([preloaded])
    if "SGLANG_INSTRUMENT" not in os.environ:
        import sglang_instrument
        sglang_instrument.install()
    import work
    children = [context.Process(target=work.work, args=(rank,)) for rank in (1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0, child.exitcode
"""
MAIN_OF = "import os, sys; os.execv(sys.executable, [sys.executable, 'main.py', *{!r}])"
PRELOADED = ("installs", "work", "__main__")


@pytest.mark.parametrize("switched_on_by", ["install", "environment"])
@pytest.mark.parametrize(
    ("method", "preloaded"),
    [("fork", ""), ("spawn", ""), ("forkserver", ""), *(("forkserver", module) for module in PRELOADED)],
)
def test_a_child_that_calls_nothing_of_ours_but_names_it_writes_everything(
    run_script, tmp_path, method, preloaded, switched_on_by
):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "installs.py").write_text("import sglang_instrument\nsglang_instrument.install()\n")
    script = run_script(
        MAIN_OF.format([method, preloaded, "multiprocessing"]),
        **({"SGLANG_INSTRUMENT": "1"} if switched_on_by == "environment" else {}),
    )
    assert_complete(script.records)


def assert_complete(files):
    assert set(files) == {"step_1/worker_1.jsonl", "step_1/worker_2.jsonl"}
    for records in files.values():
        assert [record["extra"]["index"] for record in records if record["event"] == "did"] == [*range(1000)]
        assert records[-1]["event"] == "log_closed"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("package", ["multiprocess", "billiard"])
def test_children_of_other_packages_like_multiprocessing_write_everything(
    run_script, tmp_path, package, method
):
    pytest.importorskip(package)
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "main.py").write_text(MAIN)
    assert_complete(run_script(MAIN_OF.format([method, "", package])).records)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_workers_of_a_pool_that_ends_write_everything(run_script, tmp_path, method):
    (tmp_path / "work.py").write_text(WORK)
    script = run_script(
        f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        import sglang_instrument, work

        if __name__ == "__main__":
            sglang_instrument.install()
            with ProcessPoolExecutor(2, multiprocessing.get_context({method!r})) as pool:
                list(pool.map(work.work, (1, 2, 3, 4)))
        """,
        PYTHONWARNINGS="ignore::DeprecationWarning",  # Python 3.12 and newer warn of threads and fork
    )
    did = [record for records in script.records.values() for record in records if record["event"] == "did"]
    assert len(did) == 4000
