"""What a step-level span costs by `sync` on an idle GPU, and on one with a kernel a span.

Prints microseconds a span, median and range of 9 rounds in turns, and ratios to a `torch.cuda.synchronize()`.

    python benchmarks/gpu_spans.py
"""

import statistics
import tempfile
import time

import torch

import sglang_instrument as si

SPANS, ROUNDS = 1000, 9
POLICIES = ("off", "auto", "always", "events")


def main() -> None:
    values = torch.randn(256, 256, device="cuda")
    values + values

    def kernel() -> None:
        values + values

    costs: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for work, body in (("idle", lambda: None), ("a kernel", kernel)):
            costs.setdefault((work, "no span"), []).append(timed(body))
            costs.setdefault((work, "no span, synchronize"), []).append(timed(body, torch.cuda.synchronize))
            for sync in POLICIES:
                costs.setdefault((work, sync), []).append(recorded(body, sync))
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for (work, name), values_us in costs.items():
        plain = costs[work, "no span, synchronize"]
        ratios = [ours / theirs for ours, theirs in zip(values_us, plain, strict=True)]
        print(f"{work:8} {name:21} {spread(values_us, 1)} us a span; {spread(ratios, 2)} of a synchronize")


def recorded(body, sync: str) -> float:
    """Return microseconds a span, when all threads of recording have started and rest."""
    with tempfile.TemporaryDirectory() as folder:
        si.install(log_dir=folder, experiment="run", trainers="none", sync=sync)

        def measured() -> None:
            with si.span("preprocessing_duration"):
                body()

        with si.step(1):
            measured()
            time.sleep(0.5)
            took = timed(measured)
        si.uninstall()
    return took


def timed(body, after=lambda: None) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(SPANS):
        body()
        after()
    took = time.perf_counter() - began
    torch.cuda.synchronize()
    return took / SPANS * 1e6


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):6.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
