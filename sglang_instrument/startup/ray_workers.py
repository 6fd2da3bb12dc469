"""Pass a driver's settings to Ray's workers: merge them into the runtime environment of `ray.init()`.

Environment variables alone reach the workers of a cluster that the driver starts itself; in a cluster that
already runs, only the runtime environment reaches them. A worker whose Python lacks this package says so:
see `ray_hello.py`.
"""

import copy
import functools
import importlib.machinery
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Final

from sglang_instrument.patching.rewriting.imports import ImportWatch
from sglang_instrument.patching.rewriting.swap import SwappedEntry
from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.safety.static_lookup import entries

_RAY: Final = "ray"
_PACKAGE: Final = "sglang_instrument"
_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # `ray job submit` sets it for a driver
_HOOK: Final = "worker_process_setup_hook"  # the function that each worker runs at its start
_HOOK_OF_JOB: Final = "RAY_WORKER_PROCESS_SETUP_HOOK"  # where Ray itself keeps its name

Settings = Callable[[], Mapping[str, str]]


class RayInit:
    """Replaces `ray.init` by a function that passes our settings on, from `start` to `stop`.

    Args:
        settings: Returns the environment variables for the workers; called when Ray is initialised.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._watch = ImportWatch(self._put)
        self._entries: list[SwappedEntry] = []

    def start(self) -> None:
        """Replace `ray.init` now, or as soon as Ray is imported."""
        ray = sys.modules.get(_RAY)
        if "init" not in entries(ray):  # an import in progress: the watch cannot see its end
            self._watch.start(frozenset({_RAY}))
        else:
            self._put(_RAY, ray)

    def start_with(self, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Start during the import of Ray: return a spec that calls back after the import."""
        self._watch.start(frozenset({_RAY}))
        return self._watch.find_spec(name, path)

    def stop(self) -> str | None:
        """Restore `ray.init`; return why that is impossible, None if it was done."""
        self._watch.stop()
        entries, self._entries = self._entries, []
        return next((left for entry in entries if (left := entry.restore()) is not None), None)

    def _put(self, name: str, ray: Any) -> None:
        self._watch.stop()
        init = entries(ray).get("init")
        if type(init) is not FunctionType or self._entries:  # not a stand-in of somebody's tests
            return

        @functools.wraps(init)
        def init_with_settings(*args: Any, **kwargs: Any) -> Any:
            try:
                kwargs = with_settings(kwargs, self._settings(), os.environ)
                if _takes_hook(ray, args[0] if args else kwargs.get("address"), os.environ):
                    kwargs = with_hello(kwargs, os.environ)
            except Exception as error:  # Ray starts without us rather than not at all
                log_swallowed("handing settings to Ray's workers", error)
            return init(*args, **kwargs)

        # Replace it in its defining module, too: pickle checks there that the function is the same.
        for module in (ray, sys.modules.get(init.__module__)):
            if entries(module).get("init") is init:
                self._entries.append(SwappedEntry.put(module, "init", init, init_with_settings))
        if _is_initialised(ray):
            notice(
                "ray before install",
                "Ray was initialised before install(): its workers do not get this process's settings; call "
                "install() before ray.init(), or set SGLANG_INSTRUMENT=1 in the runtime environment",
            )


def with_settings(
    kwargs: Mapping[str, Any], settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of `ray.init` with `settings` added to the variables of the runtime environment.

    Variables that the user set there win. Variables that `ray job submit` set are left out: Ray refuses to
    merge a variable that is set twice, and the workers have it anyway.
    """
    given = kwargs.get("runtime_env")
    if given is None:
        given = getattr(kwargs.get("job_config"), "runtime_env", None)
    theirs = given or {}
    submitted = _submitted(environment).get("env_vars") or {}
    ours = {name: value for name, value in settings.items() if name not in submitted}
    merged = {**ours, **(theirs.get("env_vars") or {})}
    if not merged:
        return dict(kwargs)
    whole = (
        copy.copy(theirs) if isinstance(theirs, dict) else dict(theirs)
    )  # Ray's own class stays what it is
    whole["env_vars"] = merged
    return {**kwargs, "runtime_env": whole}


def with_hello(kwargs: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `ray.init` with `ray_hello.py` as the hook of each worker.

    The user's own hook, or that of a submitted job, stays: Ray takes only one.
    """
    whole = kwargs.get("runtime_env")
    if not whole:  # `with_settings` has copied what a job_config holds; without settings nobody listens
        return dict(kwargs)
    given = [environment]
    for runtime_env in (whole, _submitted(environment)):
        given += [runtime_env, runtime_env.get("env_vars") or {}]
    if any(_HOOK in names or _HOOK_OF_JOB in names for names in given):
        return dict(kwargs)
    whole = copy.copy(whole) if isinstance(whole, dict) else dict(whole)
    whole["env_vars"] = {**(whole.get("env_vars") or {})}  # Ray adds a variable
    whole[_HOOK] = _hello()
    return {**kwargs, "runtime_env": whole}


def _hello() -> "functools.partial[None]":
    """Return the hook: `exec` of a text, which unpickles in every Python, with or without this package."""
    from sglang_instrument.startup import ray_hello

    text = f"{inspect.getsource(ray_hello)}\nsay_hello()\n"
    # Compiled only where the package was not loaded at the start of Python.
    first = f"import sys\nif {_PACKAGE!r} not in sys.modules: exec(text, {{}})"
    hook = functools.partial(exec, first, {"text": text})
    hook.__name__ = _PACKAGE  # type: ignore[attr-defined] # Ray names the hook by it
    return hook


def _takes_hook(ray: Any, address: object, environment: Mapping[str, str]) -> bool:
    """Return whether this Ray runs hooks, and nothing between it and the cluster could refuse a function."""
    known = getattr(getattr(sys.modules.get("ray.runtime_env"), "RuntimeEnv", None), "known_fields", ())
    is_direct = "://" not in str(address or environment.get("RAY_ADDRESS", ""))  # else through a server
    return _HOOK in known and is_direct and "RAY_RUNTIME_ENV_HOOK" not in environment


def _submitted(environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the runtime environment that `ray job submit` has set for a driver."""
    try:
        return json.loads(environment.get(_JOB) or "{}").get("runtime_env") or {}
    except (ValueError, AttributeError):  # Ray itself reports that it cannot read the variable
        return {}


def _is_initialised(ray: Any) -> bool:
    """Return whether this process is an initialised Ray driver; workers get settings from their driver."""
    try:
        if not ray.is_initialized():
            return False
        return bool(ray.get_runtime_context().worker.mode == 0)  # the mode of a driver script
    except Exception:
        return False
