"""The ways of docs/how-to/verl.md to switch it on: modules that verl imports in the worker's process."""

import pytest
from conftest import VERSIONS

MODULE = "import sglang_instrument\nsglang_instrument.install()\n"
SAY = """
found = [site for site in sglang_instrument.status()["patches"] if site["table"] == "verl/rollout"]
print(sum(site["state"] == "found" for site in found), sglang_instrument.status()["folder"])
"""
BY_EXTERNAL_LIB = f"""
import cpu_engine
import verl.workers.rollout.sglang_rollout.sglang_rollout
from verl.utils.import_utils import import_external_libs
import_external_libs("measure_rollout")  # as init_model() does with model.external_lib
import sglang_instrument
{SAY}
"""
BY_VARIABLE = f"""
import os
os.environ["VERL_USE_EXTERNAL_MODULES"] = "measure_rollout"
import cpu_engine
import verl.workers.rollout.sglang_rollout.sglang_rollout
import sglang_instrument
{SAY}
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_a_module_named_as_external_lib_switches_it_on(version, run_in, tmp_path):
    (tmp_path / "measure_rollout.py").write_text(MODULE)
    done = run_in(version, BY_EXTERNAL_LIB, tmp_path)
    found, folder = done.stdout.strip().splitlines()[-1].split()
    assert int(found) >= 36
    assert folder.endswith("logs/multiturn_log_dir")
    assert f"verl {version}" in done.stderr


@pytest.mark.parametrize("version", ["0.6.0", "0.6.1"])
def test_a_module_named_in_the_environment_switches_it_on_before_the_rollout_is_imported(
    version, run_in, tmp_path
):
    (tmp_path / "measure_rollout.py").write_text(MODULE)
    done = run_in(version, BY_VARIABLE, tmp_path)
    assert int(done.stdout.strip().splitlines()[-1].split()[0]) >= 36
