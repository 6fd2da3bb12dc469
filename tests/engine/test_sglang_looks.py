"""Patched functions of the installed SGLang keep their kind, signature and pickling."""

import json

import pytest

LOOKS = """
import functools, importlib, inspect, json, multiprocessing.reduction, pickle, warnings
warnings.simplefilter("ignore")
import sglang.srt.entrypoints.engine
import sglang.srt.entrypoints.http_server  # these two import the rest
import sglang_instrument

def function_at(target):
    module, _, path = target.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))

def looks(function):
    kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction
    multiprocessing.reduction.ForkingPickler.dumps(function)  # as the target of a spawned process
    return [
        str(inspect.signature(function)),
        [kind(function) for kind in kinds],
        [function.__module__, function.__qualname__, function.__doc__, str(function.__defaults__)],
        pickle.loads(pickle.dumps(function)) is function,
    ]

def code_of(target):
    return inspect.unwrap(function_at(target)).__code__

sglang_instrument.install(engine_detail="batches")
patches = [one for one in sglang_instrument.status()["patches"] if one["table"].startswith("sglang/")]
targets = sorted({one["target"] for one in patches if one["state"] == "found"})
during, codes = {target: looks(function_at(target)) for target in targets}, list(map(code_of, targets))
sglang_instrument.uninstall()
after = {target: looks(function_at(target)) for target in targets}
restored = [now is not then for now, then in zip(map(code_of, targets), codes)]
print(json.dumps([during, after, restored]))
"""


@pytest.mark.engine
def test_kind_signature_and_pickling_of_what_we_change_stay_and_the_code_comes_back(start_script):
    printed = start_script(LOOKS).wait(timeout=600).stdout.splitlines()[-1]
    during, after, restored = json.loads(printed)
    assert len(during) >= 20
    assert during == after
    assert set(restored) == {True}
    kinds = {target.rpartition(".")[2]: kinds for target, (_, kinds, *_) in after.items()}
    assert kinds["async_generate"] == [True, False, False]  # the check itself works
    assert kinds["generate_request"] == [False, True, False]
