"""Of a rollout that starts more than it needs, the twin aborts what is left at as many groups."""

import json

import polars as pl
import pytest
from closed_loop import GROUPS, MEMBERS, WORKERS
from conftest import ENOUGH, STEPS

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.twin import Sampling, agenda, play, read_agenda, thinned, write_agenda
from sglang_instrument.twin.agendas.planned import groups_by_worker

pytestmark = pytest.mark.engine
NEEDED = dict.fromkeys(range(WORKERS), ENOUGH)


@pytest.fixture(scope="module")
def planned(oversampled):
    return agenda(open_run(oversampled))


def test_the_agenda_has_how_many_groups_a_worker_needed_and_how_it_sampled(planned):
    for step in planned:
        assert step.enough == NEEDED
        for turn in step.turns:
            assert turn.sampling == Sampling(temperature=0.5, logprobs=True)
        for worker, groups in groups_by_worker(step).items():
            cut = {request.group for request in step.requests if request.worker == worker and is_cut(request)}
            complete = [group for group in groups.keys() - cut if groups[group] == MEMBERS]
            assert len(complete) == ENOUGH
    assert any("the twin aborts what is left" in words for words in planned.missing)


def is_cut(request):
    return request.turns[-1].is_aborted or request.after_sec > 1000


def test_a_file_keeps_it(planned, tmp_path):
    write_agenda(planned, tmp_path / "agenda.jsonl")
    for before, after in zip(planned, read_agenda(tmp_path / "agenda.jsonl"), strict=True):
        assert after.enough == before.enough
        assert [turn.sampling for turn in after.turns] == [turn.sampling for turn in before.turns]
        assert [turn.is_aborted for turn in after.turns] == [turn.is_aborted for turn in before.turns]


def test_half_of_the_groups_need_half_as_many(planned):
    for step in thinned(planned, every=2):
        assert sum(step.enough.values()) == WORKERS * ENOUGH // 2


def test_the_twin_aborts_what_is_left_at_as_many_groups(planned, recorded):
    played = play(planned, [recorded.url], name="enough", log_dir=recorded.folder.parent, warm_up=False)
    assert [step.step for step in played] == list(range(1, STEPS + 1))
    requests = open_run(recorded.folder.parent / "enough").table("requests")
    groups = requests.group_by("step", "worker", "group").agg(
        members=pl.len(), cut=(pl.col("finish_reason") == "abort").any()
    )
    complete = groups.filter(members=MEMBERS, cut=False).group_by("step", "worker").len()
    assert complete["len"].to_list() == [ENOUGH] * STEPS * WORKERS
    assert groups["cut"].sum() > 0
    assert len(requests) <= STEPS * WORKERS * GROUPS * MEMBERS


def test_counts_of_a_twin_that_aborts_are_near_the_record(oversampled, recorded, tmp_path, capsys):
    asked = ["twin", str(oversampled), "--server", recorded.url, "--to", str(tmp_path), "--json"]
    assert main(asked) in (0, 1)  # how long it took depends on what else the machine does
    parts = {part["part"]: part for part in json.loads(capsys.readouterr().out)["parts"]}
    assert parts["prompt tokens"]["twin"] == pytest.approx(parts["prompt tokens"]["record"], rel=0.3)
