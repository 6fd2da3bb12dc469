"""torch compiles and traces functions with probes in them as it does without probes."""

import dis
import pickle
import subprocess
import sys
from importlib.util import find_spec

import pytest
from planted import plant, table

from sglang_instrument.patching.code_constants import GATE, original_of
from sglang_instrument.patching.probes.probe import probes_for
from sglang_instrument.patching.rewriting.patcher import Patcher
from sglang_instrument.recording.measure import spans
from sglang_instrument.recording.safety import notices

# In one process, and imported by the tests: torch takes each process that collects them a second and a half.
pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.xdist_group("torch"),
]

SOURCE = '''
import torch

CALLS = 0

def pad(x):
    return x

def step(x):
    """A docstring."""
    global CALLS
    CALLS = 1
    y = pad(x) * 2
    for place in range(3):
        if place == 2:
            break
        y = y + place
    try:
        return y
    finally:
        del x

def broken(x):
    y = step(x)
    torch._dynamo.graph_break()
    return sum([pad(part) for part in (y, x)])

def makes_lambda():
    return lambda x: pad(x) + 1

class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        hidden = self.linear(x)
        first = sorted([1, 2], key=lambda value: pad(-value))[0]
        return torch.relu(hidden) + first
'''
REGIONS = [
    {"event": "whole", "enter": {"x": "x", "n": "size(x)", "s": "x.shape[0]"}, "exit": {"r": "result"}},
    {"event": "pad", "call": "pad"},
]
TARGETS = ["step", "broken", "makes_lambda", "Layer.forward"]
MAPPED = {"x": "x", "n": "size(x)", "s": "x.shape[0]", "t": "total(x)", "m": "mean(x)", "e": "x[0]"}


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return plant(tmp_path, SOURCE)


@pytest.fixture
def patched():
    """Patch the targets, and record; return the function that does it."""
    import torch

    before, recorded, patchers = spans.current_buffer(), [], []

    def patch(regions=REGIONS, targets=TARGETS):
        planted = table(*({"target": target, "region": regions} for target in targets))
        everything = [region for patch in planted.patches for region in patch.regions]
        patchers.append(Patcher([planted], make_probe=probes_for(everything)))
        notices.forget()
        patchers[0].install()
        assert {site.state for site in patchers[0].results()} <= {"found", "missing"}
        spans.use_buffer(recorded, int)
        return recorded

    yield patch
    spans.use_buffer(before, int)
    for patcher in patchers:
        patcher.uninstall()
    torch._dynamo.reset()


def compiled_graphs(function, *arguments, fullgraph):
    """Compile a function, call it twice; return its graphs and results."""
    import torch

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    torch._dynamo.reset()
    run = torch.compile(function, backend=backend, fullgraph=fullgraph)
    return graphs, [run(*arguments).tolist() for _ in range(2)]


def outcomes(module, layer):
    import torch

    x = torch.ones(2)
    cases = [
        (module.step, True),
        (module.step, False),
        (module.broken, False),
        (lambda x: module.step(x + 1), True),
        (lambda x: module.broken(x + 1), False),
        (layer, True),
        (layer, False),
    ]
    return [compiled_graphs(function, x, fullgraph=fullgraph) for function, fullgraph in cases]


def test_functions_with_regions_and_calls_compile_to_the_same_graphs(module, patched):
    import torch

    layer = module.Layer()
    without = outcomes(module, layer)
    recorded = patched()
    assert outcomes(module, layer) == without
    assert {span.event for span in recorded} <= {"pad"}
    names = [f"{name}: torch.compile compiles it; compiled code records nothing" for name in TARGETS]
    said = [notice["notice"] for notice in notices.noticed()]
    assert sorted(said) == sorted(name for name in names if "makes_lambda" not in name)
    assert module.step(torch.ones(2)).tolist() == [3.0, 3.0]
    assert "whole" in {span.event for span in recorded}  # where it is not compiled, it is recorded


def test_a_lambda_with_a_measured_call_compiles_although_the_function_that_makes_it_does_not(module, patched):
    import torch

    without = compiled_graphs(module.makes_lambda(), torch.ones(2), fullgraph=True)
    patched()
    assert compiled_graphs(module.makes_lambda(), torch.ones(2), fullgraph=True) == without


@pytest.mark.filterwarnings("ignore:.torch.jit.trace. is deprecated")  # a FutureWarning since 2.15
def test_exported_and_traced_functions_have_the_same_graphs(module, patched):
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    layer, x = module.Layer(), torch.ones(2)

    def graphs():
        return [str(torch.export.export(layer, (x,), strict=strict).graph) for strict in (True, False)] + [
            torch.fx.symbolic_trace(module.step).code,
            make_fx(module.step)(x).code,
            make_fx(module.step, tracing_mode="symbolic")(x).code,
            make_fx(torch.func.vmap(module.step))(torch.ones(2, 2)).code,
            str(torch.jit.trace(module.step, (x,)).graph),
        ]

    without = graphs()
    recorded = patched(targets=["step", "Layer.forward"])
    assert graphs() == without
    [proxied] = [span for span in recorded if span.extra.get("x") == "<Proxy>"]
    assert proxied.extra == {"x": "<Proxy>", "r": "<Proxy>"}


@pytest.mark.parametrize("kind", ["dispatch", "function"])
def test_what_watches_the_operations_of_a_thread_sees_none_of_ours(module, patched, kind):
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            seen.append(str(function))
            return function(*arguments, **(keywords or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), keywords=None):
            seen.append(str(function))
            return function(*arguments, **(keywords or {}))

    mode = Dispatch if kind == "dispatch" else Function
    x, seen = torch.ones(2), []
    with mode():
        module.step(x)
    without, seen = seen, []
    fields = {"enter": MAPPED, "exit": {"r": "result", "total": "total(result)"}}
    recorded = patched(regions=[{"event": "whole", **fields}], targets=["step"])
    with mode():
        module.step(x)
    assert seen == without
    assert recorded[0].extra == {"x": "tensor(cpu, f32, [2])", "r": "tensor(cpu, f32, [2])"}
    module.step(x)
    assert recorded[1].extra["total"] == 6.0


def test_a_default_device_does_not_hide_numbers(module, patched):
    import torch

    recorded = patched(regions=[{"event": "whole", "exit": {"total": "total(result)"}}], targets=["step"])
    torch.set_default_device("cpu")
    try:
        module.step(torch.ones(2))
    finally:
        torch.set_default_device(None)
    assert recorded[0].extra == {"total": 6.0}


def test_a_debugger_that_reads_the_code_is_no_compiler(module, patched):
    patched()
    list(dis.get_instructions(module.step))
    assert notices.noticed() == []


def test_rewritten_code_names_its_original_also_after_a_journey(module, patched):
    import torch

    cloudpickle = pytest.importorskip("cloudpickle")
    original = module.step.__code__
    patched(targets=["step"])
    assert original_of(module.step.__code__) is original
    assert original_of(original) is original
    cloudpickle.register_pickle_by_value(module)
    try:
        arrived = pickle.loads(cloudpickle.dumps(module.step))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert original_of(arrived.__code__) == original
    assert any(constant is GATE for constant in arrived.__code__.co_consts)
    graphs, [result, _] = compiled_graphs(arrived, torch.ones(2), fullgraph=True)
    assert result == [3.0, 3.0]
    assert len(graphs) == 1


def test_without_torch_nothing_of_it_is_imported():
    code = "from sglang_instrument.recording.safety.traced_values import is_traced; import sys\n"
    code += "print(is_traced(3), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
