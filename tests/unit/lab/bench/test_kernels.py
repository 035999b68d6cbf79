"""The whole benchmark at a tiny size, and how runs become figures."""

import io
import math
import sys

import pytest

from ostraka.errors import ConfigError, LocalProtocolError
from ostraka_lab.bench import enclave_memory, kernels, process
from ostraka_lab.bench.clock import Stopwatch
from ostraka_lab.bench.kernels import STAGES, Plan


def ran(seconds, note=None):
    clock = Stopwatch()
    clock._elapsed = seconds
    clock.note = note
    return clock


def test_figures_are_medians_and_multiples_of_open():
    figures = kernels.summary(
        {
            "open": [ran(2.0), ran(9.0), ran(1.0)],
            "floor": [ran(5.0), ran(7.0), ran(6.0)],
            "noise_mgs": [ran(8.0, "a part")],
        }
    )
    assert figures == {
        "open": {"cpu_s": 2.0, "x_open": 1.0, "spread": 4.0},
        "floor": {"cpu_s": 6.0, "x_open": 3.0, "spread": pytest.approx(1 / 3)},
        "noise_mgs": {"cpu_s": 8.0, "x_open": 4.0, "spread": 0.0, "note": "a part"},
    }


def test_every_repeat_runs_every_stage_but_the_costly_ones():
    plan = Plan(8, 1000, repeat=3, only=("floor", "noise_mgs"))
    assert list(kernels._turns(plan)) == [
        *("open", "floor", "open", "noise_mgs", "open"),
        *("open", "floor", "open"),
        *("open", "floor", "open"),
    ]


def test_a_tiny_run_in_its_own_process_gives_every_figure():
    steps = []
    figures = kernels.run_kernels(Plan(8, 20_000, repeat=1), lambda *step: steps.append(step))
    assert {name: figures[name] for name in ("clients", "dim", "threads", "tile")} == {
        "clients": 8,
        "dim": 20_000,
        "threads": 1,
        "tile": 32_768,
    }
    assert 5 < figures["enclave_rss_mib"] < 512
    assert set(figures["stages"]) == set(STAGES)
    reference = figures["stages"]["open"]["cpu_s"]
    for stage in figures["stages"].values():
        assert 0 < stage["cpu_s"] < math.inf
        assert stage["x_open"] == stage["cpu_s"] / reference
    names, done, of = zip(*steps, strict=True)
    assert set(STAGES) < set(names)
    assert list(done) == list(range(of[0]))


def test_without_a_whole_round_there_is_no_memory_figure():
    plan = Plan(8, 1000, repeat=1, only=("floor",))
    figures = kernels.run_kernels(plan, lambda *_: None)
    assert figures["enclave_rss_mib"] is None
    assert set(figures["stages"]) == {"open", "floor"}


def test_the_process_has_the_threads_that_were_asked_for(monkeypatch):
    environments = []

    class Process:
        returncode = 0
        stdout = io.StringIO('{"figures": {}}\n')

        def __init__(self, command, **options):
            environments.append(options["env"])

        def wait(self):
            return 0

        def poll(self):
            return 0

    monkeypatch.setattr("subprocess.Popen", Process)
    kernels.run_kernels(Plan(8, 1000, threads=3, only=("floor",)), lambda *_: None)
    assert environments[0]["OPENBLAS_NUM_THREADS"] == "3"
    assert environments[0]["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ('{"error": "too large", "config": true}', ConfigError),
        ('{"error": "out of step", "config": false}', LocalProtocolError),
    ],
)
def test_an_error_in_the_process_is_raised_here(line, error):
    with pytest.raises(error, match=r"too large|out of step"):
        process._listen(io.StringIO(line + "\n"), lambda *_: None)


def test_a_process_that_dies_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LocalProtocolError, match="code 1"):
        kernels.run_kernels(Plan(8, 1000), lambda *_: None)


def test_an_enclave_process_that_dies_is_reported(monkeypatch, tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(LocalProtocolError, match="ended before its round"):
        enclave_memory.enclave_peak_bytes(8, 1000, masking="gaussian", directory=missing)


def test_errors_leave_the_process_as_an_event(capsys, tmp_path):
    code = kernels.main(
        '{"clients": 2, "dim": 5, "threads": 1, "repeat": 1, "only": []}', str(tmp_path)
    )
    assert code == 1
    assert '"config": true' in capsys.readouterr().out
