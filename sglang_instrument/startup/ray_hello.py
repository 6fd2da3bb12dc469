"""Run in each of Ray's workers at its start, sent as text: without this package, the worker says so, once.

An actor's Python may be another one: `py_executable`, `conda`, `pip`, `uv`, a container. It knows neither
this package nor its start-up hook. So the text imports the standard library and Ray alone, and never raises:
Ray ends a worker whose set-up fails.
"""

# ruff: noqa: PTH103, PTH118 - this runs at the start of each such worker, and pathlib takes long to import

_PACKAGE = "sglang_instrument"


def say_hello() -> None:
    """Load the start-up hook where the package can be imported; else say that it is missing."""
    import importlib
    import importlib.util
    import os

    try:
        if os.environ.get("SGLANG_INSTRUMENT", "").strip().lower() in ("", "0", "false", "no", "off"):
            return
        if importlib.util.find_spec(_PACKAGE) is not None:
            importlib.import_module(f"{_PACKAGE}.startup.python_startup")  # as its .pth file does
        else:
            _say_missing()
    except Exception:  # there is nothing here to report it with
        pass


def _say_missing() -> None:
    import os
    import sys

    python, host, run_id = sys.executable, os.uname().nodename, os.environ.get("SGLANG_INSTRUMENT_RUN_ID", "")
    text = (
        f"Ray workers of {python} lack this package: nothing that runs in them is recorded. If rollouts, "
        f"rewards or engines do, run `{_command(python)}` in a checkout of sglang-instrument, on each node"
    )
    if _is_first(f"{run_id} {host} {python}"):
        _describe(run_id, host, text)
    if _is_first(f"{run_id} {python}"):
        _tell_driver(f"{_PACKAGE}: {text}")


def _command(python: str) -> str:
    import importlib.util

    has_pip = importlib.util.find_spec("pip") is not None
    return f"{python} -m pip install ." if has_pip else f"uv pip install --python {python} ."


def _is_first(name: str) -> bool:
    """Return whether no other worker of the cluster has given this name; True where Ray cannot tell."""
    try:
        from ray.experimental import internal_kv

        return not internal_kv._internal_kv_put(f"{_PACKAGE} {name}", b"1", overwrite=False)
    except Exception:
        return True


def _tell_driver(line: str) -> None:
    """Have the driver print a line; where this Ray has no way to, print it here: Ray forwards that."""
    import sys

    try:
        from ray._private import utils, worker

        here = worker.global_worker
        utils.publish_error_to_driver(
            "sglang_instrument", line, gcs_client=here.gcs_client, job_id=here.current_job_id
        )
    except Exception:
        sys.stderr.write(line + "\n")


def _describe(run_id: str, host: str, text: str) -> None:
    """Describe this process as `recording/keep/presence.py` does, for `status`."""
    import json
    import os
    import platform
    import sys
    import time

    folder = os.environ.get("SGLANG_INSTRUMENT_LOG_DIR")
    experiment = os.environ.get("SGLANG_INSTRUMENT_EXPERIMENT")
    if not folder or not experiment:
        return
    facts = {
        "role": None,
        "rank": None,
        "run_id": run_id,
        "host": host,
        "pid": os.getpid(),
        "started_us": time.time_ns() // 1000,
        "command": [sys.executable],
        "python": platform.python_version(),
        "notices": [{"notice": text, "times": 1}],
    }
    place = os.path.join(folder, experiment, "processes", "reached")
    os.makedirs(place, exist_ok=True)
    path = os.path.join(place, f"{host}-{os.getpid()}.json")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        os.write(file, json.dumps(facts, indent=2).encode())
    finally:
        os.close(file)
