"""The real engine's record of a call has the `traceparent` with which it came, and no other."""

import os
import sys
from subprocess import PIPE

import pytest
from logged import own, read_records
from own_group import run_in_group

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CALLS = """
import pathlib
import warnings

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    import sglang_instrument

    sglang_instrument.install()
    from sglang_instrument.demo.engine import start_engine
    from sglang_instrument.demo.model import ensure_model

    model = ensure_model(pathlib.Path.home() / ".cache/sglang-instrument")
    engine = start_engine(model, rank=0, context_length=256, scratch=pathlib.Path.cwd())
    call = {"input_ids": [5, 6, 7, 8], "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    header = {"traceparent": "TRACEPARENT"}
    with sglang_instrument.step(1):
        engine.generate(**call, external_trace_header=header)
        engine.generate(**call)
        list(engine.generate(**call, stream=True, external_trace_header=header))
    sglang_instrument.uninstall()
    engine.shutdown()
""".replace("TRACEPARENT", TRACEPARENT)


@pytest.mark.engine
def test_a_call_logs_the_traceparent_that_it_was_given(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")}
    ours = {
        "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path / "logs"),
        "EXPERIMENT_NAME": "run",
        "OMP_NUM_THREADS": "1",
    }
    done = run_in_group(
        [sys.executable, "calls.py"], env=clean | ours, cwd=tmp_path, stderr=PIPE, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-4000:]
    records = own(read_records(tmp_path / "logs/run")["step_1/worker_0.jsonl"])
    given = [one["extra"].get("traceparent") for one in records if one["event"] == "engine_generate"]
    assert given == [TRACEPARENT, None]
    streamed = [one["extra"].get("traceparent") for one in records if one["event"] == "engine_stream"]
    assert streamed == [TRACEPARENT]
