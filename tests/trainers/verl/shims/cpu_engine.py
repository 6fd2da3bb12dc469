"""Let an unmodified verl start an unmodified sglang on a CPU; imported before verl.

`REPLACED` lists the replacements: the arguments with which verl starts the engine (for a GPU), names that
moved between verl's version of sglang and the installed one, and two functions that a CPU lacks.
"""

import dataclasses
import importlib
import importlib.metadata
import sys
import types

import sglang.srt.entrypoints.engine as engine
import torch

REPLACED = []

CPU = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "enable_memory_saver": False,
    "mm_attention_backend": None,
    "max_total_tokens": 8192,
    "max_running_requests": 8,
    "context_length": 1024,
    "chunked_prefill_size": 512,
    "mem_fraction_static": 0.2,
    "skip_server_warmup": True,
    "log_level": "error",
}


def use_cpu_arguments():
    known = {field.name for field in dataclasses.fields(engine.ServerArgs)}
    arguments = {name: value for name, value in CPU.items() if name in known}
    start = engine.Engine.__init__

    def start_on_cpu(self, **given):
        start(self, **{**given, **arguments})

    engine.Engine.__init__ = start_on_cpu
    REPLACED.append("sglang Engine.__init__: arguments for a CPU")


def alias_module(old, new):
    """Let `import old` return `new` if `old` does not exist."""
    try:
        importlib.import_module(old)
    except ImportError:
        parent = old.rpartition(".")[0]
        try:
            importlib.import_module(parent)
        except ImportError:
            sys.modules[parent] = types.ModuleType(parent)
            sys.modules[parent].__path__ = []
        sys.modules[old] = importlib.import_module(new)
        REPLACED.append(f"module {old} is {new}")


def add_name(module, name, make):
    """Add a name that newer versions of a module lack."""
    imported = importlib.import_module(module)
    if not hasattr(imported, name):
        setattr(imported, name, make())
        REPLACED.append(f"{module}.{name}")


def follow_moves():
    alias_module("sglang.srt.openai_api.protocol", "sglang.srt.entrypoints.openai.protocol")
    alias_module("sglang.srt.function_call_parser", "sglang.srt.function_call.function_call_parser")
    utils = "sglang.srt.utils"
    add_name(utils, "get_ip", lambda: importlib.import_module(utils).get_local_ip_auto)
    add_name(utils, "maybe_set_triton_cache_manager", lambda: lambda: None)
    requests = importlib.import_module("sglang.srt.managers.io_struct")
    for name in ("ReleaseMemoryOccupation", "ResumeMemoryOccupation", "UpdateWeightsFromTensor"):
        request = f"{name}ReqInput"
        add_name(
            "sglang.srt.managers.tokenizer_manager", request, lambda name=request: getattr(requests, name)
        )


def take_qwen_parser():
    """Put Qwen's first: verl takes the first parser whose marks the vocabulary has; newer sglang sorts."""
    try:
        from sglang.srt.function_call.function_call_parser import FunctionCallParser
    except ImportError:
        from sglang.srt.function_call_parser import FunctionCallParser
    parsers = FunctionCallParser.ToolCallParserEnum
    qwen = parsers["qwen25"]
    if importlib.metadata.version("verl") == "0.4.0" and qwen().bot_token.endswith("\n"):
        # This verl searches the mark with the line end that newer sglang adds.
        class Qwen(qwen):
            def __init__(self):
                super().__init__()
                self.bot_token, self.eot_token = self.bot_token.strip(), self.eot_token.strip()

        qwen = Qwen
        REPLACED.append("marks of sglang's qwen25 parser: without line ends")
    others = {name: parser for name, parser in parsers.items() if name != "qwen25"}
    if next(iter(parsers)) != "qwen25" or qwen is not parsers["qwen25"]:
        FunctionCallParser.ToolCallParserEnum = {"qwen25": qwen, **others}
        REPLACED.append("order of sglang's tool parsers: qwen25 first")


def give_cpu_memory_figures():
    """Add the functions to torch.cpu that verl's GPUMemoryLogger (up to 0.5.0) calls on a device."""
    for name, value in (("memory_allocated", 0), ("memory_reserved", 0), ("mem_get_info", (0, 0))):
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, lambda *args, value=value, **kwargs: value)
            REPLACED.append(f"torch.cpu.{name}")


use_cpu_arguments()
follow_moves()
take_qwen_parser()
give_cpu_memory_figures()
