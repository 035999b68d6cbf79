"""A whole service is measured, and what is told of it follows from clocks and logs."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.errors import ConfigError, ServiceError
from ostraka_lab.bench import service, service_clients, service_rounds
from ostraka_lab.bench.machine import process_cpu_s
from ostraka_lab.bench.service_clients import gate, update
from ostraka_lab.bench.service_rounds import Clocks, Plan, Round, Served, _Watch
from ostraka_lab.children import Children
from ostraka_lab.deployment import Deployment

PLAN = Plan(clients=4, dimension=70_000, repeat=2)


def test_bytes_are_those_of_the_sealed_tiles():
    assert PLAN.tiles == 4 * 2
    assert PLAN.sealed_bytes == 4 * (70_000 * 4 + 2 * 16)


def test_bytes_are_divided_among_shards():
    plan = Plan(clients=4, dimension=70_000, shards=2)
    assert [span.length for span in plan.spans] == [32_768, 37_232]
    assert plan.tiles == 4 * 3


def test_attackers_send_the_opposite_of_what_all_share():
    updates = np.stack([update(number, 2000, 2) for number in range(1, 6)])
    assert (update(3, 2000, 2) == updates[2]).all()
    near = np.atleast_2d(np.corrcoef(updates))
    assert (near[:2, 2:] < -0.5).all()
    assert (near[2:, 2:] > 0.5).all()


@pytest.mark.parametrize("name", ["clients", "dimension", "threads", "repeat", "shards"])
def test_nothing_can_be_measured_of_nothing(name):
    sizes: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 1; got 0"):
        Plan(**sizes)


def test_sizes_beyond_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr(service_rounds, "available_bytes", lambda: 2**30)
    with pytest.raises(ConfigError, match=r"64 clients of 3500000 values need .* take fewer"):
        Plan()


def test_the_clock_of_another_process_runs_until_it_ends():
    before = time.process_time()
    assert before <= process_cpu_s(os.getpid(), otherwise=-1.0) <= time.process_time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert 0 <= process_cpu_s(child.pid, otherwise=-1.0) < 60
    assert process_cpu_s(child.pid, otherwise=-1.0) == -1.0


def test_clocks_are_read_between_the_moments_that_were_noted():
    clocks = Clocks(("enclave", "clients"))
    for moment, seconds in ((10.0, 1.0), (11.0, 3.0), (13.0, 3.0)):
        clocks.note(moment, {"enclave": seconds, "clients": 10 * seconds})
    assert clocks.between("enclave", 10.5, 11) == pytest.approx(1)
    assert clocks.between("clients", 10.5, 12.5) == pytest.approx(10)
    assert clocks.between("enclave", 11.5, 12) == 0


def logged(event, seconds, **fields):
    return {"event": event, "time": f"2026-01-01T00:00:{seconds:06.3f}+00:00"} | fields


def heard(folder, *events):
    """PLAN has four processes of clients."""
    watch = _Watch(Deployment(folder / "federation", "", Children(folder)), PLAN)
    for event in events:
        watch._hear(event)
    return watch


def test_all_send_when_all_have_joined(tmp_path):
    joined = [logged("Joined", 1, round=1)] * 3
    watch = heard(tmp_path, *joined, logged("Joined", 2, round=2))
    assert not gate(tmp_path / "federation", 1).exists()
    before = time.time()
    watch._hear(joined[0])
    assert before <= watch._at(1).sending <= time.time()
    assert gate(tmp_path / "federation", 1).exists()
    assert not gate(tmp_path / "federation", 2).exists()


def test_clients_share_a_few_processes():
    shares = Plan(clients=100, dimension=10).shares
    assert len(shares) == 8
    assert [number for share in shares for number in share] == list(range(1, 101))
    assert [len(share) for share in PLAN.shares] == [1, 1, 1, 1]


def test_a_round_is_cut_where_the_logs_say(tmp_path):
    watch = heard(
        tmp_path,
        logged("ServiceStarted", 0),
        logged("WorkerJoined", 0),
        logged("UploadCompleted", 2, client="client-1"),
        logged("UploadCompleted", 3, client="client-2"),
        logged("RoundClosed", 3.5, number=1, missing=[]),
        logged("RoundPublished", 5, number=1),
        logged("UploadCompleted", 6.5, client="client-1"),
        logged("RoundClosed", 6.5, number=2, missing=[]),
        logged("RoundPublished", 7, number=2),
    )
    assert watch._ready == 2
    start = watch._at(1).arrived - 3
    watch._at(1).sending, watch._at(2).sending = start + 1, start + 6
    clocks = Clocks(("enclave", "clients"))
    for second in range(8):
        clocks.note(start + second, {"enclave": float(second), "clients": 2.0 * second})
    assert watch._round(1, clocks) == Round(
        receive_cpu_s=2,
        client_cpu_s=4,
        receive_wall_s=2,
        close_cpu_s=2,
        close_wall_s=2,
        join_cpu_s=0,
        cpu_s={"enclave": 4, "clients": 8},
        parts={"enclave": [0, 2, 2], "clients": [0, 4, 4]},
    )
    second = watch._round(2, clocks)
    assert (second.receive_wall_s, second.close_wall_s) == (0.5, 0.5)
    assert second.join_cpu_s == 1
    assert second.cpu_s == {"enclave": 2, "clients": 4}
    assert second.parts["clients"] == [2, 1, 1]


@pytest.mark.parametrize(
    "event",
    [
        logged("RoundClosed", 1, number=1, missing=["client-3"]),
        logged("NullStep", 1, number=1, why="too few"),
        logged("TooFewWorkers", 1),
        logged("ClientRejected", 1, client="client-2", reason="late"),
        logged("ShardLeft", 1, shard=0),
    ],
    ids=lambda event: event["event"],
)
def test_a_round_that_is_not_a_whole_one_is_no_measurement(event, tmp_path):
    with pytest.raises(ServiceError, match="benchmark"):
        heard(tmp_path, event)


def test_figures_are_medians_by_the_gigabyte_and_by_what_is_least():
    gb = PLAN.sealed_bytes / 1e9
    rounds = [
        Round(3 * s, 2 * s, 10 * s, 6 * s, 4 * s, 5 * s, {"enclave": 9 * s, "clients": 3 * s})
        for s in (1.0, 2.0, 4.0)
    ]
    once = {"open_cpu_s": [2.0], "open_wall_s": [1.0], "loop_cpu_s": [3.0], "loop_wall_s": [4.0]}
    twice = {name: [2 * each for each in seconds] for name, seconds in once.items()}
    figures = service._figures(PLAN, rounds, [once, twice, once])
    assert figures["gb_per_s"] == gb / 20
    assert figures["enclave_cpu_s_per_gb"] == 6 / gb
    assert figures["bare_loop_cpu_s_per_gb"] == 3 / gb
    assert figures["enclave_x_bare_loop"] == 2
    assert figures["client_cpu_s_per_gb"] == 4 / gb
    assert figures["download_cpu_s_per_gb"] == 10 / (4 * 4 * 70_000 / 1e9)
    assert figures["close_cpu_x_open"] == 6
    assert figures["close_wall_x_open"] == 8
    assert figures["round_cpu_s"] == {"enclave": 18, "clients": 6}
    assert figures["spread"]["receive_cpu_s"] == 1.5
    assert figures["spread"]["open_cpu_s"] == 1


def test_clients_that_fail_end_their_process(tmp_path, capsys):
    """There are no keys in this folder."""
    assert service_clients.main(str(tmp_path), "127.0.0.1:1", "1", "3", "50", "2", "1") == 1
    assert '"event": "ClientFailed"' in capsys.readouterr().err


def test_a_round_in_one_process_is_one_under_the_same_terms(monkeypatch):
    seen = []

    def play(parties, rows):
        seen.append((parties.federation.federation.terms, rows.shape))

    monkeypatch.setattr(service, "play", play)
    monkeypatch.setattr(service, "_training", lambda clients: 2.5)
    plan = Plan(clients=6, dimension=40_000, repeat=2, workers=2, sketched=False)
    figures = service.simulate(plan, lambda *_: None)
    assert figures["training_cpu_s"] == 2.5
    assert len(seen) == 3
    terms, shape = seen[0]
    assert shape == (6, 40_000)
    assert (terms.workers, terms.sketch, terms.f) == (2, None, 1)


def test_training_takes_time():
    pytest.importorskip("torch")
    seconds = service._training(2000)
    assert seconds is not None
    assert seconds > 0


def test_the_small_comparison_is_with_training_and_without(monkeypatch):
    rounds = [Round(0, 0, 0, 0, 0, 0, {"enclave": s, "clients": 1.0}) for s in (9.0, 2.0, 2.0, 3.0)]
    served = Served(rounds, {}, np.zeros(1, np.float32), [])
    monkeypatch.setattr(service, "serve", lambda plan, root, certificate: served)
    figures: dict[str, float | None] = {"cpu_s": 1.0, "training_cpu_s": 4.0}
    monkeypatch.setattr(service, "run_module", lambda *_: figures)
    steps = []
    step = service._Steps(lambda *each: steps.append(each), 2)
    found = service._compare_small(step)
    assert found["services_cpu_s"] == 3
    assert found["x_protocol"] == 3
    assert found["x_simulated"] == (3 + 4) / (1 + 4)
    assert [each[1:] for each in steps] == [(0, 2), (1, 2)]
    figures["training_cpu_s"] = None
    assert service._compare_small(service._Steps(print, 2))["x_simulated"] is None


def test_what_it_is_measured_with(monkeypatch):
    def figures(plan, step, *, tls):
        step("all of it")
        return {"with": (plan.threads, tls)}

    monkeypatch.setattr(service, "_measure_way", figures)
    plan = Plan(clients=4, dimension=5000, threads=1, small=False)
    found = service.measure(plan, lambda *_: None)
    assert (found["with"], found["two_threads"], found["tls"]) == ((1, False), None, None)
    found = service.measure(replace(plan, two_threads=True, tls=True), lambda *_: None)
    assert found["two_threads"]["with"] == (2, False)
    assert found["tls"]["with"] == (1, True)


NAMED = (
    *("enclave_cpu_s_per_gb", "bare_loop_cpu_s_per_gb", "client_cpu_s_per_gb"),
    *("close_cpu_x_open", "close_wall_x_open", "gb_per_s", "download_cpu_s_per_gb"),
)


def test_a_small_service_is_measured_with_tls_and_without():
    line = "bench service --quick --clients 4 --dimension 20000 --threads 1 --tls --json"
    result = CliRunner().invoke(app, line.split(), prog_name="ostraka")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["clients"], figures["dimension"], figures["sketch"]) == (4, 20_000, 16_384)
    assert isinstance(figures["native"], bool)
    assert isinstance(figures["vaes"], bool)
    assert figures["small"] is None
    assert figures["two_threads"] is None
    for way in (figures, figures["tls"]):
        assert all(way[name] > 0 and np.isfinite(way[name]) for name in NAMED)
        assert set(way["round_cpu_s"]) == {"enclave", "clients", "workers"}


FIGURES = {
    "clients": 64,
    "dimension": 3_500_000,
    "bytes": 896_000_000,
    "threads": 2,
    **dict.fromkeys(NAMED, 1.25),
    **dict.fromkeys(("enclave_x_bare_loop", "open_cpu_s_per_gb"), 1.5),
    **dict.fromkeys(("close_cpu_s", "close_wall_s"), 0.5),
    "two_threads": None,
    "tls": None,
    "native": True,
    "vaes": False,
    "small": {
        "clients": 100,
        "dimension": 50_890,
        "services_cpu_s": 1.75,
        "simulated_cpu_s": 0.5,
        "training_cpu_s": 0.75,
        "x_protocol": 3.5,
        "x_simulated": 2.0,
    },
}


@pytest.mark.parametrize(
    ("line", "expected"),
    {
        "the usual": ("", service.USUAL),
        "quick": ("--quick", service.QUICK),
        "quick, and larger": (
            "--quick --dimension 5000 --small",
            Plan(clients=8, dimension=5000, threads=1, repeat=1, small=True),
        ),
        "all of it": (
            "--clients 5 --dimension 600 --threads 1 --repeat 2 --tls --no-small",
            Plan(clients=5, dimension=600, threads=1, repeat=2, tls=True, small=False),
        ),
    }.values(),
)
def test_the_command_measures_what_it_was_asked_for(line, expected, monkeypatch):
    asked = []

    def measured(plan, step):
        asked.append(plan)
        return FIGURES

    monkeypatch.setattr(service, "measure", measured)
    result = CliRunner().invoke(app, ["bench", "service", *line.split()], prog_name="ostraka")
    assert result.exit_code == 0, result.output
    assert asked == [expected]
    shown = " ".join(result.stdout.split())
    assert "enclave / bare loop 1.50" in shown
    assert ("these figures and ratios say nothing of full size" in shown) == ("--quick" in line)
    assert "the ratio is 2.00; without, 3.50" in shown
    assert "Loops: native. The processor has no wide AES" in shown
