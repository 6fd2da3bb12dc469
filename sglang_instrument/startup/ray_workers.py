"""Hand the settings of a driver to Ray's workers: `ray.init()` gets them merged into its runtime environment.

The environment alone reaches the workers of a cluster that the driver starts itself; in a cluster that was
there before, only the runtime environment does.
"""

import copy
import functools
import importlib.machinery
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

from sglang_instrument.patching.rewriting.imports import ImportWatch
from sglang_instrument.patching.rewriting.swap import SwappedEntry
from sglang_instrument.recording.safety.notices import notice, swallowed

_RAY: Final = "ray"
_JOB: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # what `ray job submit` hands to a driver

Settings = Callable[[], Mapping[str, str]]


class RayInit:
    """`ray.init` as long as it hands our settings on.

    Args:
        settings: Returns the variables that the workers shall have; is called when Ray is initialised.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._watch = ImportWatch(self._put)
        self._entries: list[SwappedEntry] = []

    def start(self) -> None:
        """Be there when `ray.init()` is called, whether Ray is imported already or not."""
        ray = sys.modules.get(_RAY)
        if ray is None or not hasattr(ray, "init"):  # imported this very moment: the watch cannot see its end
            self._watch.start(frozenset({_RAY}))
        else:
            self._put(ray)

    def start_with(self, name: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
        """Start from within the import of Ray: return its spec, which calls back."""
        self._watch.start(frozenset({_RAY}))
        return self._watch.find_spec(name, path)

    def stop(self) -> str | None:
        """Put `ray.init` back; return what stands in the way, None if nothing does."""
        self._watch.stop()
        entries, self._entries = self._entries, []
        return next((left for entry in entries if (left := entry.restore()) is not None), None)

    def _put(self, ray: ModuleType) -> None:
        self._watch.stop()
        init = vars(ray).get("init")
        if init is None or self._entries:
            return

        @functools.wraps(init)
        def init_with_settings(*args: Any, **kwargs: Any) -> Any:
            try:
                kwargs = with_settings(kwargs, self._settings(), os.environ)
            except Exception as error:  # Ray starts without us rather than not at all
                swallowed("handing settings to Ray's workers", error)
            return init(*args, **kwargs)

        # Where it is defined, too: what pickles a function looks there whether it is the same.
        for module in (ray, sys.modules.get(init.__module__)):
            if module is not None and vars(module).get("init") is init:
                self._entries.append(SwappedEntry.put(module, "init", init, init_with_settings))
        if _is_initialised(ray):
            notice(
                "ray before install",
                "Ray was initialised before install(): its workers get no settings from here; call install() "
                "before ray.init(), or set SGLANG_INSTRUMENT=1 in the runtime environment",
            )


def with_settings(
    kwargs: Mapping[str, Any], settings: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return the arguments of `ray.init` with `settings` among the variables of the runtime environment.

    What the user set there stays. What `ray job submit` set is left out: Ray refuses to merge a variable that
    both have, and the workers have it anyway.
    """
    given = kwargs.get("runtime_env")
    if given is None:
        given = getattr(kwargs.get("job_config"), "runtime_env", None)
    theirs = given or {}
    submitted = _variables_of_job(environment)
    ours = {name: value for name, value in settings.items() if name not in submitted}
    merged = {**ours, **(theirs.get("env_vars") or {})}
    if not merged:
        return dict(kwargs)
    whole = (
        copy.copy(theirs) if isinstance(theirs, dict) else dict(theirs)
    )  # Ray's own class stays what it is
    whole["env_vars"] = merged
    return {**kwargs, "runtime_env": whole}


def _variables_of_job(environment: Mapping[str, str]) -> Mapping[str, object]:
    try:
        submitted = json.loads(environment.get(_JOB) or "{}")
        return (submitted.get("runtime_env") or {}).get("env_vars") or {}
    except (ValueError, AttributeError):  # Ray says itself that it cannot read it
        return {}


def _is_initialised(ray: ModuleType) -> bool:
    """Return whether this process is a driver of Ray's that has begun; a worker has its settings from one."""
    try:
        if not ray.is_initialized():
            return False
        return bool(ray.get_runtime_context().worker.mode == 0)  # a script's
    except Exception:
        return False
