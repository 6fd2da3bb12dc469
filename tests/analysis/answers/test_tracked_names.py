"""Files that lack what an answer looks for are not read a second time, and the answers stay the same."""

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.weights.records import PARTS, weight_spans
from sglang_instrument.testing import synthetic_run

LINE = (
    '{{"timestamp":"2026-11-20T20:15:10.133688+00:00","event":"{event}","duration_sec":0.5,'
    '"extra":{{{extra}}},"workid":0,"step":0,"start_us":1795205710000000,"task":1}}\n'
)


def test_a_run_without_weight_updates_is_not_searched_for_them(tmp_path, monkeypatch):
    run = open_run(synthetic_run(tmp_path / "run", steps=2, workers=2, requests=4), cached=False)
    assert {name for file in run.files for name in file.tracked} == set()
    assert not any(file.may_hold(PARTS) for file in run.files)
    read = []
    monkeypatch.setattr(type(run), "read_marked", lambda _, files, names: read.extend(files) or iter(()))
    assert weight_spans(run).is_empty()
    assert read == []


def test_a_file_that_holds_an_update_and_a_rid_says_so(tmp_path):
    folder = synthetic_run(tmp_path / "run", steps=1, workers=2, requests=4)
    path = folder / "step_0/worker_1.jsonl"
    path = path if path.exists() else next(folder.glob("step_*/worker_1.jsonl"))
    with path.open("a") as file:
        file.write(LINE.format(event="weights_update", extra='"rid":"a"'))
    run = open_run(folder, cached=False)
    assert {file.path.rpartition("/")[2]: file.tracked for file in run.files} == {
        "worker_0.jsonl": [],
        "worker_1.jsonl": ["rid", "weights_update"],
    }
    assert weight_spans(run)["event"].to_list() == ["weights_update"]


def test_a_file_of_which_nothing_is_known_may_hold_everything():
    from sglang_instrument.analysis.reading.files import File

    assert File("step_0/worker_0.jsonl", 1, 1).may_hold(["rid"])
    assert File("step_0/worker_0.jsonl", 1, 1, tracked=[]).may_hold(["rid", "reward"])
    assert not File("step_0/worker_0.jsonl", 1, 1, tracked=[]).may_hold(["rid"])
