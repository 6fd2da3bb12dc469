"""See where every second of an RL rollout on SGLang goes.

import sglang_instrument
sglang_instrument.install()

From then on, each rollout worker R writes each event of each turn of each request of step N to
`logs/$EXPERIMENT_NAME/step_N/worker_R.jsonl`; `sglang-instrument summary logs/NAME` reads it.
"""

__version__ = "0.2.0"

# typing.TYPE_CHECKING; importing typing would double the time of this import. Written as a call: jedi, which
# completes names in notebooks, ignores the branch below an `if` of the literal False.
TYPE_CHECKING = bool()  # noqa: UP018
if TYPE_CHECKING:
    from sglang_instrument.config import Config
    from sglang_instrument.errors import ConfigError, InstrumentError, LogError, TableError, TargetError
    from sglang_instrument.patching.decorating.instrument import instrument
    from sglang_instrument.recording.log_manager import SGLangLogManager
    from sglang_instrument.recording.measure.binding import bind, step
    from sglang_instrument.recording.measure.spans import event, span
    from sglang_instrument.startup.install import flush, install, installed, scalars, status, uninstall

__all__ = [
    "Config",
    "ConfigError",
    "InstrumentError",
    "LogError",
    "SGLangLogManager",
    "TableError",
    "TargetError",
    "bind",
    "event",
    "flush",
    "install",
    "installed",
    "instrument",
    "scalars",
    "span",
    "status",
    "step",
    "uninstall",
]


_HOMES = {
    "Config": "config",
    "ConfigError": "errors",
    "InstrumentError": "errors",
    "LogError": "errors",
    "SGLangLogManager": "recording.log_manager",
    "TableError": "errors",
    "TargetError": "errors",
    "bind": "recording.measure.binding",
    "event": "recording.measure.spans",
    "flush": "startup.install",
    "install": "startup.install",
    "installed": "startup.install",
    "instrument": "patching.decorating.instrument",
    "scalars": "startup.install",
    "span": "recording.measure.spans",
    "status": "startup.install",
    "step": "recording.measure.binding",
    "uninstall": "startup.install",
}

# msgspec imports these from C. An exception of the program that comes meanwhile would be replaced by an
# ImportError, and the next import of msgspec may crash the process: so they are imported before it.
_NEEDED_BY_MSGSPEC = ("datetime", "decimal", "enum", "re", "typing", "uuid")


def __getattr__(name: str) -> object:
    """Import a public name at its first use: the start-up hook imports this module in every process."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if home.startswith(("recording.", "patching.", "startup.")):
        for needed in _NEEDED_BY_MSGSPEC:
            import_module(needed)
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
