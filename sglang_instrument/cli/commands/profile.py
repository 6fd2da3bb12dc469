"""Start and stop the profilers of the engines' servers from any machine, and gather their traces."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli.profile_tables import ANSWER as ANSWER
from sglang_instrument.cli.profile_tables import TABLES as TABLES
from sglang_instrument.config import PREFIX
from sglang_instrument.errors import ConfigError, InstrumentError
from sglang_instrument.plain_text import listed

if TYPE_CHECKING:
    from sglang_instrument.profilers.options import ProfileOptions
    from sglang_instrument.profilers.workers import EngineWorker

HELP: Final = """\
Switch the profilers of the engines' servers (SGLang or vLLM), all at once, and gather their traces.

    sglang-instrument profile capture --router-url http://127.0.0.1:3521     # all in one command
    sglang-instrument profile start --router-url http://127.0.0.1:3521 --num-steps 5
    sglang-instrument profile stop  --log train.log                         # the log names the router
    sglang-instrument profile check --worker-url 10.0.0.4:15000 10.0.0.5:15000

capture   start, send a few requests (--requests 0: wait for traffic), stop, list and analyse the traces
start     start; the profilers stop after --num-steps (3), with --num-steps 0 at `stop`: megabytes a second
stop      stop, and wait until the traces are written, at most --timeout (30 min)
check     before `start`: can each server be reached and profiled; starts nothing
status    after `start`: which engines they are, what was started from here, which traces are written

Exit code 1 if a worker failed; its row tells why. docs/how-to/profiling.md explains vLLM, nsys, and how to
profile chosen steps of a run (SGLANG_INSTRUMENT_PROFILE_STEPS=5-7)."""

_MOST_NAMED: Final = 64  # addresses
ACTIONS: Final = ("start", "stop", "status", "check", "capture")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `profile`."""
    parser.add_argument("action", nargs="?", choices=ACTIONS)
    parser.add_argument("--action", dest="action_option", choices=ACTIONS, help="the action as an option")
    where = parser.add_argument_group("which workers (one or several of these)")
    where.add_argument("--router-url", action="append", default=[], metavar="URL", help="repeatable")
    where.add_argument("--worker-url", action="extend", nargs="+", default=[], metavar="URL")
    where.add_argument("--log", type=Path, help="a trainer's log that names its router or its servers")
    where.add_argument("--run", type=Path, metavar="LOGS", help="a run's folder: logs/EXPERIMENT")
    where.add_argument("--workers", metavar="N,N-N", help="only these workers; the first is 0")
    what = parser.add_argument_group("what to record")
    what.add_argument("--output-dir", metavar="DIR", help="on the workers' machines (/tmp/sglang_profile)")
    what.add_argument("--num-steps", type=int, metavar="N", help="forward steps (3); 0: until `stop`")
    what.add_argument("--start-step", type=int, metavar="N", help="first forward step of the engine")
    what.add_argument("--activities", nargs="+", metavar="A", help="CPU GPU MEM CUDA_PROFILER RPD")
    what.add_argument("--profile-by-stage", action="store_true", help="separate traces of prefill and decode")
    what.add_argument("--profile-stages", nargs="+", metavar="S", help="only these stages: prefill decode")
    what.add_argument("--with-stack", action=argparse.BooleanOptionalAction, help="Python stacks")
    what.add_argument("--record-shapes", action=argparse.BooleanOptionalAction, help="tensor shapes")
    what.add_argument("--merge-profiles", action="store_true", help="also merge all ranks into one file")
    what.add_argument("--profile-prefix", metavar="TEXT", help="prefix of the files' names")
    what.add_argument("--profile-id", metavar="ID", help="name of the capture")
    what.add_argument("--detailed-annotations", action="store_true", help="annotate each step with its load")
    how = parser.add_argument_group("how")
    how.add_argument("--requests", type=int, default=4, metavar="N", help="capture: requests a worker (4)")
    how.add_argument("--max-new-tokens", type=int, metavar="N", help="capture: tokens of such a request")
    how.add_argument("--timeout", type=float, metavar="SEC", help="for each worker (start 60, stop 1800)")
    how.add_argument("--retries", type=int, default=1, metavar="N", help="if nothing listens (%(default)s)")
    how.add_argument("--api-key", metavar="KEY", help=f"admin key of typed addresses; or {PREFIX}API_KEY")
    how.add_argument("--trust-router", action="store_true", help="it goes to all workers of typed routers")
    how.add_argument(
        "--force", action="store_true", help="start even if a profiler runs that was started here"
    )
    how.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Do the action on all workers at once."""
    from sglang_instrument.cli.commands import profile_actions as actions

    action = _action(args)
    options = _options(args)
    args.api_key = args.api_key or os.environ.get(f"{PREFIX}API_KEY")
    for name in ("requests", "retries"):
        if getattr(args, name) < 0:
            raise InstrumentError(f"--{name} must be 0 or more, got {getattr(args, name)}")
    if args.timeout is not None and args.timeout <= 0:
        raise InstrumentError(f"--timeout must be more than 0 seconds, got {args.timeout:g}")
    only_log = action == "check" and args.log and not (args.router_url or args.worker_url or args.run)
    workers = _workers(args, may_lack=bool(only_log))
    return int(getattr(actions, action)(args, workers, options))


def _action(args: argparse.Namespace) -> str:
    if args.action and args.action_option and args.action != args.action_option:
        raise InstrumentError(f"profile {args.action} --action {args.action_option}: give one action")
    chosen = args.action or args.action_option
    if chosen is None:
        raise InstrumentError(f"profile needs an action: {', '.join(ACTIONS)}; --help explains them")
    return str(chosen)


def _options(args: argparse.Namespace) -> ProfileOptions:
    from sglang_instrument.profilers.options import read_options

    given: dict[str, Any] = {
        name: getattr(args, name)
        for name in (
            *("output_dir", "num_steps", "start_step", "activities", "profile_by_stage", "profile_stages"),
            *("with_stack", "record_shapes", "merge_profiles", "profile_prefix", "profile_id"),
            "detailed_annotations",
        )
    }
    if given["output_dir"]:
        # The servers have other working directories.
        given["output_dir"] = os.path.abspath(given["output_dir"])  # noqa: PTH100 - the last slash goes, links stay
    if given["activities"]:
        given["activities"] = [name.upper() for name in given["activities"]]
    return read_options({name: value for name, value in given.items() if value is not None})


def _workers(args: argparse.Namespace, *, may_lack: bool) -> list[EngineWorker]:
    from sglang_instrument.profilers.workers import (
        EngineWorker,
        WorkersError,
        addresses_in_log,
        addresses_in_run,
        workers_at,
        workers_behind,
    )

    routers, urls = list(args.router_url), list(args.worker_url)
    for path, read in ((args.log, addresses_in_log), (args.run, addresses_in_run)):
        if path is not None:
            try:
                more_routers, more_urls = read(path)
            except WorkersError:
                if may_lack:
                    continue
                raise
            _demand_typed(args, path, more_routers, more_urls)
            routers += more_routers
            # The router lists the same servers under their current addresses.
            urls += [] if more_routers else more_urls
    if not routers and not urls:
        if may_lack:
            return []
        raise WorkersError("profile needs workers: give --router-url, --worker-url, --log or --run")
    workers = workers_behind(routers, api_key=args.api_key) + workers_at(urls)
    unique: dict[str, bool | None] = {}
    for worker in workers:
        unique.setdefault(worker.url, worker.healthy)
    all_ = [EngineWorker(number, url, healthy) for number, (url, healthy) in enumerate(unique.items())]
    chosen = _chosen(all_, args.workers)
    _demand_trusted(args, chosen)
    return chosen


def _demand_trusted(args: argparse.Namespace, workers: Sequence[EngineWorker]) -> None:
    """Refuse to send the admin key to workers that only a router names: whoever reaches it may register one.

    Raises:
        WorkersError: There is a key, and a worker whose address the user did not type.
    """
    from sglang_instrument.profilers.workers import WorkersError, same_address

    typed = {same_address(address) for address in args.worker_url}
    named = [worker.url for worker in workers if same_address(worker.url) not in typed]
    if args.api_key and named and not args.trust_router:
        raise WorkersError(
            f"the router lists {listed(named, _MOST_NAMED)}; an admin key goes only to addresses that you "
            "type: give the right ones by --worker-url, or --trust-router if nobody else can register workers"
        )


def _demand_typed(args: argparse.Namespace, path: Path, routers: list[str], urls: list[str]) -> None:
    """Refuse to send the admin key to an address that only a log names: a reply of the model may stand in it.

    Raises:
        WorkersError: There is a key, and the log names an address that the user did not type.
    """
    from sglang_instrument.profilers.workers import WorkersError, same_address

    typed = {same_address(address) for address in (*args.router_url, *args.worker_url)}
    named = [address for address in routers or urls if same_address(address) not in typed]
    if args.api_key and named:
        what = "router" if routers else "worker"
        raise WorkersError(
            f"{path} names {what}{'s' * (len(named) > 1)} {listed(named, _MOST_NAMED)}; an admin key goes "
            f"only to addresses that you type: give the right ones by --{what}-url, or leave --api-key and "
            f"{PREFIX}API_KEY out"
        )


def _chosen(workers: list[EngineWorker], wanted: str | None) -> list[EngineWorker]:
    from sglang_instrument.profilers.options import numbers

    if wanted is None or wanted == "all":
        return workers
    try:
        asked = numbers(wanted)
    except ValueError as error:
        raise ConfigError(f"--workers {wanted!r}: {error}") from None
    chosen = [worker for worker in workers if worker.number in asked]
    if not chosen:
        raise InstrumentError(f"--workers {wanted}: the workers are 0 to {len(workers) - 1}")
    return chosen
