"""With the engine in the worker's process, ends of requests are known with and without a detokenizer.

A module that verl imports first switches it on, as VERL_USE_EXTERNAL_MODULES of docs/how-to/verl.md does.
"""

import json

import pytest
from conftest import ENVIRONMENTS, ROOT

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.answers.engine.join import joined_calls
from sglang_instrument.cli.main import main
from sglang_instrument.free_ports import free_port

ROLL_OUT = """
import json, os, pathlib, sys, time
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT={port!r})
os.environ.update(SGLANG_INSTRUMENT_LOG_DIR={folder!r}, EXPERIMENT_NAME="run")
os.environ["VERL_USE_EXTERNAL_MODULES"] = "measure_rollout"  # before the engine: its processes inherit it
import rollout
import sglang_instrument
rollout.join_group()
built = rollout.build({model!r}, skip_tokenizer_init={skip!r})
built.generate_sequences(rollout.batch(built, step=1))
sites = [site for site in sglang_instrument.status()["patches"] if site["table"] == "verl/rollout"]
print("found", sum(site["state"] == "found" for site in sites))
sglang_instrument.uninstall()

def rids(path, event, key):
    path = pathlib.Path({folder!r}, "run", path)
    *lines, _half = path.read_bytes().split(b"\\n") if path.exists() else [b""]
    return [one["extra"][key] for one in map(json.loads, lines) if one["event"] == event]

# shutdown() kills the scheduler, which may lose its last records.
asked = set(rids("step_1/worker_0.jsonl", "engine_request", "rid"))
while not asked <= set(sum(rids("engine/scheduler_0_tp0.jsonl", "scheduler_finish", "rids"), [])):
    time.sleep(0.05)
built._engine.shutdown()
sys.stdout.flush()
os._exit(0)  # nothing of the engine's shall hold up a test
"""


#: Of each version that imports such modules, its default; True: there is no detokenizer.
SKIPS_TOKENIZER = {"0.6.0": True, "0.6.1": False}


@pytest.mark.parametrize("version", SKIPS_TOKENIZER)
def test_the_time_in_the_engine_is_shared_out_up_to_the_last_token(version, run_in, tmp_path, capsys):
    # Run the start-up hook here, because this package is not installed but only on the path.
    (tmp_path / "sitecustomize.py").write_text((ROOT / "sglang_instrument.pth").read_text())
    model, logs = str(ENVIRONMENTS / "verl-model"), str(tmp_path / "logs")
    skips = SKIPS_TOKENIZER[version]
    script = ROLL_OUT.format(port=str(free_port()), folder=logs, model=model, skip=skips)
    printed = run_in(version, script, tmp_path).stdout
    [count] = [line.split()[1] for line in printed.splitlines() if line.startswith("found ")]
    assert int(count) >= 36
    folder = tmp_path / "logs/run"
    assert not (folder / "engine/detokenizer_0.jsonl").exists()  # it logs all batches or none
    assert main(["summary", str(folder), "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["engine"]["shares"]
    assert sum(shares.values()) == pytest.approx(1)
    # A reply of tens of tokens takes as many forward passes; its prompt takes one.
    assert shares["decode"] > shares["prefill"] > 0
    calls = joined_calls(open_run(folder, cached=False))
    assert len(calls) >= 8  # four requests, two of them with tools
    assert calls["decode_sec"].null_count() == 0
