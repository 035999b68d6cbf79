"""What `ostraka status` shows people of what the service says."""

import json
import re

import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.cli import status as command

SAID = {
    "phase": "finished",
    "round": 11,
    "awaited": [],
    "deadline_in_s": None,
    "arrived": ["client-1", "client-2"],
    "quorum_reached": False,
    "rejected": {},
    "workers": ["worker-1"],
    "worker_record": {"worker-1": {"attempts": 10, "lies": 1, "failures": 0}},
    "history": [{"round": 1, "stages_s": {"measure": 0.1}}],
    "stages_s": {"measure": 0.1, "average": 0.2},
    "note": "",
    "metrics": [],
    "started_at": 1794962729.955,
}


@pytest.fixture
def shown(monkeypatch):
    """The words of every row of the table, by its name, and the figures behind it."""

    def ask(figures):
        monkeypatch.setattr(command._Service, "ask", lambda _: SAID | figures)
        result = CliRunner().invoke(app, ["status", "--enclave", "127.0.0.1:1", "--json"])
        assert result.exit_code == 0
        assert json.loads(result.stdout) == SAID | figures
        rows = [re.match(r" (\w[\w ]*?)  +(.*)", line) for line in result.stderr.splitlines()]
        return {row[1]: row[2].strip() for row in rows if row}

    return ask


def test_the_table_is_for_people(shown):
    assert shown({}) == {
        "What": "Now",
        "doing": "finished",
        "phase": "finished",
        "round": "11",
        "arrived": "client-1, client-2",
        "quorum reached": "no",
        "workers": "worker-1",
        "worker record": "worker-1: 10 attempts, 1 lies, 0 failures",
        "stages s": "measure: 0.1",
        "started at": "2026-11-18 00:45:29+00:00",
    }


def test_strangers_see_how_many(shown):
    rows = shown({"arrived": 0, "workers": 2, "worker_record": 2, "history": 1})
    assert (rows["arrived"], rows["workers"]) == ("0", "2")
    assert not {"worker record", "history"} & rows.keys()


@pytest.mark.parametrize(
    ("phase", "missing", "doing"),
    [
        ("starting", [1], "waiting for shard 1"),
        ("starting", [0, 2], "waiting for shards 0, 2"),
        ("starting", [], "starting"),
        ("confirming", [1], "waiting for 0 clients to confirm"),
    ],
)
def test_it_says_which_shards_are_waited_for(shown, phase, missing, doing):
    said = shown({"phase": phase, "shards": [], "shards_missing": missing, "awaited": 0})
    assert said["doing"] == doing
    assert said.get("shards missing", "") == ", ".join(map(str, missing))
