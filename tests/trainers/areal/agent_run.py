"""Run an agent behind AReaL's real proxy, over a real server: agent_run.py MODEL FOLDER PORT.

Logs to FOLDER/run, writes what the proxy exported to FOLDER/outcome.json.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

MODEL, FOLDER, PORT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
CALLS = 2


class Asker:
    """An agent of a user's: it knows an address and a key."""

    async def run(self, data, base_url, http_client, api_key):
        """Ask twice, one after the other; return the reward of the last reply."""
        from openai import AsyncOpenAI

        client = AsyncOpenAI(base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0)
        messages = list(data["messages"])
        for _ in range(CALLS):
            reply = await client.chat.completions.create(
                messages=messages, model="default", max_completion_tokens=8, temperature=0
            )
            messages += [
                {"role": "assistant", "content": reply.choices[0].message.content or "-"},
                {"role": "user", "content": "And now?"},
            ]
        return 1.0


def config():
    from areal.api.cli_args import InferenceEngineConfig

    names = {"experiment_name": "e", "trial_name": "t", "backend": "sglang:d1", "tokenizer_path": MODEL}
    settings = {"max_concurrent_rollouts": 8, "consumer_batch_size": 2, "max_head_offpolicyness": 1000}
    return InferenceEngineConfig(**names, **settings, setup_timeout=300)


def start_proxy(port):
    """Start the proxy as AReaL's controller does: a process that makes its own engine."""
    from areal.infra.rpc.serialization import serialize_value

    module = "areal.experimental.openai.proxy.proxy_rollout_server"
    command = [sys.executable, "-W", "ignore", "-m", module, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--experiment-name", "e", "--trial-name", "t", "--role", "proxy", "--worker-index", "0"]
    process = subprocess.Popen([*command, "--nfs-record-root", str(FOLDER / "names")], env=os.environ)
    url = f"http://127.0.0.1:{port}"
    until = time.monotonic() + 600
    while True:
        try:
            with urlopen(f"{url}/health", timeout=60):
                break
        except (URLError, OSError):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
    engine = "areal.engine.sglang_remote.RemoteSGLangEngine"
    post(f"{url}/create_engine", {"engine": engine, "init_kwargs": serialize_value({"config": config()})})
    known = {"addr": f"127.0.0.1:{PORT}", "train_data_parallel_size": 1}
    post(f"{url}/call", {"method": "initialize", "kwargs": serialize_value(known)})
    return process, url


def post(url, body):
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())


def main():
    import sglang_instrument

    sglang_instrument.install(log_dir=str(FOLDER), experiment="run")
    from areal.engine.sglang_remote import RemoteSGLangEngine
    from areal.experimental.openai.proxy.workflow import OpenAIProxyWorkflow
    from areal.utils.network import find_free_ports

    proxy, url = start_proxy(find_free_ports(1)[0])
    engine = RemoteSGLangEngine(config())
    engine.initialize(addr=f"127.0.0.1:{PORT}", train_data_parallel_size=1)
    engine.set_version(3)
    workflow = OpenAIProxyWorkflow(mode="inline", agent=Asker(), proxy_addr=url)
    asked = [{"messages": [{"role": "user", "content": f"Say {number}."}]} for number in (6, 9)]
    try:
        batch = engine.rollout_batch(asked, workflow=workflow, group_size=2)
    finally:
        engine.destroy()
        proxy.terminate()
        proxy.wait(60)
    (FOLDER / "outcome.json").write_text(json.dumps({"reply_tokens": tokens_of(batch)}))


def tokens_of(batch):
    """Return how many tokens of replies training was handed."""
    return sum(int(rows["loss_mask"].sum()) for rows in batch)


if __name__ == "__main__":
    main()
