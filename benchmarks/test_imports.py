"""What everyone pays who imports the package, and who has it but does not use it."""

import subprocess
import sys
import time

from rounds import Spread, save, table

TIMES = 20
BOUND_MS = 35
HEAVY = ("wrapt", "filelock", "torch", "sglang", "ray", "polars", "numpy")


def run_ms(code):
    before = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - before) * 1000


def test_importing_the_package_is_quick(show):
    code = "import sglang_instrument"
    run_ms(code)
    pairs = [(run_ms(code), run_ms("pass")) for _ in range(TIMES)]
    spent = Spread.of([with_it - without for with_it, without in pairs])
    rows = [("import", f"{spent.median:.1f}", f"{spent.low:.1f} .. {spent.high:.1f}", BOUND_MS)]
    show(table("import sglang_instrument, ms beyond `pass`", ("", "ms", "quartiles", "bound"), rows))
    save("imports", rows, pairs=pairs)
    assert spent.median <= BOUND_MS


def test_importing_the_package_imports_nothing_heavy():
    code = f"import sys, sglang_instrument; sys.exit(' '.join(set({HEAVY!r}) & sys.modules.keys()) or 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
