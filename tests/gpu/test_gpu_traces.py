"""On a GPU, the analysis of a torch trace with kernels, copies, graphs and streams equals a brute-force read.

`make test-gpu PYTHON=...` runs this test if torch has a CUDA device; otherwise it is skipped.
"""

import pytest
from brute_trace import check_against_brute_force, steps_by_stage
from gpu_processes import needs_cuda

torch = pytest.importorskip("torch")
pytest.importorskip("polars", reason="needs the extra sglang-instrument[analysis]")
pytestmark = [
    needs_cuda,
    pytest.mark.filterwarnings("default"),  # torch's own warnings, which differ from version to version
]

from sglang_instrument.traces.answers import analyse  # noqa: E402 - after the skip


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
    analysis = analyse(trace, top=1000).traces[0]
    check_against_brute_force(trace, analysis)
    (graphs,) = analysis.tables["graphs"]
    assert (graphs["stage"], graphs["launches"]) == ("decode", 5)
    assert steps_by_stage(analysis) == {"prefill": 1, "decode": 5}
    assert len(analysis.tables["streams"]) >= 2
    assert any("DtoH" in row["name"] for row in analysis.tables["copies"])
