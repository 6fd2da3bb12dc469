"""Measure the cost of importing the package, and of having it installed without using it."""

import os
import subprocess
import sys
import time
from pathlib import Path

from rounds import Spread, save, table

TIMES = 20
BOUND_MS = 35
OFF_US, ON_US = 50, 2000
HOOK = Path(__file__).resolve().parents[1] / "sglang_instrument.pth"
HEAVY = ("wrapt", "filelock", "torch", "sglang", "ray", "polars", "numpy")
#: Time what `site` does with the hook at each start, without the imports of `site` itself.
START = """
import sys, time
import site
print("hook", file=sys.stderr)
began = time.perf_counter_ns()
site.addpackage(*sys.argv[1:], set())
print((time.perf_counter_ns() - began) / 1000)
"""


#: Python may write compiled modules here, as for users: compiling them each time takes milliseconds.
ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_ms(code):
    before = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT)
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


def start_us(switch):
    """Return microseconds of the hook at process start: of its imports, by Python's count and in total."""
    environment = {
        name: text for name, text in ENVIRONMENT.items() if not name.startswith("SGLANG_INSTRUMENT")
    }
    command = [sys.executable, "-S", "-X", "importtime", "-c", START, str(HOOK.parent), HOOK.name]
    environment |= {"SGLANG_INSTRUMENT": switch, "PYTHONPATH": str(HOOK.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    _, _, imports = done.stderr.partition("hook\n")
    return sum(int(line.split()[2]) for line in imports.splitlines()), float(done.stdout)


def test_the_start_up_hook_takes_well_below_a_millisecond(show):
    rows = []
    for state, switch, bound in (("off", "0", OFF_US), ("on", "1", ON_US)):
        start_us(switch)
        imports, whole = (
            Spread.of(times) for times in zip(*[start_us(switch) for _ in range(TIMES)], strict=True)
        )
        between = f"{imports.low:.0f} .. {imports.high:.0f}"
        rows.append((state, f"{imports.median:.0f}", between, bound, f"{whole.median:.0f}"))
    columns = ("the switch", "us", "quartiles", "bound", "with reading the .pth")
    show(table("what the start-up hook imports (-X importtime)", columns, rows))
    save("hook", rows)
    assert all(float(row[1]) <= row[3] for row in rows)
    assert float(rows[1][1]) > 0
