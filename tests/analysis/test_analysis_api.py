"""The functions of `sglang_instrument.analysis` return what the commands print with --json."""

import importlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sglang_instrument import analysis as a
from sglang_instrument.analysis import Run
from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.analysis.answers.asynchronous import staleness, waste
from sglang_instrument.analysis.answers.weights import updates
from sglang_instrument.cli.main import COMMANDS, main, parser_of
from sglang_instrument.testing import Hang, SlowEngine, synthetic_run

TRAINING = ~pl.col("validate")
RULES = a.Rules(max_tokens=100)
REQUESTS = "select step, validate, worker, request_id, duration_sec from requests order by all"


def rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    return table.filter(TRAINING).to_dicts() if "validate" in table.columns else table.to_dicts()


def first(run: Run) -> dict[str, Any]:
    """The slowest request."""
    return a.request_table(run.everything).row(0, named=True)


def timed(run: Run) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The events that have a duration, and the others."""
    events = run.read_events(validate=False).filter(TRAINING).drop_nulls("step")
    lasts = pl.col("duration_sec").is_not_null()
    return events.filter(lasts), events.filter(~lasts)


def calls_of(run: Run) -> pl.DataFrame:
    """The engine calls of training."""
    return a.server_calls(run).filter(TRAINING)


def samples_of(run: Run) -> pl.DataFrame:
    """What schedulers logged when they admitted these calls."""
    return a.server_samples(run, calls_of(run))


def sampled_of(run: Run) -> pl.DataFrame:
    """The samples with the tokens that the engines generated for them."""
    return waste.with_engine_tokens(run, a.sample_fates(run.digest))


def wasted_of(run: Run) -> pl.DataFrame:
    """The tokens of each step by what became of them."""
    return a.waste_table(sampled_of(run), run.digest)


def made_once(make: Callable[[Run], Any], run: Run) -> Any:
    """What a function returns of a run: of those that take longest, each part of the answer is a key."""
    if (make, run.folder) not in _MADE:
        _MADE[make, run.folder] = make(run)
    return _MADE[make, run.folder]


_MADE: dict[tuple[Callable[[Run], Any], Path], Any] = {}


def beside_itself(run: Run) -> Any:
    return a.compare_runs(run, run)


def of_100_steps(run: Run) -> Any:
    return a.forecast_run(run, 100, 8)


def compared(run: Run) -> Any:
    return made_once(beside_itself, run)


def advised(run: Run) -> Any:
    return made_once(a.advise, run)


def forecast(run: Run) -> Any:
    return made_once(of_100_steps, run)


def steps_of(run: Run) -> Any:
    """The steps of the run that are compared with its own."""
    return compared(run).steps, compared(run).other_steps


#: For each command: its arguments, and the call that returns each key of its answer.
ANSWERS: dict[str, tuple[list[str], dict[str, Callable[[Run], Any]]]] = {
    "summary": (
        ["--step", "2"],
        {
            "findings": lambda run: [asdict(finding) for finding in a.findings_with_changes(run)],
            "steps": lambda run: rows(a.step_table(run.digest).filter(step=2)),
            "workers": lambda run: rows(a.worker_table(run.digest).filter(step=2)),
            "engine": a.engine_summary,
            "servers": a.server_rows,
            "windows": a.window_rows,
            "health": lambda run: asdict(run.health),
            "ledger": lambda run: {
                "steps": rows(a.step_ledger(a.paths_of(run)).filter(step=2)),
                "workers": rows(a.worker_ledger(a.paths_of(run)).filter(step=2)),
            },
            "verdict": a.verdict_of,
        },
    ),
    "events": ([], {"events": lambda run: a.event_table(*timed(run)).to_dicts()}),
    "requests": ([], {"requests": lambda run: rows(a.request_table(run.everything))[:20]}),
    "workers": (
        ["--step", "2"],
        {
            "workers": lambda run: a.blame_table(
                run.digest.filter(TRAINING & (pl.col("step") == 2))
            ).to_dicts(),
            "barriers": lambda run: rows(a.barrier_table(run.digest).filter(step=2)),
            "clocks": lambda run: a.clock_table(run.digest.filter(TRAINING)).to_dicts(),
            "round_trips": lambda run: a.round_trip_table(run).to_dicts(),
            "chain": lambda run: asdict(chain) if (chain := a.chain_of(a.paths_of(run), 2)) else None,
        },
    ),
    "turns": (
        ["--tools"],
        {
            "turns": lambda run: a.with_cached(
                a.turn_table(run.digest.filter(TRAINING), by_step=True),
                a.cached_by_turn(calls_of(run), by_step=True),
            ).to_dicts(),
            "counts": lambda run: a.turn_counts(run.digest.filter(TRAINING)).to_dicts(),
            "agents": lambda run: a.agent_table(run.digest.filter(TRAINING), calls_of(run)).to_dicts(),
            "tools": lambda run: a.tool_table(run.read_spans(validate=False)).to_dicts(),
        },
    ),
    "servers": (
        ["--over-time", "--idle"],
        {
            "idle": lambda run: a.idle_table(run).to_dicts(),
            "gpus": a.gpu_shares,
            "servers": lambda run: a.server_table(calls_of(run), samples_of(run)).to_dicts(),
            "balance": lambda run: a.balance(a.server_table(calls_of(run), samples_of(run))),
            "affinity": lambda run: a.affinity(a.followed_calls(calls_of(run))),
            "over_time": lambda run: a.load_over_time(calls_of(run), samples_of(run)).to_dicts(),
            "schedulers": lambda run: a.scheduler_table(run).to_dicts(),
        },
    ),
    "lengths": (
        [],
        {
            "lengths": lambda run: a.length_table(run.digest.filter(TRAINING)).to_dicts(),
            "rewards": lambda run: a.reward_by_length(run.digest.filter(TRAINING)).to_dicts(),
        },
    ),
    "loop": (
        ["--step", "2"],
        {
            "shape": lambda run: a.loop_of(run).shape(),
            "mean": lambda run: a.loop_of(run).mean([2]),
            "missing": lambda run: a.loop_of(run).missing(),
            "steps": lambda run: rows(a.loop_of(run).steps().filter(step=2)),
            "ledger": lambda run: rows(a.loop_of(run).ledger().filter(step=2)),
        },
    ),
    "weights": (
        [],
        {
            "updates": a.weight_updates,
            "findings": lambda run: [asdict(finding) for finding in a.weights_findings(run)],
            "missing": lambda run: updates.missing_of(a.weight_updates(run)),
        },
    ),
    "staleness": (
        [],
        {
            "steps": lambda run: a.staleness_table(a.sample_fates(run.digest)).to_dicts(),
            "workers": lambda run: a.staleness_table(a.sample_fates(run.digest), by_worker=True).to_dicts(),
            "groups": lambda run: staleness.group_table(a.sample_fates(run.digest)).to_dicts(),
            "fates": lambda run: (
                a.sample_fates(run.digest).group_by("fate").agg(samples=pl.len()).sort("fate").to_dicts()
            ),
            "missing": lambda run: staleness.missing_of(a.sample_fates(run.digest), run.digest),
        },
    ),
    "waste": (
        [],
        {
            "steps": lambda run: wasted_of(run).to_dicts(),
            "total": lambda run: waste.totals(wasted_of(run)),
            "engine": waste.engine_waste,
            "missing": lambda run: waste.missing_of(sampled_of(run), run.digest, waste.engine_waste(run)),
        },
    ),
    "gaps": (
        ["--curve"],
        {
            "plateaus": lambda run: [
                {**row, **a.standstill(run.digest, row)} for row in rows(a.plateaus(run.digest))
            ],
            "blocks": lambda run: rows(a.loop_blocks(run.files)),
            "curve": lambda run: rows(a.concurrency(run.digest)),
        },
    ),
    "whatif": (
        ["--max-tokens", "100"],
        {
            "assumptions": lambda run: a.ASSUMPTIONS,
            "engine": lambda run: a.Model(run.digest, waits=a.waits_of(run)).engine,
            "pools": lambda run: a.waits_of(run).pools,
            "steps": lambda run: rows(a.Model(run.digest, waits=a.waits_of(run)).predict(RULES)),
            "validation": lambda run: a.validation_of(
                a.Model(run.digest, waits=a.waits_of(run)).predict(RULES).filter(TRAINING), run.digest
            ),
        },
    ),
    "advise": (
        [],
        {
            "sentence": lambda run: advised(run).sentence,
            "levers": lambda run: advised(run).rows(str(run.folder)),
            "together": lambda run: advised(run).together,
            "step_sec": lambda run: advised(run).step_sec,
            "mend_first": lambda run: advised(run).mend_first and advised(run).mend_first.sentence,
            "limits": lambda run: a.limit_table(run).to_dicts(),
            "missing": lambda run: advised(run).missing,
            "assumptions": lambda run: advised(run).assumptions,
        },
    ),
    "forecast": (
        ["--steps", "100", "--gpus", "8"],
        {
            name: lambda run, name=name: getattr(forecast(run), name)  # type: ignore[misc]
            for name in (
                *("sentence", "last_step", "steps", "steps_left", "from_us", "left_sec", "low_sec"),
                *("high_sec", "gpus", "growth", "milestones", "caps", "missing", "assumptions"),
            )
        }
        | {"gpu_hours": lambda run: forecast(run).gpu_hours()},
    ),
    "compare": (
        ["--fail-if", "engine > 1.1x"],
        {
            "metrics": lambda run: compared(run).table.to_dicts(),
            "conditions": lambda run: compared(run).outcomes([a.Condition("engine", True, 1.1)]),
            "steps_a": lambda run: compared(run).steps,
            "steps_b": lambda run: compared(run).other_steps,
            "left_out_a": lambda run: compared(run).left_out,
            "left_out_b": lambda run: compared(run).other_left_out,
            "cold_a": lambda run: compared(run).cold,
            "cold_b": lambda run: compared(run).other_cold,
            "paired": lambda run: compared(run).paired,
            "changes": lambda run: a.change_table(*(run, run), *steps_of(run)).to_dicts(),
            "reasons": lambda run: a.reason_table(*(run, run), *steps_of(run)).to_dicts(),
            "settings": lambda run: [
                difference._asdict()
                for difference in a.differing_settings(a.settings_of(run.home), a.settings_of(run.home))
            ],
        },
    ),
    "check": (
        [],
        {
            "health": lambda run: asdict(run.health),
            "open": a.unended_spans,
            "seen": a.sightings,
            "clocks": lambda run: a.clock_table(run.digest).to_dicts(),
            "round_trips": lambda run: a.round_trip_table(run).to_dicts(),
            "without_records": a.workers_without_records,
            "deaths": lambda run: [
                asdict(finding) for finding in a.findings_of(run) if finding.cause == "death"
            ],
            "unbound": lambda run: a.unbound_calls(run).sentences,
        },
    ),
    "sql": ([REQUESTS], {"rows": lambda run: run.sql(REQUESTS).to_dicts()}),
    "status": ([], {"processes": lambda run: list(a.read_processes(run.folder).processes.values())}),
}
#: Keys that repeat the arguments of the command, or follow from the answers above.
ASKED = {
    "folder",
    "step",
    "worker",
    "validate",
    "a",
    "b",
    "failed",
    "ok",
    "run_id",
    "older",
    "unreadable",
    "unknown",
}
#: Commands that do not read the log of a run, and what a program calls instead.
NOT_OF_A_LOG = {
    "runs": "opens several runs: open_run() and verdict_of() of each",
    "collect": "brings files",
    "watch": "follows a run that goes on",
    "prune": "deletes files: analysis.long_runs.prune.prune()",
    "demo": "runs something",
    "run": "runs something",
    "completion": "prints a script",
    "doctor": "looks at this machine",
    "patches": "looks at sources",
    "profile": "talks to servers",
    "twin": "talks to servers: twin.play()",
    "mcp": "answers an agent with what the other commands print",
    "trace": "reads profilers' traces: profiling.traces.analyse()",
    "report": "writes a file: report.build.write_report()",
    "plot": "writes files: report.figures.draw()",
    "export": "writes files: analysis.dataset.export.export_dataset()",
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs") / "exp"
    return synthetic_run(
        folder,
        steps=3,
        workers=2,
        requests=8,
        validate_every=3,
        causes=[SlowEngine(2, 1, factor=6.0), Hang(3, 1)],
    )


def test_each_command_has_a_counterpart_in_the_analysis_api() -> None:
    assert sorted([*ANSWERS, *NOT_OF_A_LOG]) == sorted(COMMANDS)
    assert all("--json" in parser_of(name).format_help() for name in ANSWERS)


@pytest.mark.parametrize("command", ANSWERS)
def test_the_analysis_returns_what_the_command_answers(
    logs: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, functions = ANSWERS[command]
    if command == "status":
        (logs / "processes").mkdir(exist_ok=True)
        (logs / "processes/worker_0.json").write_text('{"run_id": "r", "role": "worker", "rank": 0}')
    if command == "forecast":  # which needs more steps
        logs = synthetic_run(logs.parent / "longer", steps=6, workers=2, requests=8)
    other = {"compare": [str(logs)], "whatif": ["--validate-with", str(logs)]}.get(command, [])
    assert main([command, str(logs), *other, *arguments, "--json"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) <= {*functions, *ASKED}
    run = a.open_run(logs)
    for key, function in functions.items():
        returned = json.loads(as_json(function(run)))
        assert same(answer[key], returned), key


def same(answer: Any, returned: Any) -> bool:
    """Return whether a function's result contains the whole answer of a command; it may have more keys."""
    if isinstance(answer, list) and isinstance(returned, list):
        return len(answer) == len(returned) and all(map(same, answer, returned))
    if isinstance(answer, dict) and isinstance(returned, dict):
        return all(same(answer[key], returned[key]) for key in answer.keys() & returned.keys())
    return bool(answer == (pytest.approx(returned) if isinstance(returned, float) else returned))


def test_every_name_of_the_analysis_is_documented_and_no_name_of_a_module() -> None:
    assert a.__all__ == sorted(a.__all__)
    for name in a.__all__:
        assert name == "ASSUMPTIONS" or getattr(a, name).__doc__, name
        with pytest.raises(ModuleNotFoundError):  # else `analysis.name` would be the module, once imported
            importlib.import_module(f"sglang_instrument.analysis.{name}")
