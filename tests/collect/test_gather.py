"""What nodes hold comes into one folder: once, whole, apart where it differs, and goes on after a failure."""

import json
import os
import random
import shutil

import polars as pl
import pytest
import zstandard
from many_disks import DiskNode, Disks, collect
from polars.testing import assert_frame_equal

from sglang_instrument.analysis.long_runs.plan import plan_prune
from sglang_instrument.analysis.long_runs.prune import prune
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.collect import gather as gathering
from sglang_instrument.collect.collected import CollectedFolder
from sglang_instrument.collect.gather import in_chunks
from sglang_instrument.errors import LogError
from sglang_instrument.testing import synthetic_run


def log(folder, path, *lines, torn=""):
    """Write a log; its first line is its own."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines) + torn)


def described(folder, name, pid, **facts):
    target = folder / "processes" / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"host": "h", "pid": pid, **facts}))


def texts(folder):
    """Return what was collected: {path: text}."""
    paths = [path for path in folder.rglob("*") if path.is_file() and ".collect" not in path.parts]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


@pytest.fixture
def here(tmp_path):
    return tmp_path / "here"


@pytest.fixture
def node(tmp_path):
    """Make a node: node("a") with a disk of its own, or node("b", disk="a") on that of another."""

    def make(name, disk=None, **kinds):
        return DiskNode(name, tmp_path / (disk or name), **kinds)

    return make


def test_files_of_two_disks_come_together(here, node):
    a, b = node("a"), node("b")
    log(a.folder, "step_1/worker_0.jsonl", "a0", "a1")
    log(b.folder, "step_1/worker_1.jsonl", "b0")
    outcome = collect(CollectedFolder(here), a, b)
    assert texts(here) == {"step_1/worker_0.jsonl": "a0\na1\n", "step_1/worker_1.jsonl": "b0\n"}
    assert not outcome.missing
    assert {
        name: (node_outcome.files, node_outcome.new_bytes, node_outcome.error)
        for name, node_outcome in outcome.nodes.items()
    } == {
        "a": (1, 6, None),
        "b": (1, 3, None),
    }
    assert all(file.sha256 for file in outcome.files)


def test_a_second_time_brings_only_what_is_new(here, node):
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", "a0", "a1")
    log(a.folder, "step_1/worker_1.jsonl", "other")
    collect(CollectedFolder(here), a)
    assert collect(CollectedFolder(here), a).nodes["a"].new_bytes == 0
    log(a.folder, "step_1/worker_0.jsonl", "a2")
    outcome = collect(CollectedFolder(here), a)
    assert outcome.nodes["a"].new_bytes == len("a2\n")
    assert texts(here)["step_1/worker_0.jsonl"] == "a0\na1\na2\n"


def test_a_line_that_is_being_written_comes_next_time(here, node):
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", "a0", torn='{"half')
    log(a.folder, "step_2/worker_0.jsonl", torn="no line yet")
    outcome = collect(CollectedFolder(here), a)
    assert texts(here) == {"step_1/worker_0.jsonl": "a0\n"}
    assert (outcome.nodes["a"].unfinished_bytes, outcome.missing) == (17, {})
    log(a.folder, "step_1/worker_0.jsonl", '": 1}')
    log(a.folder, "step_2/worker_0.jsonl", "")
    collect(CollectedFolder(here), a)
    assert texts(here) == {
        "step_1/worker_0.jsonl": 'a0\n{"half": 1}\n',
        "step_2/worker_0.jsonl": "no line yet\n",
    }


def test_a_shared_disk_is_read_once_by_all_of_its_nodes(here, node):
    a, b = node("a"), node("b", disk="a")
    for rank in range(4):
        log(a.folder, f"step_1/worker_{rank}.jsonl", f"line of {rank}")
    outcome = collect(CollectedFolder(here), a, b)
    assert len(texts(here)) == len(outcome.files) == 4
    assert all(node_outcome.new_bytes > 0 for node_outcome in outcome.nodes.values())
    assert sum(node_outcome.new_bytes for node_outcome in outcome.nodes.values()) == sum(
        map(len, texts(here).values())
    )


def test_two_files_of_one_name_both_stay_and_a_process_keeps_its_name_in_all_folders(here, node):
    a, b = node("a"), node("b")
    log(a.folder, "step_1/worker_0.jsonl", "a0")
    described(a.folder, "worker_0", pid=1)
    log(b.folder, "step_1/worker_0.jsonl", "b0")
    log(b.folder, "step_2/worker_0.jsonl", "b's alone")
    described(b.folder, "worker_0", pid=2)
    collect(CollectedFolder(here), a, b)
    collected = texts(here)
    assert collected.keys() == {
        *("step_1/worker_0.jsonl", "step_1/worker_0.b.jsonl", "step_2/worker_0.b.jsonl"),
        *("processes/worker_0.json", "processes/worker_0.b.json"),
    }
    assert (collected["step_1/worker_0.jsonl"], collected["step_1/worker_0.b.jsonl"]) == ("a0\n", "b0\n")
    # Later, and with the nodes in another order, all keep their names.
    log(a.folder, "step_2/worker_0.jsonl", "a's, too")
    log(b.folder, "step_1/worker_0.jsonl", "b1")
    collect(CollectedFolder(here), b, a)
    assert texts(here)["step_1/worker_0.b.jsonl"] == "b0\nb1\n"
    assert texts(here)["step_2/worker_0.jsonl"] == "a's, too\n"


def test_a_copy_of_a_file_on_another_disk_is_not_taken_twice(here, node):
    a, b = node("a"), node("b")
    log(a.folder, "step_1/worker_0.jsonl", "header", "a1", "a2")
    log(b.folder, "step_1/worker_0.jsonl", "header", "a1")
    collect(CollectedFolder(here), b)
    collect(CollectedFolder(here), b, a)
    assert texts(here) == {"step_1/worker_0.jsonl": "header\na1\na2\n"}


def test_files_that_begin_alike_and_go_on_differently_both_stay(here, node):
    a, b = node("a"), node("b")
    log(a.folder, "step_1/worker_0.jsonl", "header", "a1")
    log(b.folder, "step_1/worker_0.jsonl", "header", "b1")
    collect(CollectedFolder(here), a, b)
    collect(CollectedFolder(here), a, b)
    assert sorted(texts(here).values()) == ["header\na1\n", "header\nb1\n"]


def test_a_description_that_is_written_anew_replaces_the_old_one(here, node):
    a = node("a")
    described(a.folder, "worker_0", pid=1, records=5)
    collect(CollectedFolder(here), a)
    described(a.folder, "worker_0", pid=1, records=500)
    collect(CollectedFolder(here), a)
    assert json.loads(texts(here)["processes/worker_0.json"])["records"] == 500
    described(a.folder, "worker_0", pid=2)  # restarted
    collect(CollectedFolder(here), a)
    assert json.loads(texts(here)["processes/worker_0.json"])["pid"] == 2
    assert len(texts(here)) == 1


def test_a_node_that_dies_in_the_middle_is_named_and_the_rest_is_whole(here, node, monkeypatch):
    monkeypatch.setattr(gathering, "CHUNK_BYTES", 40)
    a, b = node("a"), node("b", dies_at=lambda call, times: call == "send" and times == 3)
    log(a.folder, "step_1/worker_0.jsonl", *(f"a{n:08}" for n in range(20)))
    log(b.folder, "step_1/worker_1.jsonl", *(f"b{n:08}" for n in range(20)))
    outcome = collect(CollectedFolder(here), a, b)
    assert outcome.nodes["a"].error is None
    assert outcome.nodes["b"].error == "ConnectionError: b died"
    assert {path: (file.held_bytes, file.bytes) for path, file in outcome.missing.items()} == {
        "step_1/worker_1.jsonl": (80, 200)
    }
    assert len(texts(here)["step_1/worker_0.jsonl"]) == 200
    # While it is gone, what is missing stays named; when it is back, only the rest travels.
    assert "step_1/worker_1.jsonl" in collect(CollectedFolder(here), a).missing
    b.dies_at = None
    outcome = collect(CollectedFolder(here), a, b)
    assert (outcome.nodes["b"].new_bytes, outcome.missing) == (120, {})
    assert texts(here)["step_1/worker_1.jsonl"] == (b.folder / "step_1/worker_1.jsonl").read_text()


def test_an_interrupted_command_goes_on_where_it_ended(here, node, monkeypatch):
    monkeypatch.setattr(gathering, "CHUNK_BYTES", 40)
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", *(f"a{n:08}" for n in range(20)))

    def interrupt(done, total):
        if done == 80:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gathering.gather(str(a.folder), Disks(a), CollectedFolder(here), interrupt)
    outcome = collect(CollectedFolder(here), a)
    assert (outcome.nodes["a"].new_bytes, outcome.missing) == (120, {})
    assert texts(here)["step_1/worker_0.jsonl"] == (a.folder / "step_1/worker_0.jsonl").read_text()


def test_another_node_of_a_shared_disk_takes_over(here, node):
    a = node("a")
    b = node("b", disk="a", dies_at=lambda call, times: call == "send")
    for rank in range(4):
        log(a.folder, f"step_1/worker_{rank}.jsonl", f"line of {rank}")
    outcome = collect(CollectedFolder(here), a, b)
    assert len(texts(here)) == 4
    assert (outcome.missing, outcome.nodes["b"].error) == ({}, "ConnectionError: b died")


def test_a_node_that_joins_late_is_asked_too(here, node):
    a, late = node("a"), node("late")
    log(a.folder, "step_1/worker_0.jsonl", "a0")
    log(late.folder, "step_1/worker_1.jsonl", "l0")
    disks = Disks(a)

    def joins(call, times):
        disks.alive["late"] = late
        return False

    a.dies_at = joins
    collect(CollectedFolder(here), disks=disks)
    assert set(texts(here)) == {"step_1/worker_0.jsonl", "step_1/worker_1.jsonl"}


def test_bytes_that_changed_on_the_way_are_brought_anew(here, node):
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", "a0", "a1")
    collect(CollectedFolder(here), a)
    (here / "step_1/worker_0.jsonl").write_text("a0\nxx\n")
    log(a.folder, "step_1/worker_0.jsonl", "a2")
    assert not collect(CollectedFolder(here), a).missing
    assert texts(here)["step_1/worker_0.jsonl"] == "a0\na1\na2\n"


def test_a_file_that_was_deleted_here_comes_again(here, node):
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", "a0")
    collect(CollectedFolder(here), a)
    shutil.rmtree(here / "step_1")
    collect(CollectedFolder(here), a)
    assert texts(here) == {"step_1/worker_0.jsonl": "a0\n"}


def test_a_log_that_was_deleted_there_stays_here_beside_its_successor(here, node):
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", "first")
    collect(CollectedFolder(here), a)
    (a.folder / "step_1/worker_0.jsonl").unlink()
    log(a.folder, "step_1/worker_0.jsonl", "second")
    collect(CollectedFolder(here), a)
    assert sorted(texts(here).values()) == ["first\n", "second\n"]


def test_a_log_that_was_compressed_there_is_not_here_twice(here, node):
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", "a0")
    log(a.folder, "step_1/worker_1.jsonl", "b0")
    collect(CollectedFolder(here), a)
    log(a.folder, "step_1/worker_0.jsonl", "a1")
    for rank in (0, 1):
        plain = a.folder / f"step_1/worker_{rank}.jsonl"
        packed = zstandard.compress(plain.read_bytes() if rank == 0 else b"something else")
        plain.with_suffix(".jsonl.zst").write_bytes(packed)
        plain.unlink()
    collect(CollectedFolder(here), a)
    names = {"worker_0.jsonl.zst", "worker_1.jsonl.zst", "worker_1.jsonl"}
    assert {path.name for path in (here / "step_1").iterdir()} == names


def test_links_pipes_and_hidden_files_stay_where_they_are(here, node, tmp_path):
    a = node("a")
    log(a.folder, "step_1/worker_0.jsonl", "a0")
    log(tmp_path, "secret", "not theirs")
    (a.folder / "step_1/worker_1.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(a.folder / "step_1/worker_2.jsonl")
    log(a.folder, ".locks/worker_0.lock", "")
    collect(CollectedFolder(here), a)
    assert set(texts(here)) == {"step_1/worker_0.jsonl"}


def test_a_folder_that_holds_something_else_is_refused(here):
    log(here, "step_1/worker_0.jsonl", "somebody's")
    with pytest.raises(LogError, match="did not bring"):
        CollectedFolder(here)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LogError, match="cannot be made"):
            CollectedFolder(folder)


def test_one_collects_into_a_folder_at_a_time(here):
    with (
        CollectedFolder(here).locked(),
        pytest.raises(LogError, match="another"),
        CollectedFolder(here).locked(),
    ):
        pass


def test_a_collected_run_of_two_disks_reads_as_both(here, node):
    a, b = node("a"), node("b")
    for seed, disk_node in enumerate((a, b)):
        synthetic_run(disk_node.folder, steps=2, workers=2, requests=3, seed=seed)
    for path in b.folder.rglob("*.jsonl"):  # nodes of one launch share its id
        path.write_text(path.read_text().replace("synthetic-1", "synthetic-0"))
    collect(CollectedFolder(here), a, b)
    alone, both = [Run.open(disk_node.folder) for disk_node in (a, b)], Run.open(here)
    assert both.health.ignored == []
    for name in ("requests", "turns"):
        expected = pl.concat(getattr(run.digest, name) for run in alone)
        table = getattr(both.digest, name)
        shared = [column for column in table.columns if column != "source"]
        assert_frame_equal(table.select(shared), expected.select(shared), check_row_order=False)


@pytest.mark.parametrize("seed", range(20))
def test_chunks_hold_every_byte_once(seed):
    draw = random.Random(seed)
    parts = []
    for number in range(draw.randrange(8)):
        begin = draw.randrange(30)
        parts.append((str(number), begin, begin + draw.choice([0, 1, 5, 10, 11, 35])))
    chunks = list(in_chunks(parts, 10))
    assert all(sum(end - begin for _, begin, end in chunk) <= 10 for chunk in chunks)
    joined = {}
    for path, begin, end in (part for chunk in chunks for part in chunk):
        assert joined.setdefault(path, (begin, begin))[1] == begin
        joined[path] = joined[path][0], end
    assert joined == {path: (begin, end) for path, begin, end in parts}
    wholes = list(in_chunks(parts, 10, whole=True))
    assert [part for chunk in wholes for part in chunk] == parts


def pruned(folder):
    """Delete the records of all steps but the newest one, as `prune` does on an old run."""
    for path in folder.rglob("*.jsonl"):
        os.utime(path, (path.stat().st_mtime - 7200,) * 2)
    return prune(plan_prune(folder, 1, 0))


def test_files_that_were_pruned_here_are_not_brought_again(here, tmp_path):
    source = synthetic_run(tmp_path / "a", steps=8, workers=2, requests=4, seed=4)
    node = DiskNode("a", source)
    whole = collect(CollectedFolder(here), node)
    requests = Run.open(here).everything.requests
    assert pruned(here).files > 0
    left = sorted(here.glob("step_*"))
    again = collect(CollectedFolder(here), node)
    assert (again.nodes["a"].new_bytes, again.missing) == (0, {})
    assert again.pruned == len(whole.files) - len(list(here.glob("step_*/*")))
    assert sorted(here.glob("step_*")) == left
    assert_frame_equal(Run.open(here).everything.requests, requests)


def test_a_pruned_file_that_is_another_inode_on_its_node_is_not_brought_again(here, tmp_path):
    source = synthetic_run(tmp_path / "a", steps=8, workers=2, requests=4, seed=4)
    collect(CollectedFolder(here), DiskNode("a", source))
    pruned(here)
    shutil.copytree(source, tmp_path / "b")
    again = collect(CollectedFolder(here), DiskNode("a", tmp_path / "b"))
    assert (again.nodes["a"].new_bytes, again.pruned > 0) == (0, True)


def test_a_pruned_file_that_grew_on_its_node_is_brought_as_a_whole(here, tmp_path):
    source = synthetic_run(tmp_path / "a", steps=8, workers=2, requests=4, seed=4)
    collect(CollectedFolder(here), DiskNode("a", source))
    requests = len(Run.open(here).everything.requests)
    pruned(here)
    [gone, *_] = [path for path in source.glob("step_*/*") if not (here / path.relative_to(source)).exists()]
    late = next(line for line in gone.read_text().splitlines() if '"async_rollout_request_complete"' in line)
    with gone.open("a") as file:
        file.write(late.replace(json.loads(late)["extra"]["request_id"], "late") + "\n")
    assert collect(CollectedFolder(here), DiskNode("a", source)).missing == {}
    assert (here / gone.relative_to(source)).read_bytes() == gone.read_bytes()
    assert len(Run.open(here).everything.requests) == requests + 1


def test_what_nodes_pruned_comes_along(here, tmp_path):
    nodes = []
    for name, first in (("a", 1), ("b", 9)):
        folder = synthetic_run(tmp_path / name, steps=8, workers=2, requests=4, seed=4, first_step=first)
        assert pruned(folder).files > 0
        nodes.append(DiskNode(name, folder))
    expected = sum(len(Run.open(node.folder).everything.requests) for node in nodes)
    assert collect(CollectedFolder(here), *nodes).missing == {}
    assert len(Run.open(here).everything.requests) == expected
    assert Run.open(here).steps == list(range(1, 17))
