"""Bring a run's files from many nodes, or from object storage, into one folder; or write them to storage."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Cell, Styled
from sglang_instrument.analysis.tables.run.collected import MISSING, NODES, RENAMED
from sglang_instrument.analysis.tables.table import Row
from sglang_instrument.cli.answer import Key
from sglang_instrument.cli.columns import size
from sglang_instrument.cli.numbers import count
from sglang_instrument.cli.tables import print_json, print_line, print_rows, progress_line
from sglang_instrument.errors import InstrumentError, LogError

if TYPE_CHECKING:
    from sglang_instrument.collect.collected import CollectedFolder
    from sglang_instrument.collect.gather import Progress
    from sglang_instrument.collect.outcome import CollectOutcome

HELP: Final = """\
Bring the files of a run from the disks of many nodes, or from object storage, into one folder.

    sglang-instrument collect /scratch/logs/gsm8k_600 -o gsm8k_600 --ray
    sglang-instrument collect '$TMPDIR/logs/gsm8k_600' -o gsm8k_600 --ray 10.0.0.1:6379
    sglang-instrument collect /scratch/logs/gsm8k_600 -o gsm8k_600 --ssh 'node[001-004,7]'
    sglang-instrument collect /scratch/logs/gsm8k_600 --to s3://bucket/gsm8k_600 --every 60
    sglang-instrument collect s3://bucket/gsm8k_600 -o gsm8k_600

Run it again, also while the run goes on: it brings only what is new. Sizes and hashes are compared at the
end. Files of one name that differ both stay: the second is called worker_0.NODE.jsonl.

--ray      a task on each node, which takes no CPU, sends compressed bytes; nodes may join late
--ssh      rsync over ssh; the nodes need nothing of ours
--to       writes logs as they close, by the extra `cloud`; run it on each node that has a disk of its own

    node   state            files     new    sent  unfinished
    node1  ok                  96  1.2 GB  140 MB         0 B
    node2  ssh: timed out       0     0 B       -         0 B

The exit code is 1 if a node failed or a file is not whole."""

TABLES: Final = (NODES, MISSING, RENAMED)
ANSWER: Final = {
    "folder": Key("string", "the folder into which it was brought", optional=True),
    "files": Key("integer", "how many files of the run are in it", optional=True),
    "bytes": Key("integer", "bytes of these, or with --to of the files that were written"),
    "nodes": Key(NODES, optional=True),
    "pruned": Key("integer", "files that `prune` deleted here: they are not brought again", optional=True),
    "missing": Key(MISSING, optional=True),
    "renamed": Key(RENAMED, optional=True),
    "host": Key("string", "with --to: this machine", optional=True),
    "url": Key("string", "with --to: where it was written", optional=True),
    "written": Key("integer", "with --to: how many files were written", optional=True),
    "sent_bytes": Key("integer", "with --to: their bytes as stored", optional=True),
    "left": Key("integer", "with --to: how many files were there already", optional=True),
    "open": Key("array", "with --to: logs that are still written to", optional=True),
}
_MOST_NAMED: Final = 8
_LONGEST_SEC: Final = 1_000_000  # between two rounds of --every


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `collect`."""
    parser.add_argument(
        "run", metavar="RUN", help="the run's folder on the nodes, or its URL in object storage"
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-o", "--output", metavar="DIR", type=Path, help="the folder to bring it into")
    target.add_argument("--to", metavar="URL", help="write it to object storage: s3://bucket/run")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--ray", metavar="ADDRESS", nargs="?", const="auto", help="from all nodes of a cluster")
    way.add_argument("--ssh", metavar="HOSTS", help="from these hosts: node1,node2 or node[001-004,7]")
    way.add_argument("--hostfile", metavar="FILE", type=Path, help="from the hosts in a file, one a line")
    parser.add_argument(
        "--every", metavar="SEC", type=float, help="do it again after so many seconds, until Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Collect once, or again and again."""
    if args.every is not None and not 1 <= args.every <= _LONGEST_SEC:
        raise InstrumentError(f"--every must be from 1 to {_LONGEST_SEC:,} seconds, got {args.every:g}")
    once = _chosen(args)
    while True:
        code = once(args)
        if args.every is None:
            return code
        time.sleep(args.every)


def _chosen(args: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    """Return what the arguments ask for."""
    has_way = bool(args.ray or args.ssh or args.hostfile)
    is_url = "://" in args.run
    if args.to is not None:
        if has_way or is_url:
            raise InstrumentError("--to writes a folder of this machine; collect from nodes with -o first")
        return _upload
    if is_url == has_way:
        raise InstrumentError(
            f"{args.run} is read by fsspec; --ray, --ssh and --hostfile go with a folder"
            if is_url
            else "say where the files are: --ray, --ssh HOSTS, --hostfile FILE, or a URL such as s3://bucket/run"
        )
    return _collect


def _upload(args: argparse.Namespace) -> int:
    from sglang_instrument.collect.by_bucket import upload

    with progress_line() as say:
        run = Path(os.path.expandvars(args.run))
        done = upload(run, args.to, lambda n, total: say(f"writing: {n:,} of {total:,} files"))
    if args.json:
        print_json(done)
        return 0
    print_line(
        f"{done['written']:,} files in {done['url']}: {size(done['bytes'])}, {size(done['sent_bytes'])} as "
        f"stored; {done['left']:,} were there; {len(done['open']):,} logs are still written to"
    )
    return 0


def _collect(args: argparse.Namespace) -> int:
    from sglang_instrument.collect.collected import CollectedFolder

    folder = CollectedFolder(args.output)
    with folder.locked(), progress_line() as say:
        outcome = _gather(args, folder, lambda done, total: say(f"collecting: {size(done)} of {size(total)}"))
    if not outcome.files and not any(node.error for node in outcome.nodes.values()):
        raise LogError(f"no node has a file in {args.run}; give the run's folder as the nodes name it")
    if args.json:
        print_json(_as_json(args.output, outcome))
    else:
        _print(args.output, outcome)
    return int(bool(outcome.missing) or any(node.error for node in outcome.nodes.values()))


def _gather(args: argparse.Namespace, folder: CollectedFolder, progress: Progress) -> CollectOutcome:
    """Collect by the way that was asked for."""
    from sglang_instrument.collect.by_bucket import BucketNodes
    from sglang_instrument.collect.by_ssh import SshNodes
    from sglang_instrument.collect.gather import gather
    from sglang_instrument.collect.node_lists import parse_nodes, read_hostfile
    from sglang_instrument.collect.staging import Staging

    if args.ray:
        return _gather_by_ray(args, folder, progress)
    staging = Staging(folder.folder)
    source: SshNodes | BucketNodes
    if "://" in args.run:
        source = BucketNodes(args.run, staging)
    else:
        hosts = parse_nodes(args.ssh) if args.ssh else read_hostfile(args.hostfile)
        source = SshNodes(hosts, _absolute(args.run), staging)
    outcome = gather(staging.where, source, folder, progress)
    staging.store_once(outcome.files)
    folder.save()
    return outcome


def _gather_by_ray(args: argparse.Namespace, folder: CollectedFolder, progress: Progress) -> CollectOutcome:
    from sglang_instrument.collect.by_ray import RayNodes, connect
    from sglang_instrument.collect.gather import gather

    ray = connect(args.ray, {})
    try:
        return gather(_absolute(args.run), RayNodes(ray), folder, progress)
    finally:
        ray.shutdown()


def _absolute(run: str) -> str:
    """Return the run's folder for other machines, whose working directory is another; $NAME is theirs."""
    return run if run.startswith("$") else os.path.abspath(run)  # noqa: PTH100 - it need not exist here


def _as_json(folder: Path, outcome: CollectOutcome) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "files": len(outcome.files),
        "bytes": sum(file.held for file in outcome.files),
        "nodes": NODES.in_json(map(asdict, outcome.nodes.values())),
        "pruned": outcome.pruned,
        "missing": MISSING.in_json(map(asdict, outcome.missing.values())),
        "renamed": RENAMED.in_json(
            {"path": file.path, "node": file.node, "target": file.target}
            for file in outcome.files
            if file.path != file.target
        ),
    }


def _print(folder: Path, outcome: CollectOutcome) -> None:
    nodes = sorted(outcome.nodes.values(), key=lambda node: node.name)
    held = sum(file.held for file in outcome.files)
    from_nodes = f"{len(nodes):,} node{'' if len(nodes) == 1 else 's'}"
    title = f"{folder}: {len(outcome.files):,} files, {size(held)}, from {from_nodes}"
    print_rows(NODES, list(map(asdict, nodes)), title=title, cells=_CELLS)
    renamed = [
        f"{file.path} of {file.node} is {file.target}" for file in outcome.files if file.path != file.target
    ]
    if outcome.pruned:
        print_line(f"{outcome.pruned:,} files were pruned here, and are not brought again")
    for line in (*_some("one name, different files", renamed), *_missing(outcome)):
        print_line(line)


def _state(row: Row) -> Cell:
    return Styled("ok", "green") if row["error"] is None else Styled(row["error"], "red")


_CELLS: Final[Mapping[str, Callable[[Row], Cell]]] = {
    "error": _state,
    "sent_bytes": lambda row: row["sent_bytes"] or None,
}


def _missing(outcome: CollectOutcome) -> Iterator[str]:
    lines = [
        f"{file.path} of {file.node}: {file.held_bytes:,} of {count(file.bytes)} bytes"
        for file in outcome.missing.values()
    ]
    yield from _some("missing", lines)
    if lines or any(node.error for node in outcome.nodes.values()):
        yield "the rest is whole; the same command goes on where this one ended"


def _some(what: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        more = f"; and {len(lines) - _MOST_NAMED:,} more" if len(lines) > _MOST_NAMED else ""
        yield f"{what}: {'; '.join(lines[:_MOST_NAMED])}{more}"
