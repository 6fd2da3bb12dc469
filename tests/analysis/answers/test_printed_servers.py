"""`servers` of a server's own log alone: the lines that it prints, or what its processes wrote."""

import json
import os

from hand_written import record
from server_lines import steady

from sglang_instrument.cli.main import main

NOON = 1767614400.0  # 2026-01-05 12:00 UTC


def rows(capsys, log):
    assert main(["servers", str(log), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["servers"]


def test_a_log_that_a_server_printed_shows_that_server(tmp_path, capsys):
    for name in ("a.log", "b.log"):
        path = tmp_path / name
        path.write_text("\n".join(["INFO: Started", *steady(prefix="[2026-01-05 {clock} TP0] ")]) + "\n")
        os.utime(path, (NOON, NOON))
    (only,) = rows(capsys, tmp_path / "a.log")
    assert (only["server"], only["calls"], only["completion_tokens"]) == ("server_0", 4, 1760)
    assert only["max_in_flight"] == 4
    assert only["conversations"] is None, "who called is not known"
    assert [row["server"] for row in rows(capsys, tmp_path)] == ["server_0", "server_1"]
    assert main(["servers", str(tmp_path)]) == 0
    assert "2 servers, 8 times in which a slot of a decoder was busy" in capsys.readouterr().out


def test_requests_that_only_the_scheduler_logged_belong_to_its_server(tmp_path, capsys):
    """A request in flight at a kill, or of a caller that went away: it was a second server."""
    engine = tmp_path / "run/engine"
    engine.mkdir(parents=True)
    header = {"timestamp": record("", 0, 0)["timestamp"], "event": "log_opened", "extra": {"run_id": "now"}}

    def write(name, *records):
        (engine / name).write_text("".join(json.dumps(line) + "\n" for line in (header, *records)))

    tokens = {"prompt_tokens": 5, "completion_tokens": 7}
    write("server_0.jsonl", record("engine_request", 1, 4, extra={"rid": "a", **tokens}))
    received = [record("scheduler_receive", 1, 1.1, extra={"rid": rid, "prompt_tokens": 5}) for rid in "ab"]
    write("scheduler_0_tp0.jsonl", *received, record("scheduler_admit", 2, 2.1, extra={"rids": ["a", "b"]}))
    assert [(row["server"], row["calls"]) for row in rows(capsys, tmp_path / "run")] == [("server_0", 2)]
    assert main(["summary", str(tmp_path / "run"), "--json"]) == 0
    assert [row["server"] for row in json.loads(capsys.readouterr().out)["servers"]] == ["server_0"]
