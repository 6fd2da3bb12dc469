"""Install at the moment at which a process first imports a package that there are patches for.

`sglang_instrument.pth`, shipped beside the package, imports this in every Python process that has
`SGLANG_INSTRUMENT=1`. Until a target is imported it costs a comparison an import: no thread, no file.
"""

import sys

# The packages of the shipped tables, written out: reading them here would cost what the hook must not.
PACKAGES = frozenset({"sglang", "verl", "slime", "areal"})


class Trigger:
    """A finder that finds nothing, but sees what is imported."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        """Install, once, before the first of `PACKAGES` is imported."""
        if name in PACKAGES and cls in sys.meta_path:
            sys.meta_path.remove(cls)
            try:
                import sglang_instrument

                sglang_instrument.install()
            except Exception as error:
                print(f"sglang_instrument: not installed: {error!r}", file=sys.stderr)  # noqa: T201 - nobody else can say it


if Trigger not in sys.meta_path and not PACKAGES & sys.modules.keys():
    sys.meta_path.insert(0, Trigger)
