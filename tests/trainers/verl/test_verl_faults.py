"""With a verl that differs from the table's, missing events are named, and no others are missing."""

import json
import shutil

import pytest

PACKAGE = "verl"
FIND = "from importlib.util import find_spec; print(find_spec('verl').submodule_search_locations[0])"
FILE = "verl/workers/rollout/sglang_rollout/sglang_rollout.py"
STATUS = """
import cpu_engine, json, sglang_instrument
import verl.workers.rollout.sglang_rollout.sglang_rollout
sglang_instrument.install(log_dir={folder!r})
patches = sglang_instrument.status()["patches"]
print(json.dumps([site for site in patches if site["table"] == "verl/rollout"]))
"""


@pytest.fixture
def fork(tmp_path, run_in):
    """Copy a version's package with changes to its rollout; return the status() of the copy."""

    def of(version, *changes):
        package = run_in(version, FIND).stdout.strip().splitlines()[-1]
        shutil.copytree(package, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        path = tmp_path / FILE
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        done = run_in(version, STATUS.format(folder=str(tmp_path / "logs")), tmp_path)
        sites = json.loads(done.stdout.strip().splitlines()[-1])
        return {site["event"]: site for site in sites if site.get("expected", True)}, done.stderr

    return of


def lost(sites):
    return {event for event, site in sites.items() if site["state"] != "found"}


def test_a_renamed_target_loses_only_its_own_events_and_is_reported(fork):
    sites, said = fork("0.6.1", ("_handle_pending_state", "_handle_waiting_state"))
    gone = {"tool_creation_pending_state", "interaction_start_pending_state"}
    # Their call is an anchor in the calling method: regions there that name it are missing, too.
    assert lost(sites) == gone | {"pending_state_handling", "main_loop"}
    assert all("_handle_pending_state" in sites[event]["note"] for event in lost(sites))
    assert "33 of 37 events, 4 missing (status() names them)" in said


def test_a_renamed_method_that_is_no_anchor_loses_nothing_else(fork):
    sites, said = fork("0.6.1", ("_handle_engine_generate", "_ask_the_engine"))
    assert lost(sites) == {"engine_generate_setup", "engine_async_generate_actual"}
    assert "35 of 37 events, 2 missing" in said


def test_a_fork_with_statements_of_its_own_near_the_anchors_is_found_whole(fork):
    sites, _ = fork(
        "0.5.0",
        (
            "        _req = deepcopy(req)\n",
            '        started = {"at": 0}\n        _req = deepcopy(req)\n        note = "copied"\n',
        ),
        (
            "                output = await self._handle_engine_call(",
            "                before_call = len(_req.messages)\n"
            "                output = await self._handle_engine_call(",
        ),
        (
            "                current_turns += 1\n",
            '                started["turns"] = before_call\n                current_turns += 1\n',
        ),
        (
            "            sorted_output_req_list = sorted(",
            "            logger.debug('sorting now')\n            sorted_output_req_list = sorted(",
        ),
    )
    assert lost(sites) == set()


def test_a_fork_that_times_itself_loses_only_what_it_made_ambiguous(fork):
    """A helper of the fork contains an anchor a second time; the ambiguous regions are named."""
    sites, _ = fork(
        "0.6.1",
        (
            "        if current_turns >= self.config.multi_turn.max_assistant_turns:\n",
            "        if user_turns:\n"
            "            logger.debug(self._handle_pending_state)\n"
            "        if current_turns >= self.config.multi_turn.max_assistant_turns:\n",
        ),
    )
    assert lost(sites) <= {"pending_state_handling"}
    assert all(sites[event]["state"] == "ambiguous" for event in lost(sites))
