"""`waste` counts as many tokens as a real server's own counters, with aborts and callers that leave."""

import json
import re
import subprocess
import sys
import textwrap
import urllib.request

import pytest
from awaited import records_of, rids_of, wait_for

from sglang_instrument.cli.main import main

pytestmark = pytest.mark.engine

#: The requests that their caller leaves.
LEFT = {"left-0", "left-1", "left-2"}
#: All requests: that outside of steps, those that end, are aborted, and are left.
REQUESTS = 1 + 8 + 3 + 3

#: A rollout of one's own: requests that end, that are aborted, and that are left by their caller.
CLIENT = """
    import http.client, json, pathlib, sys, threading, time, urllib.request
    import sglang_instrument

    PORT = int(sys.argv[1])

    def post(path, body):
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read() or "null")

    def leave(path, body, when):
        connection = http.client.HTTPConnection("127.0.0.1", PORT)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        when.wait()
        connection.close()
        raise TimeoutError

    def request(name, tokens, when=None):
        params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = {"rid": name, "input_ids": [300 + len(name), 301], "sampling_params": params}
        try:
            with sglang_instrument.bind(request_id=name), sglang_instrument.span("request") as whole:
                with sglang_instrument.span("turn_engine_call", rid=name, turn=0) as call:
                    reply = post("/generate", body) if when is None else leave("/generate", body, when)
                    meta = reply["meta_info"]
                    tokens, reason = meta["completion_tokens"], meta["finish_reason"]["type"]
                    call.add(generated_tokens=tokens, finish_reason=reason)
                whole.add(response_length=tokens, finish_reason=reason)
        except TimeoutError:
            pass

    def begun(name, log):
        path = log / "engine/scheduler_0_tp0.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return any('"scheduler_first_tokens"' in line and f'"{name}"' in line for line in lines)

    def step(log):
        whole = [threading.Thread(target=request, args=(f"whole-{n}", 40)) for n in range(8)]
        for thread in whole:
            thread.start()
        for n in range(3):
            go = threading.Event()
            pair = [threading.Thread(target=request, args=(f"cut-{n}", 480)),
                    threading.Thread(target=request, args=(f"left-{n}", 480, go))]
            for thread in pair:
                thread.start()
            while not (begun(f"cut-{n}", log) and begun(f"left-{n}", log)):
                time.sleep(0.02)
            post("/abort_request", {"rid": f"cut-{n}"})
            go.set()
            for thread in pair:
                thread.join()
        for thread in whole:
            thread.join()

    if __name__ == "__main__":
        sglang_instrument.install()
        two = {"max_new_tokens": 2, "ignore_eos": True}
        post("/generate", {"input_ids": [300, 301], "sampling_params": two})  # outside of any step
        with sglang_instrument.step(11):  # no other test logs this one to the servers' run
            step(pathlib.Path(sglang_instrument.status()["folder"]))
        sglang_instrument.uninstall()
"""


def counted(server, name):
    """Return the sum of one of the server's own counters."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as reply:
        text = reply.read().decode()
    return sum(float(number) for number in re.findall(rf"^sglang:{name}\{{.*\}} (\S+)$", text, re.M))


def logged_requests(log):
    """Return the requests whose tokens are logged: with their answer, or when they are aborted."""
    answers = records_of(log, "server_0.jsonl", "engine_request")
    whole = [record for record in answers if "completion_tokens" in record["extra"]]
    return rids_of(whole) | rids_of(records_of(log, "scheduler_0_tp0.jsonl", "scheduler_abort"))


@pytest.fixture(scope="module")
def run(served):
    """The folder of a run with aborts, and the server's own count of its tokens."""
    server, log = served.server, served.log
    served.begin_part("waste")
    before = {name: counted(server, name) for name in ("num_requests_total", "generation_tokens_total")}

    def since(name):
        return counted(server, name) - before[name]

    client = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(CLIENT), str(server.port)]
    subprocess.run(client, env=server.environment, cwd=log, check=True, timeout=1200)
    # A server notices after seconds that a caller has left, and counts tokens when the scheduler has
    # answered the abort: later than it logs the end of the call.
    wait_for(lambda: since("num_requests_total") == REQUESTS, lambda: since("num_requests_total"))
    tokens = since("generation_tokens_total")
    wait_for(lambda: logged_requests(log / "engine") >= LEFT, lambda: logged_requests(log / "engine"))
    return served.end_part("waste"), tokens


def test_its_sums_are_those_of_the_server_within_a_hundredth(run, capsys):
    folder, tokens = run
    assert main(["waste", str(folder), "--json"]) == 0
    waste = json.loads(capsys.readouterr().out)
    engine, total = waste["engine"], waste["total"]
    assert 8 * 40 < tokens < 8 * 40 + 6 * 480  # some were cut off
    assert engine["generated_tokens"] == pytest.approx(tokens, rel=0.01)
    assert total["generated_tokens"] + 2 == pytest.approx(tokens, rel=0.01)  # two outside of steps
    assert (total["requests"], total["uncounted_requests"], engine["abandoned_requests"]) == (14, 0, 0)
    assert total["unknown_tokens"] < total["generated_tokens"]
    assert total["aborted_tokens"] + total["unknown_tokens"] == total["generated_tokens"]
    print(json.dumps({"counter": tokens, "engine": engine, "total": total}))
