"""Describe what `--json` says of a run's log: the keys of `Health`."""

from __future__ import annotations

from typing import Final

from sglang_instrument.cli.answer import Key

HEALTH: Final = {
    "files": Key("integer", "log files read"),
    "records": Key("integer", "records read, without control records"),
    "torn": Key("integer", "lines that begin like a record and end early, as after a kill"),
    "foreign": Key("integer", "other lines that are not records"),
    "unreadable": Key("object", "why a file could not be read to its end, by file"),
    "empty": Key("array", "files without any line"),
    "newer": Key("object", "the log version of files that a newer version wrote, by file"),
    "ignored": Key("array", "entries of the run's folder that were not read"),
    "headerless": Key("integer", "files without a log_opened"),
    "local_times": Key("integer", "records whose timestamp has no UTC offset; it counts as UTC"),
    "runs": Key("array", "ids of the runs whose records are used, oldest first"),
    "older": Key("object", "records left out because a newer run wrote the same step, by run id"),
    "at_once": Key("array", "ids of launches that wrote steps at the same time"),
    "dropped": Key("integer", "records that the writers report as dropped"),
    "sampled_out": Key("integer", "records that the writers left out by sampling, as configured"),
    "unclosed": Key("array", "[step, validate, worker] of files that are not closed"),
    "missing": Key("array", "[step, worker] without a file between steps that have one"),
    "outside": Key("integer", "records that belong to no step"),
    "ended_abruptly": Key("array", "processes that are gone and did not close their logs"),
    "open_at_end": Key("array", "what was open in children of the program when they were killed"),
    "open_spans": Key("integer", "open_spans records: something hung, for a while or for good"),
    "pruned": Key("object", "how many of the files `prune` deleted, by day (UTC)"),
    "read_as": Key("string", "the format of another project's log; empty for our own"),
    "unfit": Key("object", "how many values were left out, as they fit no column, by field"),
    "unfit_examples": Key("object", "a file and the first such value in it, by field"),
    "cannot_show": Key("array", "what logs of this format do not hold"),
}
