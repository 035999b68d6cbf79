"""`ostraka client fetch` and `submit`: what they print, write and end with."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.cli.client import _events
from ostraka.client.events import Reconnecting, Sending
from ostraka.messages import vector_digest

D = 17


@pytest.fixture
def run(host, folder):
    """Runs a command of alice, whose files are in the folder."""

    def command(name, *arguments, simulation=True):
        options = ["--enclave", host.address, "--name", "alice", "--timeout", "60"]
        options += ["--key", str(folder / "alice.key"), "--policy", str(folder / "policy.toml")]
        options += ["--unsafe-simulation"] if simulation else []
        line = ["client", name, *map(str, arguments), *options]
        return CliRunner().invoke(app, line, prog_name="ostraka")

    return command


def figures(result):
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def test_fetch_writes_the_model_and_says_so(run, folder, service):
    out = folder / "model.safetensors"
    result = run("fetch", "--out", out)
    assert result.exit_code == 0
    assert result.stdout == f"{out}: the model of round 1, which is open.\n"
    assert "simulated" in result.stderr
    model = load_file(out)
    assert {name: each.shape for name, each in model.items()} == {"weight": (4, 3), "bias": (5,)}
    assert np.array_equal(model["bias"], service.state.model[12:])


def test_fetch_as_json(run, folder, service):
    out = folder / "model.safetensors"
    assert figures(run("fetch", "--out", out, "--json")) == {
        "round": 1,
        "finished": False,
        "model": vector_digest(service.state.model).hex(),
        "dimension": D,
        "out": str(out),
        "simulated": True,
    }


def test_submit_a_difference(run, folder, service):
    before = service.state.model
    save_file({"weight": np.full((4, 3), 4, "f4"), "bias": np.zeros(5, "f4")}, folder / "update.st")
    result = run("submit", folder / "update.st", "--json", "--round", 1)
    assert result.exit_code == 0
    assert figures(result) == {
        "round": 1,
        "accepted": True,
        "reason": None,
        "null_step": None,
        "model": vector_digest(service.state.model).hex(),
        "participants": 4,
        "kept": 4,
        "rule": "arc+nnm+geometric-median",
        "note": None,
        "metrics": None,
        "simulated": True,
    }
    assert np.allclose(service.state.model[:12], before[:12] + 1)
    assert np.array_equal(service.state.model[12:], before[12:])


def test_submit_a_vector_for_one_round_only(run, folder, service):
    np.save(folder / "update.npy", np.ones(D))
    result = run("submit", folder / "update.npy", "--round", 2)
    assert result.exit_code == 2
    assert "round 1 is open, and the update is for round 2" in result.stderr
    assert service.arrived == []
    result = run("submit", folder / "update.npy", "--round", 1)
    assert result.exit_code == 0
    assert result.stdout == (
        "Round 1 is published; the update took part in it. Rule: arc+nnm+geometric-median.\n"
    )


def test_submit_weights_with_the_model_that_they_were_trained_from(run, folder, service):
    before = service.state.model
    run("fetch", "--out", folder / "base.st")
    trained = {name: each + np.float32(0.5) for name, each in load_file(folder / "base.st").items()}
    save_file(trained, folder / "trained.st")
    result = run("submit", folder / "trained.st", "--base", folder / "base.st")
    assert result.exit_code == 0
    assert np.allclose(service.state.model, before + 0.5 / 4, atol=1e-6)
    result = run("submit", folder / "trained.st", "--base", folder / "base.st")
    assert result.exit_code == 2
    assert "--base is not the model of round 2" in result.stderr


def test_an_update_that_took_no_part_is_a_failure(run, folder, service, when):
    np.save(folder / "update.npy", np.ones(D))
    service.auto = False
    when(lambda: service.calls.count("Upload") >= 3, service.close)
    service.breaks = [2] + [0] * 1000
    for name in ("bob", "carol", "dave"):
        service._send(name, service.intake.offer, 0.0)
    result = run("submit", folder / "update.npy", "--json", "--round", 1)
    assert result.exit_code == 1
    assert figures(result)["reason"] == "incomplete when the round closed"


def test_a_refused_enclave_ends_in_3_without_a_file(run, folder, service):
    out = folder / "model.safetensors"
    result = run("fetch", "--out", out, simulation=False)
    assert result.exit_code == 3
    assert "the caller did not ask for it" in result.stderr
    service.code = b"x" * 32
    assert run("fetch", "--out", out).exit_code == 3
    assert not out.exists()


def test_refused_receipts_end_in_3(run, folder, service):
    np.save(folder / "update.npy", np.ones(D))
    first = service.state
    run("submit", folder / "update.npy", "--round", 1)
    service.links, service.state = service.links[:1], first
    service.restart()
    assert run("fetch", "--out", folder / "m").exit_code == 3
    service.publish(value=5.0)
    result = run("fetch", "--out", folder / "m")
    assert result.exit_code == 3
    assert "both receipts are in" in result.stderr


def test_what_happens_on_the_way_is_told_on_stderr(run, folder, service, host):
    np.save(folder / "update.npy", np.ones(D))
    service.breaks = [2]
    result = run("submit", folder / "update.npy", "--json", "--round", 1)
    assert figures(result)["accepted"]
    assert f"attempt 1 to reach {host.address} failed (Socket closed)" in result.stderr
    assert "sending 3 of 5 tiles" in result.stderr


def test_what_is_waited_for_is_told_once_on_stderr(run, folder, service, when):
    np.save(folder / "update.npy", np.ones(D))
    service.auto = False
    when(lambda: service.calls.count("AwaitOutcome") >= 3, service.publish)
    lines = run("submit", folder / "update.npy", "--round", 1).stderr.splitlines()
    assert lines.count("waiting for an open round") == 1
    assert lines.count("waiting for round 1 to be published") == 1


def test_what_is_tried_in_vain_is_said_again_with_the_address(capsys):
    """The clock goes half a minute with each attempt."""
    clock = iter(range(0, 1000, 30))
    with _events(lambda: float(next(clock))) as tell:
        for attempt in (1, 2, 3):
            tell(Reconnecting(attempt, "refused", "fl:7421"))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"attempt {n} to reach fl:7421 failed (refused): trying again" for n in (1, 2, 3)
    ]


def test_what_is_tried_in_vain_is_not_said_at_each_attempt(capsys):
    with _events(lambda: 0.0) as tell:
        for attempt in (1, 2, 3):
            tell(Reconnecting(attempt, "refused", "fl:7421"))
    assert len(capsys.readouterr().err.splitlines()) == 1


SHOWN = """
from ostraka.cli.client import _events
from ostraka.client.events import Sending, Uploading, Waiting

with _events() as tell:
    tell(Waiting("an open round"))
    tell(Uploading(1, 8, 8))
    for done in range(1, 8):
        tell(Sending(1, done * 10**6, 8 * 10**6, float(done)))
    tell(Waiting("round 1 to be published"))
"""


def test_an_upload_shows_bytes_and_an_eta_on_a_line_of_its_own():
    """In a terminal: whatever else is said stands on a line that was cleared before."""
    master, slave = pty.openpty()
    wide = {**os.environ, "COLUMNS": "120", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", SHOWN], stderr=slave, env=wide) as process:
        os.close(slave)
        shown = b""
        with suppress(OSError):  # Linux says so at the end.
            while part := os.read(master, 2**16):
                shown += part
    os.close(master)
    assert process.returncode == 0
    text = shown.decode()
    assert "sent 7.0 of 8.0 MB for round 1, about 1 s left" in text
    for said in ("waiting for an open round", "waiting for round 1 to be published"):
        assert re.search(rf"(?:^|\n|\x1b\[2K){said}\r?\n", text), (said, text)
    assert not re.search(r"(?m)^sent .* left\r?$", text)  # It was never a line that stays.


def test_an_upload_tells_how_far_it_is(alice, service, told, monkeypatch):
    monkeypatch.setattr("ostraka.client.upload._TELL_S", 0.0)
    alice.fetch()
    alice.submit(np.ones(D))
    sent = [each for each in told if isinstance(each, Sending)]
    assert len(sent) == 4  # of five tiles: the last one is told of by what comes next
    assert [each.sent for each in sent] == sorted({each.sent for each in sent})
    assert all(0 < each.sent < each.of for each in sent)


def test_an_upload_in_a_pipe_is_told_of_now_and_then(capsys):
    clock = iter((0.0, 1.0, 31.0))
    with _events(lambda: next(clock)) as tell:
        for done in (1, 2, 3):
            tell(Sending(1, done * 10**6, 4 * 10**6, 10.0 * done))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "sent 1.0 of 4.0 MB for round 1, about 30 s left",
        "sent 3.0 of 4.0 MB for round 1, about 10 s left",
    ]


def test_ctrl_c_after_an_upload_says_that_the_update_is_in(run, folder, service, when):
    np.save(folder / "update.npy", np.ones(D))
    service.auto = False
    when(
        lambda: service.calls.count("AwaitOutcome") >= 2,
        lambda: os.kill(os.getpid(), signal.SIGINT),
    )
    result = run("submit", folder / "update.npy", "--round", 1)
    assert result.exit_code != 0
    said = "ostraka: the update for round 1 is already in, and stays there: run the same command"
    assert f"{said} with --round 1" in result.stderr


def test_a_forgotten_flag_is_named(run, folder, service):
    result = run("fetch", "--out", folder / "m", simulation=False)
    assert result.exit_code == 3
    assert "give --unsafe-simulation, or unsafe_simulation=True in Python" in result.stderr


@pytest.mark.parametrize("name", ["none.npy", "noise.npy", "none.st", "noise.st"])
def test_a_file_that_holds_no_update_is_told_before_anybody_is_asked(name, run, folder, service):
    if "noise" in name:
        (folder / name).write_bytes(b"noise")
    result = run("submit", folder / name, "--round", 1)
    assert result.exit_code == 2
    assert f"{name} cannot be read as" in result.stderr
    assert service.calls == []


def test_a_pickle_is_not_loaded(run, folder, service):
    np.save(folder / "update.npy", np.array([{}]), allow_pickle=True)
    result = run("submit", folder / "update.npy", "--round", 1)
    assert result.exit_code == 2
    assert service.calls == []


def test_a_model_that_cannot_be_written_is_told(run, folder):
    result = run("fetch", "--out", folder / "nowhere" / "model.st")
    assert result.exit_code == 2
    assert "No such file" in result.stderr


def test_the_last_model_when_all_rounds_are_over(run, folder, service):
    np.save(folder / "update.npy", np.ones(D))
    run("submit", folder / "update.npy", "--round", 1)
    service.finished = True
    result = run("fetch", "--out", folder / "m", "--json")
    assert (figures(result)["round"], figures(result)["finished"]) == (1, True)
    result = run("submit", folder / "update.npy", "--round", 1)
    assert result.exit_code == 1
    assert "finished" in result.stderr
