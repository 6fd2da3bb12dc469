"""Tell what a kernel does by its name, and which step of the engine launched it."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from sglang_instrument.traces.intervals import inside
from sglang_instrument.traces.table import ON_GPU, Trace

#: Categories of kernels; the first match counts. Names of CUDA, ROCm, Triton and SGLang's own kernels.
_CATEGORIES: Final = (
    (
        "communication",
        r"nccl|rccl|hccl|hcom|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|deep_?ep|cross_device|nvshmem"
        r"|multimem|mori_|rocshmem",
    ),
    ("moe", r"moe|expert|topk_softmax|permute_tokens|grouped_?topk|grouped_gemm|ep_scatter|ep_gather"),
    (
        "attention",
        r"flash(?!_?infer)|fmha|attn|attention|(?<![a-z])mla|kvpe|paged|ragged|batch(prefill|decode)"
        # SGLang's own in Triton: for tokens of a prompt, one by one, grouped by heads, sparse, linear
        r"|^_fwd_(grouped_)?kernel(_stage\d|_unified|_dense_prefill)?(_rope)?$|_sparse_(gqa|prefill)"
        r"|(?<![a-z])(gdn|kda|delta_rule)(?![a-z])",
    ),
    (
        "gemm",
        r"gemm(?!a)|cutlass|cublas|matmul|nvjet|wgmma|splitk|gemv|cijk|tensile|(?<![a-z])b?mm_|_b?mm_|mfma|cube",
    ),
    ("norm", r"norm(?!al_|al[<( ])"),
    ("rope", r"rope|rotary"),
    ("activation", r"silu|gelu|swi_?glu|act_and_mul|sigmoid|relu|swish"),
    ("sampling", r"sampl|top_?k|top_?p|softmax|argmax|multinomial|penalt|sort|radix|logits"),
    ("quantization", r"quant|fp8|int8|scaled_|dequant"),
    ("kv cache", r"kv_?(cache|buffer|pool|indices)|set_kv|reshape_and_cache|req_to_token|write_req"),
    (
        "elementwise",
        r"elementwise|vectorized|reduce|index|gather|scatter|cat|copy|fill|arange|embedding|cast|transpose|slice"
        r"|tensormove|(?<![a-z_])(?:add|mul|sub|div)(?![a-z_])",
    ),
    ("triton", r"triton"),
)
_COMPILED: Final = [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _CATEGORIES]
COMMUNICATION: Final = "communication"
GRAPH_LAUNCH: Final = ("cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch")
#: Names of the engine's steps for people.
STAGES: Final = {"EXTEND": "prefill", "DECODE": "decode"}
_STEP: Final = r"^step\[(\w+)"
_STAGE_OF_FILE: Final = re.compile(r"-(EXTEND|DECODE|MIXED|VERIFY|DRAFT)\b")


def category_of(name: str, kind: str = "kernel") -> str:
    """Return the category of work on a GPU: of a kernel by its name, else copy or memset."""
    if kind != "kernel":
        return {"memcpy": "copy", "memset": "memset"}[kind]
    return next((category for category, pattern in _COMPILED if pattern.search(name)), "other")


def gpu_work(trace: Trace) -> pl.DataFrame:
    """Return the kernels, copies and memsets of a trace, with `category`, `stage` and `graph`.

    `stage` is that of the engine step that launched the work: prefill, decode, or the engine's own name; null
    if the trace does not tell. `graph` is whether a CUDA graph launched it.
    """
    work = trace.events.filter(pl.col("kind").is_in(list(ON_GPU)))
    names = work.select("name", "kind").unique()
    categories = names.with_columns(
        category=pl.Series(
            [category_of(name, kind) for name, kind in names.cast(pl.String).iter_rows()],
            dtype=pl.Categorical,
        )
    )
    work = work.join(categories, on=["name", "kind"], how="left", maintain_order="left")
    launches = _launches(trace)
    work = work.join(launches, on="correlation", how="left", maintain_order="left")
    return work.with_columns(
        stage=pl.col("stage").fill_null(pl.lit(stage_of_file(trace), pl.String)),
        graph=pl.col("graph").fill_null(False),
    )


def engine_steps(trace: Trace) -> pl.DataFrame:
    """Return the forward steps that the engine marked: lane, start_ns, end_ns, stage; in order."""
    marks = trace.events.filter(pl.col("kind") == "annotation").with_columns(
        mark=pl.col("name").cast(pl.String).str.extract(_STEP)
    )
    steps = marks.drop_nulls("mark").sort("start_ns", "end_ns", descending=[False, True])
    # The draft model's step runs inside one of the target model: the outer one is the engine's step.
    reach = pl.col("end_ns").cum_max().shift(1).over("lane")
    outer = steps.filter((pl.col("start_ns") >= reach).fill_null(True))
    stage = pl.col("mark").replace(STAGES).str.to_lowercase()
    return outer.select("lane", "start_ns", "end_ns", stage=stage)


def stage_of_file(trace: Trace) -> str | None:
    """Return the stage in a file's name, as `profile_by_stage` writes it, or None."""
    match = _STAGE_OF_FILE.search(trace.path.name)
    return STAGES.get(match[1], match[1].lower()) if match else None


def _launches(trace: Trace) -> pl.DataFrame:
    """Return the calls that launched work: correlation, stage of their step, and whether it was a graph."""
    calls = trace.events.filter((pl.col("kind") == "runtime") & pl.col("correlation").is_not_null())
    calls = calls.unique("correlation", keep="first", maintain_order=True)
    steps = engine_steps(trace)
    rows = inside(calls, steps, "lane")
    return calls.select(
        "correlation",
        stage=steps["stage"].gather(rows) if len(steps) else pl.lit(None, pl.String),
        graph=pl.col("name").cast(pl.String).str.contains("|".join(GRAPH_LAUNCH)),
    )
