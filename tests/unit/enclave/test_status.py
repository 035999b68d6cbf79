"""What an operator sees: who is in and who is not, and nothing of what they sent."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka import events, federation_file
from ostraka.cli import app
from ostraka.config import Manifest, Terms
from ostraka.core import rules
from ostraka.enclave.status import Status
from ostraka.encoding import encode
from ostraka.errors import ConfigError
from ostraka.transport import ostraka_pb2 as wire

RNG = np.random.default_rng(3)
N, F, D = 7, 2, 50
PATIENCE_S = 120.0
STATUS = {
    "receipt_key",
    "shards",
    "shards_missing",
    "federation",
    "revision",
    "phase",
    "round",
    "rounds",
    "published",
    "deadline_in_s",
    "arrived",
    "awaited",
    "spooled",
    "rejected",
    "workers",
    "quorum",
    "quorum_reached",
    "grace_s",
    "confirmed",
    "confirmations_missing",
    "worker_record",
    "history",
    "memory_mib",
    "bytes_in",
    "bytes_out",
    "started_at",
    "stages_s",
    "selected",
    "rule",
    "note",
    "metrics",
    "masking",
    "upload",
    "evidence",
    "simulated",
    "events",
    "uptime_s",
}
METRICS = {
    "ostraka_events_total",
    "ostraka_events_created",
    "ostraka_simulated",
    "ostraka_rounds_published",
    "ostraka_clients_arrived",
    "ostraka_clients_enrolled",
    "ostraka_workers_connected",
    "ostraka_shards_connected",
    "ostraka_shards_missing",
    "ostraka_received_bytes",
    "ostraka_reported_metric",
    "ostraka_reporting_clients",
    "ostraka_rule_info",
    "ostraka_stage_seconds",
}


@pytest.fixture
def federation(start):
    """start(**settings) gives a service with seven clients, and the port of its metrics."""

    def make(rule="multi-krum", **settings):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        metrics = f"127.0.0.1:{port}"
        plan = {"composition": rules.parse(rule)}
        service = start(
            clients=N, f=F, dimension=D, settings={"metrics": metrics} | settings, **plan
        )
        service.wait_for("RoundOpened")
        return service, port

    return make


def status_of(service, speaker):
    return speaker(service, 1).status()


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        return reply.read().decode()


def values(text):
    """Every metric, by its name and labels."""
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def rows():
    """Honest rows that lie together, and the last two far from them."""
    updates = RNG.normal(size=D) + 0.3 * RNG.normal(size=(N, D))
    updates[N - F :] *= -3
    return updates.astype(np.float32)


def play(service, speaker, updates):
    speakers = [speaker(service, number + 1) for number in range(len(updates))]
    joined = [each.send(row) for each, row in zip(speakers, updates, strict=True)]
    return speakers[0].follow(joined[0])


def test_a_round_as_it_goes_on(federation, speaker):
    service, port = federation()
    before = status_of(service, speaker)
    everybody = [f"client-{number}" for number in range(1, N + 1)]
    assert before.keys() == STATUS
    assert (before["phase"], before["round"], before["published"]) == ("collecting", 1, 0)
    assert (before["arrived"], before["awaited"], before["rejected"]) == ([], everybody, {})
    assert (before["simulated"], before["evidence"]) == (True, "simulation")
    assert before["stages_s"] == {}
    assert before["deadline_in_s"] > 0

    updates = rows()
    for number in (3, 1):
        speaker(service, number).send(updates[number - 1])
    between = status_of(service, speaker)
    assert between["arrived"] == ["client-1", "client-3"]
    assert between["awaited"] == [name for name in everybody if name[-1] not in "13"]
    assert values(scrape(port))["ostraka_clients_arrived"] == 2
    assert values(scrape(port))["ostraka_received_bytes"] > 2 * 4 * D

    for number in (2, 4, 5, 6, 7):
        speaker(service, number).send(updates[number - 1])
    service.wait_for("RoundOpened", 2)
    after = status_of(service, speaker)
    assert (after["round"], after["published"], after["arrived"]) == (2, 1, [])
    assert set(after["stages_s"]) == {"measure", "average", "hold", "confirm", "publish"}
    shown = values(scrape(port))
    assert shown["ostraka_rounds_published"] == 1
    assert shown["ostraka_simulated"] == 1
    assert shown["ostraka_clients_enrolled"] == N
    assert shown['ostraka_events_total{event="UploadCompleted"}'] == N
    assert shown['ostraka_stage_seconds{stage="measure"}'] >= 0


def test_means_of_what_clients_report(federation, speaker):
    """Of rounds that published any, newest last. The gauges are of the last round alone."""
    service, port = federation(report_metrics=["loss", "accuracy"])
    assert status_of(service, speaker)["metrics"] == []
    updates = rows()
    for number in (1, 2):
        speakers = [speaker(service, each + 1) for each in range(N)]
        for each, (place, row) in zip(speakers, enumerate(updates), strict=True):
            said = {"loss": number + 0.1 * place, "accuracy": 0.5}
            joined = each.send(row, said if place < 4 * number else None)
        speakers[0].follow(joined)
    shown = status_of(service, speaker)["metrics"]
    assert shown == [
        {"round": 1, "clients": 4, "loss": pytest.approx(1.15), "accuracy": 0.5},
        {"round": 2, "clients": N, "loss": pytest.approx(2.3), "accuracy": 0.5},
    ]
    stranger = speaker(service, 1, greets=False).stub.GetStatus(wire.StatusRequest())
    assert json.loads(stranger.json)["metrics"] == shown
    service.wait_for("RoundOpened", 3)
    scraped = values(scrape(port))
    assert scraped['ostraka_reported_metric{metric="loss"}'] == pytest.approx(2.3)
    assert scraped["ostraka_reporting_clients"] == N
    command = CliRunner().invoke(app, ["status", "--config", str(service.config)])
    assert re.search(r"metrics +loss 2\.3, accuracy 0\.5 \(round 2, the mean of 7", command.output)
    service.crash()
    service.events.clear()
    service.start()
    service.wait_for("RoundOpened")
    assert status_of(service, speaker)["metrics"] == shown
    for each, row in enumerate(updates):
        joined = speaker(service, each + 1).send(row)
    speaker(service, 1).outcome(joined)
    service.wait_for("RoundPublished")
    assert status_of(service, speaker)["metrics"] == shown
    assert not any("reported_metric" in name for name in values(scrape(port)))


def test_who_was_refused_and_why(federation, speaker):
    service, _ = federation()
    updates = rows()
    joined = speaker(service, 1).join()
    sealed = joined.seal(updates[0]).sealed
    liar = speaker(service, 2)
    stranger = encode(replace(sealed.header, client="mallory\x1b[31m"))
    with liar.begin(stranger) as refused, pytest.raises(grpc.RpcError):
        refused.hear()
    with pytest.raises(grpc.RpcError):
        liar.upload(sealed, [])
    updates[2, 5] = np.inf
    with pytest.raises(grpc.RpcError):
        speaker(service, 3).send(updates[2])
    seen = status_of(service, speaker)
    # What another one sends in the name of client 1 says nothing of client 1.
    assert seen["rejected"].keys() == {"mallory\\x1b[31m", "client-3"}
    with pytest.raises(grpc.RpcError):
        speaker(service, 1).upload(sealed, [])
    seen = status_of(service, speaker)
    assert seen["rejected"].keys() == {"mallory\\x1b[31m", "client-1", "client-3"}
    assert seen["rejected"]["mallory\\x1b[31m"] == "not enrolled"
    assert "before it was complete" in seen["rejected"]["client-1"]
    assert "stated norm" in seen["rejected"]["client-3"]
    assert "client-3" not in seen["awaited"]
    assert "client-1" in seen["awaited"]

    speaker(service, 1).upload(sealed)
    seen = status_of(service, speaker)
    assert seen["rejected"].keys() == {"mallory\\x1b[31m", "client-3"}
    assert seen["arrived"] == ["client-1"]


def secrets_of(updates):
    """Everything that must not be seen, as numbers: updates, norms, distances and scores."""
    wide = updates.astype(np.float64)
    squares = np.square(wide[:, None] - wide[None]).sum(axis=2)
    n = len(wide)
    scores = [np.sort(np.delete(squares[i], i))[: n - F - 2].sum() for i in range(n)]
    distances = squares[np.triu_indices(n, 1)]
    return np.concatenate([np.ravel(wide), np.linalg.norm(wide, axis=1), distances, scores])


def numbers_in(text):
    return np.array([float(each) for each in re.findall(r"-?\d+\.\d+(?:e[+-]?\d+)?", text)])


@pytest.mark.parametrize("masking", ["none", "exact"])
def test_nothing_of_what_was_sent_is_seen(federation, speaker, monkeypatch, masking):
    monkeypatch.setattr("ostraka.enclave.engine._GRACE_S", 0.1)
    service, port = federation(masking=masking)
    updates = rows()
    seen = []
    for number in range(1, N + 1):
        speaker(service, number).send(updates[number - 1])
        seen += [json.dumps(status_of(service, speaker)), scrape(port)]
    service.wait_for("RoundPublished")
    seen += [json.dumps(status_of(service, speaker)), scrape(port)]
    seen += [str(event) for event in service.events]
    secrets = secrets_of(updates)
    for text in seen:
        for shown in numbers_in(text):
            # Timings have few digits, so only what agrees in more than those is a secret.
            assert not np.any(np.abs(secrets - shown) <= 1e-7 * np.abs(secrets)), shown
    for text in seen:
        assert "selected=" not in text
        assert '"selected": null' in text or not text.startswith("{")
    for text in seen[1 : 2 * N : 2]:
        assert {name.partition("{")[0] for name in values(text)} <= METRICS
        assert "client-" not in text


@pytest.mark.parametrize("disclosed", [True, False])
def test_the_selection_is_seen_only_where_the_terms_disclose_it(federation, speaker, disclosed):
    service, port = federation(disclose_selection=disclosed)
    receipt = play(service, speaker, rows())
    chosen = [f"client-{number}" for number in range(1, N - F + 1)]
    assert list(receipt.selected) == (chosen if disclosed else [])
    assert status_of(service, speaker)["selected"] == (chosen if disclosed else None)
    assert "client-" not in scrape(port)


def test_the_rule_is_shown_with_what_the_last_receipt_notes_of_it(federation, speaker):
    """The root client stays away, so that another rule decides, and an operator should know."""
    service, port = federation(rule="fltrust(root=client-7)", f=1, quorum=N - 1, grace_s=0)
    before = status_of(service, speaker)
    assert (before["rule"], before["note"]) == ("fltrust(root=client-7)", None)
    assert values(scrape(port))['ostraka_rule_info{note="",rule="fltrust"}'] == 1
    receipt = play(service, speaker, rows()[: N - 1])
    assert receipt.note == "the root client took no part: arc+nnm+geometric-median decided"
    service.wait_for("RoundOpened", 2)
    after = status_of(service, speaker)
    assert (after["rule"], after["note"]) == (receipt.rule, receipt.note)
    shown = {name: value for name, value in values(scrape(port)).items() if "rule_info" in name}
    assert shown == {f'ostraka_rule_info{{note="{receipt.note}",rule="fltrust"}}': 1}
    assert receipt.note in service.wait_for("RoundPublished").note
    stranger = speaker(service, 1, greets=False)
    told = json.loads(stranger.stub.GetStatus(wire.StatusRequest()).json)
    assert (told["rule"], told["note"]) == ("fltrust", receipt.note)


def test_the_command_says_who_is_awaited_and_how_long(federation, speaker):
    service, _ = federation(rule="geometric-median", quorum=N - 1, deadline_s=600, grace_s=500)
    operator = ["status", "--config", str(service.config)]
    stranger = ["status", "--enclave", f"127.0.0.1:{service.port}"]

    def doing(arguments):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.stderr
        return " ".join(result.stdout.split())

    assert "waiting for 7 clients" in doing(operator)
    updates = rows()
    for number in range(N - 1):
        speaker(service, number + 1).send(updates[number])
    service.wait_for("QuorumReached")
    assert re.search(r"quorum reached, waiting (\d+) s more for client-7\b", doing(operator))
    assert re.search(r"quorum reached, waiting (\d+) s more for 1 client\b", doing(stranger))


def test_strangers_see_numbers_and_no_names(federation, speaker):
    service, _ = federation(disclose_selection=True)
    play(service, speaker, rows())
    service.wait_for("RoundOpened", 2)
    speaker(service, 2).send(rows()[1])
    stranger = speaker(service, 1, greets=False)
    for token in ("", "0" * 64, "\u00e9"):
        told = stranger.stub.GetStatus(wire.StatusRequest(token=token)).json
        assert "client-" not in told
        assert "worker-" not in told
        seen = json.loads(told)
        assert seen.keys() == STATUS
        assert (seen["arrived"], seen["awaited"], seen["rejected"]) == (1, N - 1, 0)
        assert (seen["workers"], seen["selected"]) == (0, N - F)
    token = (federation_file.load(service.config).state / "status.token").read_text()
    assert json.loads(stranger.stub.GetStatus(wire.StatusRequest(token=token)).json)["arrived"] == [
        "client-2"
    ]


def test_the_operator_s_token_is_private_and_lasts_for_one_run(federation):
    service, _ = federation()
    kept = federation_file.load(service.config).state / "status.token"
    assert kept.stat().st_mode & 0o777 == 0o600
    before = kept.read_text()
    service.crash()
    service.events.clear()
    service.start()
    assert kept.read_text() != before


def test_the_command_asks_for_a_service(federation):
    shown = CliRunner().invoke(app, ["status"])
    assert shown.exit_code
    assert "--config" in shown.output


def test_the_command_shows_the_same(federation, speaker):
    service, _ = federation()
    speaker(service, 2).send(rows()[1])
    shown = CliRunner().invoke(app, ["status", "--enclave", f"127.0.0.1:{service.port}"])
    assert re.search(r"arrived +1\b", shown.output)
    command = ["status", "--config", str(service.config)]
    plain = CliRunner().invoke(app, command)
    assert plain.exit_code == 0, plain.output
    assert re.search(r"arrived +client-2", plain.output)
    assert re.search(r"simulated +yes", plain.output)
    figures = CliRunner().invoke(app, [*command, "--json"])
    shown = json.loads(figures.stdout.splitlines()[-1])
    told = status_of(service, speaker)
    changing = {"uptime_s", "deadline_in_s", "bytes_in", "bytes_out", "memory_mib"}
    assert {k: v for k, v in shown.items() if k not in changing} == {
        k: v for k, v in told.items() if k not in changing
    }


def test_strangers_do_not_crowd_out_the_enrolled():
    member = SimpleNamespace(name="client-1")
    status = Status(simulated=True, evidence="simulation")
    terms = Terms(Manifest.flat(1), f=0)
    federation = SimpleNamespace(clients=(member,), terms=terms)
    state = SimpleNamespace(head=None)
    status.engine = SimpleNamespace(federation=federation, state=state)  # type: ignore[assignment]
    for number in range(10_000):
        status.note(events.UploadRefused(f"stranger {number}", "not enrolled"))
    assert len(status.rejected) == 100
    status.note(events.UploadRefused("client-1", "too slow"))
    assert status.rejected["client-1"] == "too slow"
    status.note(events.UploadCompleted("client-1"))
    assert "client-1" not in status.rejected
    status.note(events.ClientRejected("client-1", "its norm is not the stated one"))
    assert status.rejected["client-1"] == "its norm is not the stated one"
    status.note(events.RoundOpened(2, 60.0, 1))
    assert status.rejected == {}
    assert status.arrived == set()


def test_a_port_for_metrics_that_is_taken_is_named(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        service = start(run=False, settings={"metrics": address})
        with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
            service.start()
        service._thread = None  # It has ended by itself.


def test_the_port_for_metrics_is_free_again_when_the_service_has_ended(federation):
    service, port = federation()
    assert scrape(port)
    service.crash()
    with socket.create_server(("127.0.0.1", port)):
        pass


class Watching:
    """`ostraka status --watch` in a process of its own, and what it has printed so far."""

    def __init__(self, service, *, terminal: bool) -> None:
        self._reading, writing = pty.openpty() if terminal else os.pipe()
        address = f"127.0.0.1:{service.port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ostraka", "status", "--enclave", address, "--watch"],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(writing)
        self._text = ""

    def wait_for(self, wanted: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while wanted not in self._text:
            assert time.monotonic() < until, self._text
            if select.select([self._reading], [], [], 0.5)[0]:
                self._text += os.read(self._reading, 2**16).decode("utf-8", "replace")

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._reading)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_status_can_be_watched_and_survives_a_restart(start, terminal):
    service = start(settings={"deadline_s": 600})
    service.wait_for("RoundOpened")
    watching = Watching(service, terminal=terminal)
    try:
        watching.wait_for("waiting for 5 clients")
        service.crash()
        watching.wait_for("connection lost, trying again")
        watching._text = ""
        service.events.clear()
        service.start()
        watching.wait_for("waiting for 5 clients")
    finally:
        code = watching.end()
    assert code == 130


def test_a_status_is_watched_by_people(start):
    watched = CliRunner().invoke(app, ["status", "--enclave", "fl:1", "--watch", "--json"])
    assert (watched.exit_code, "leave out --json" in watched.stderr) == (2, True)
