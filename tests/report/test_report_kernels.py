"""With traces, the report shows what the engines' profilers recorded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browser import browser
from made_traces import MadeTrace, engine_trace, run_beside, trace_of_work

from sglang_instrument.cli.main import main
from sglang_instrument.traces.answers import analyse

HOSTILE = "<img src=x onerror=\"sglangReport.errors.push('ran')\">gemm"


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_beside(tmp_path_factory.mktemp("logs") / "exp")


def report(logs: Path, out: Path, *arguments: str) -> Path:
    """Make the report."""
    assert main(["report", str(logs), *arguments, "-o", str(out)]) == 0
    return out


def section(path: Path) -> str:
    """Return the HTML of the section; "" without one."""
    match = re.search(r'<section id="kernels".*?</section>', path.read_text(), re.DOTALL)
    return match[0] if match else ""


def words(markup: str) -> str:
    """Return the text of the section."""
    return " ".join(re.sub(r"<[^>]*>", " ", markup).split())


def test_without_traces_there_is_no_section_and_no_link_to_one(logs: Path, tmp_path: Path) -> None:
    page = report(logs, tmp_path / "r.html")
    assert section(page) == ""
    assert "#kernels" not in page.read_text()


def test_idle_time_is_joined_with_steps_and_kernels_named(logs: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    trace_of_work(traces / "p-TP-0.trace.json", [(1, 4), (8, 9)])
    read = words(section(report(logs, tmp_path / "r.html", "--traces", str(traces))))
    assert (
        "In step 6 the engine of worker 0 (TP-0) was idle 50% while, on average, 2 waited for a tool." in read
    )
    assert "gemm gemm 100 % 2 4.00 s 2.00 s" in read  # name, category, share, count, time, mean
    assert "NVIDIA Made 9000" in read


def test_ranks_stand_side_by_side_the_slow_one_first_in_detail(logs: Path, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    engine_trace(nccl_us=90).write(traces / "p-TP-0.trace.json.gz")
    engine_trace(nccl_us=60, gemm_us=160).write(traces / "p-TP-1.trace.json.gz")
    markup = section(report(logs, tmp_path / "r.html", "--traces", str(traces)))
    analysis = analyse(traces)
    assert analysis.slow == "TP-1"
    assert analysis.sentence[1:] in words(markup)
    summaries = re.findall(r"<summary>(TP-\d)", markup)
    assert summaries == ["TP-1", "TP-0"]
    for trace in analysis.traces:
        parts = [trace.use["compute_sec"], trace.use["communication_alone_sec"]]
        parts.append(trace.use["busy_sec"] - sum(parts))
        row = re.search(rf"<tr><td>{trace.rank}</td>(.*?)</tr>", markup, re.DOTALL)
        assert row is not None
        widths = [float(width) for width in re.findall(r"width: ([\d.]+)%", row[1])]
        assert widths == pytest.approx([100 * part / trace.window_sec for part in parts], abs=1e-3)


def test_a_browser_shows_kernel_names_as_text(logs: Path, tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.launch(0, "cudaLaunchKernel", [("kernel", HOSTILE, 10, 50, 7)])
    file = trace.write(tmp_path / "p-TP-0.trace.json")
    page = report(logs, tmp_path / "r.html", "--traces", str(file))
    with browser(tmp_path) as opened:
        opened.open(page, "#kernels")
        assert HOSTILE in opened.text("kernels")
        assert opened.js("document.querySelectorAll('#kernels .strip span')[0].offsetWidth") > 100
        assert opened.complaints() == []


def test_a_trace_without_a_gpu_shows_the_engine(logs: Path, tmp_path: Path) -> None:
    trace = MadeTrace()
    trace.add("user_annotation", "step[DECODE bs=2]", 0, 600)
    trace.add("cpu_op", "aten::mm", 100, 900)
    file = trace.write(tmp_path / "p-TP-0.trace.json")
    read = words(section(report(logs, tmp_path / "r.html", "--traces", str(file))))
    assert "The engine of each rank, without a GPU" in read
    assert "aten::mm 1" in read
    assert "communicates alone" not in read


def test_files_that_are_no_traces_are_named_and_none_at_all_is_an_error(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[Any]
) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    assert main(["report", str(logs), "--traces", str(traces), "-o", str(tmp_path / "r.html")]) == 2
    assert "no *.trace.json" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "r.html").exists()
    engine_trace().write(traces / "p-TP-0.trace.json.gz")
    (traces / "torn.trace.json").write_text("{")
    read = words(section(report(logs, tmp_path / "r.html", "--traces", str(traces))))
    assert "Left out: " in read
    assert "torn.trace.json" in read
