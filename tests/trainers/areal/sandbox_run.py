"""Run code in AReaL's real DaytonaRunner within a request; a stand-in replaces the remote service."""

import asyncio
import sys
import types
from types import SimpleNamespace


class Sandbox:
    id = "box-1"

    def __init__(self):
        self.process = self

    async def code_run(self, code, timeout):
        await asyncio.sleep(0.02)
        return SimpleNamespace(result="4\n", exit_code=0, artifacts=None)

    async def delete(self, timeout):
        await asyncio.sleep(0.02)


class AsyncDaytona:
    def __init__(self, config):
        self.sandbox = Sandbox()

    async def create(self, params, timeout):
        await asyncio.sleep(0.05)
        return self.sandbox

    async def get(self, sandbox_id):
        return self.sandbox

    async def close(self):
        pass


def service():
    """Return the module that the remote service's client would be."""
    names = ("CreateSandboxFromImageParams", "CreateSandboxFromSnapshotParams", "DaytonaConfig")
    errors = ("DaytonaError", "DaytonaNotFoundError", "DaytonaTimeoutError")
    module = types.ModuleType("daytona")
    vars(module).update({name: type(name, (SimpleNamespace,), {}) for name in names})
    vars(module).update({name: type(name, (Exception,), {}) for name in errors})
    module.AsyncDaytona = AsyncDaytona
    return module


def main(folder):
    import sglang_instrument

    sys.modules["daytona"] = service()
    sglang_instrument.install(log_dir=folder, experiment="run")
    from areal.infra.sandbox.runner import DaytonaRunner

    with (
        sglang_instrument.step(3),
        sglang_instrument.bind(request_id="a"),
        sglang_instrument.span("request"),
        DaytonaRunner(image="python:3.11") as runner,
    ):
        assert runner.run("print(2 + 2)").stdout == "4\n"
    sglang_instrument.uninstall()


if __name__ == "__main__":
    main(sys.argv[1])
