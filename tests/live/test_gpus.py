"""The follower reads GPUs by NVIDIA's library, and writes what they do; here a stand-in answers for it.

`tests/gpu/test_gpu_gauges.py` asks a real driver.
"""

import json
import time

import pytest
from awaited import wait_for
from nvml_stand_in import OldStandInForNvml, StandInForNvml

import sglang_instrument
from sglang_instrument import span, step
from sglang_instrument.analysis.reading.records.gpu_records import gpu_rows, gpus_opened
from sglang_instrument.analysis.settings.recorded import settings_of
from sglang_instrument.cli.main import main
from sglang_instrument.live.outside.gpus import GpuSampler
from sglang_instrument.live.outside.nvml import Nvml, NvmlError


def sampled(folder, driver, seconds=1):
    """Let a sampler read until its file has so many records a GPU; return what it knows then."""
    sampler = GpuSampler(folder, driver)
    sampler.want("run-1", is_running=True)
    until = time.monotonic() + 30
    while len({row.at_us for row in gpu_rows(folder)}) < seconds and time.monotonic() < until:
        time.sleep(0.02)
    newest = sampler.newest()
    sampler.close()
    return newest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("logs")
    sglang_instrument.install(log_dir=root, experiment="exp", trainers="none", run_id="run-1")
    with step(1), span("async_rollout_request_complete", request_id="r1"):
        pass
    sglang_instrument.uninstall()
    return root / "exp"


def test_what_the_library_tells_is_read_and_what_it_does_not_is_none():
    nvml = Nvml(StandInForNvml())
    assert nvml.driver == "570.1"
    assert nvml.devices == [("NVIDIA H200 (a stand-in)", 1000)] * 2
    assert nvml.read() == [
        (0.5, 400, 430.5, 1980, 3201, ["power_cap", "bit_0x1000"]),
        (0.51, 400, None, 1980, 3201, ["power_cap", "bit_0x1000"]),
    ]
    assert Nvml(OldStandInForNvml()).read()[0].clock_limits is None


def test_without_a_gpu_the_library_is_shut_down_and_nothing_is_written(tmp_path):
    library = StandInForNvml(gpus=0)
    with pytest.raises(NvmlError, match="no GPU"):
        Nvml(library)
    assert library.is_shut_down
    sampler = GpuSampler(tmp_path, lambda: Nvml(StandInForNvml(gpus=0)))
    sampler.want("run-1", is_running=True)
    sampler.wait(30)
    sampler.close()
    assert sampler.newest() == ()
    assert not list(tmp_path.iterdir())


def test_the_run_s_folder_gets_a_record_a_second_which_sql_reads(folder, capsys):
    newest = sampled(folder, lambda: Nvml(StandInForNvml()), seconds=2)
    assert [(gpu.gpu, gpu.busy_share, gpu.power_watts) for gpu in newest] == [
        (0, 0.5, 430.5),
        (1, 0.51, None),
    ]
    (opened,) = gpus_opened(folder)
    assert (opened.run_id, opened.driver, len(opened.gpus)) == ("run-1", "570.1", 2)
    (path,) = (folder / "live").glob("gpus_*.jsonl")
    path.write_text(path.read_text() + '{"torn')
    assert main(["sql", str(folder), "select * from gpus order by at_us, gpu limit 2", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["rows"]
    assert first["name"] == "NVIDIA H200 (a stand-in)"
    assert (first["busy_share"], first["memory_used_bytes"], first["memory_bytes"]) == (0.5, 400, 1000)
    assert (first["clock_limits"], second["power_watts"]) == ("power_cap bit_0x1000", None)
    of_follower = [setting[2:] for setting in settings_of(folder) if setting.role == "follower"]
    assert of_follower == [
        ("machine", "gpus.0", "NVIDIA H200 (a stand-in)"),
        ("machine", "gpus.1", "NVIDIA H200 (a stand-in)"),
        ("machine", "gpu_driver", "570.1"),
    ]


def test_the_follower_that_holds_the_lock_writes_alone(tmp_path):
    first = GpuSampler(tmp_path, lambda: Nvml(StandInForNvml()))
    first.want("run-1", is_running=True)
    wait_for(lambda: gpus_opened(tmp_path), "the first follower writes nothing")
    second = GpuSampler(tmp_path, lambda: Nvml(StandInForNvml()))
    second.want("run-1", is_running=True)
    second.wait(30)
    assert len(second.newest()) == 2
    second.close()
    first.close()
    assert len(gpus_opened(tmp_path)) == 1


def test_nothing_is_shown_once_the_run_has_ended(tmp_path):
    sampler = GpuSampler(tmp_path, lambda: Nvml(StandInForNvml()))
    sampler.want("run-1", is_running=True)
    sampler.wait(30)
    assert sampler.newest()
    sampler.want("run-1", is_running=False)
    assert sampler.newest() == ()
    sampler.close()
