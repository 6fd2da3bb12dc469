"""On a GPU, the analysis of a torch trace with kernels, copies, graphs and streams equals a brute-force read.

`make test-gpu PYTHON=...` runs this test if torch has a CUDA device; otherwise it is skipped.
"""

import json
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("polars", reason="needs the extra sglang-instrument[analysis]")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: none here"),
    pytest.mark.filterwarnings("default"),  # torch's own warnings, which differ from version to version
]

from sglang_instrument.traces.answers import analyse  # noqa: E402 - after the skip

GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    from torch.profiler import ProfilerActivity, profile, record_function

    weights, given = (torch.randn(512, 512, device="cuda") for _ in range(2))
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    weights @ given
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        (weights @ given).relu()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function("step[EXTEND bs=1 toks=512]"):
            weights @ given
        for _ in range(5):
            with record_function("step[DECODE bs=1]"):
                graph.replay()
        with torch.cuda.stream(side):
            (given + 1).cpu()
        torch.cuda.synchronize()
    path = tmp_path_factory.mktemp("gpu") / "g-TP-0.trace.json"
    profiler.export_chrome_trace(str(path))
    return path


def test_a_real_gpu_trace_equals_a_brute_force_read(trace):
    one = analyse(trace, top=1000).traces[0]
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("cat") in GPU]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events)
    covered, reach = 0.0, spans[0][0]
    for start, end in spans:
        covered += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    assert one.on_gpu
    assert one.devices
    assert one.use["busy_sec"] * 1e6 == pytest.approx(covered, rel=1e-3)
    counts = Counter(event["name"] for event in events if event["cat"] == "kernel")
    assert {row["name"]: row["count"] for row in one.tables["kernels"]} == counts
    (graphs,) = one.tables["graphs"]
    assert (graphs["stage"], graphs["launches"]) == ("decode", 5)
    stages = {row["stage"]: row["steps"] for row in one.tables["stages"] if row["steps"]}
    assert stages == {"prefill": 1, "decode": 5}
    assert len(one.tables["streams"]) >= 2
    assert any("DtoH" in row["name"] for row in one.tables["copies"])
