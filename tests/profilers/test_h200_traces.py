"""Traces of a real GPU are read as they are: busy time, kernels, streams, copies, stages and graphs.

Both were recorded on an H200 with torch 2.11. `torch` comes from tests/gpu: CUDA graphs, compiled code, two
streams. `sglang` is of SGLang 0.5.21's scheduler in the demo, with PyTorch's own kernels, cut after four
forward passes and without Python's calls.
"""

from pathlib import Path

import pytest
from brute_trace import check_against_brute_force, steps_by_stage

from sglang_instrument.traces.answers import analyse

FOLDER = Path(__file__).parent / "h200"
NAMES = ("torch", "sglang")


@pytest.fixture(scope="module")
def traces():
    return {Path(trace.file).name.split("-")[0]: trace for trace in analyse(FOLDER, top=1000).traces}


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_of_a_gpu_equals_a_brute_force_read(traces, name):
    check_against_brute_force(FOLDER / f"{name}-TP-0.trace.json.gz", traces[name])


def test_forward_passes_of_sglang_are_told_apart(traces):
    assert steps_by_stage(traces["sglang"]) == {"prefill": 1, "decode": 3}


def test_launches_of_a_graph_are_counted(traces):
    (graph,) = traces["torch"].tables["graphs"]
    assert (graph["stage"], graph["launches"]) == ("decode", 20)
    assert steps_by_stage(traces["torch"]) == {"prefill": 1, "decode": 50}


def test_kernels_of_libraries_are_sorted_by_what_they_do(traces):
    def category(trace, beginning):
        return {
            row["category"] for row in traces[trace].tables["kernels"] if row["name"].startswith(beginning)
        }

    assert category("torch", "nvjet_sm90") == {"gemm"}
    assert category("torch", "cudnn_generated_fort_native_sdpa") == {"attention"}
    assert category("sglang", "fmha_cutlassF") == {"attention"}
    assert category("sglang", "void gemmSN_TN_kernel") == {"gemm"}
