"""The whole benchmark at a tiny size: its plan, every stage, and how runs become figures."""

import io
import math
import sys

import numpy as np
import pytest

from ostraka.core import gram
from ostraka.crypto import identity
from ostraka.errors import ConfigError, LocalProtocolError, UpdateRejected
from ostraka.protocol.worker import Computing
from ostraka_lab.bench import enclave_memory, kernels, process
from ostraka_lab.bench import kernels as plans
from ostraka_lab.bench.kernels import STAGES, Plan
from ostraka_lab.bench.machine import Stopwatch
from ostraka_lab.bench.parties import DEFAULT, Workload, update
from ostraka_lab.defence import Defence


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


def test_whole_rounds_are_sums_of_their_stages():
    costs = {"headers": 0.25, "arrival": 1.0, "exact_online": 8.0, "second_pass": 0.5}
    stages = {name: {"x_open": cost} for name, cost in costs.items()}
    assert kernels.whole_rounds(stages) == {
        "exact": {"measure_x_open": 9.0, "close_x_open": 8.5, "x_open": 9.75}
    }
    assert {part for parts in kernels.ROUNDS.values() for part in parts} < set(STAGES)


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
    assert {name: figures[name] for name in ("clients", "dimension", "threads", "tile")} == {
        "clients": 8,
        "dimension": 20_000,
        "threads": 1,
        "tile": 32_768,
    }
    assert 5 < figures["enclave_rss_mib"] < 512
    assert set(figures["stages"]) == set(STAGES)
    assert set(figures["rounds"]) == {"sketch", "sketch-inside", "exact"}
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
    monkeypatch.setattr(enclave_memory, "_enclave", print)
    with pytest.raises(LocalProtocolError, match="ended before its round"):
        enclave_memory.enclave_peak_bytes(8, 1000, masking="gaussian", directory=tmp_path)


def test_errors_leave_the_process_as_an_event(capsys, tmp_path):
    code = kernels.main(
        '{"clients": 1, "dimension": 5, "threads": 1, "repeat": 1, "only": []}', str(tmp_path)
    )
    assert code == 1
    assert '"config": true' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"clients": 1}, "n=1"),
        ({"dimension": 7}, "8 clients and 7 dimensions"),
        ({"threads": 0}, "threads must be at least 1; got 0"),
        ({"repeat": 0}, "repeat must be at least 1; got 0"),
        ({"only": ("floor", "ceiling")}, "no stage ceiling; known: open, "),
        (
            {"only": ("exact_sketch",)},
            "exact_sketch need a sketch.*8 clients of 1000 values",
        ),
    ],
)
def test_impossible_plans_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        Plan(**{"clients": 8, "dimension": 1000} | sizes)


def test_all_stages_run_unless_some_are_named():
    assert Plan(8, 16_384).stages == tuple(STAGES)


def test_short_updates_have_no_sketch():
    without = set(STAGES) - set(Plan(8, 16_383).stages)
    assert without == {"arrival_sketch", "exact_sketch", "sketch_inside", "second_pass"}


def test_the_reference_runs_whatever_is_named():
    assert Plan(8, 1000, only=("floor",)).stages == ("open", "floor")


def test_sizes_beyond_the_memory_are_refused(monkeypatch):
    plan = Plan(64, 3_500_000)
    monkeypatch.setattr(plans, "available_bytes", lambda: plan.memory_bytes)
    plan.require_room()
    monkeypatch.setattr(plans, "available_bytes", lambda: plan.memory_bytes - 1)
    with pytest.raises(ConfigError, match=r"64 clients of 3500000 values need about \d.*memory"):
        plan.require_room()


def test_fewer_stages_need_less_memory_and_no_spool():
    few = Plan(64, 3_500_000, only=("floor",))
    assert few.memory_bytes < Plan(64, 3_500_000).memory_bytes
    assert few.disk_bytes == 0


CLIENTS, DIMENSION = 6, 70_000


@pytest.fixture(scope="module")
def load():
    """Updates about a few directions: errors of their distances change nothing."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(CLIENTS, 4)) @ rng.normal(size=(4, DIMENSION))
    rows = (rows + 0.3 * rng.normal(size=rows.shape)).astype(np.float32)
    return Workload(CLIENTS, DIMENSION, row_of=lambda row: rows[row])


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_takes_time(load, name):
    clock = Stopwatch()
    STAGES[name].run(load, clock)
    assert clock.seconds > 0


def test_tiles_open_to_the_updates(load):
    assert load.tiling.count > 1
    block = np.empty((CLIENTS, load.terms.tile), np.float32)
    for index in range(load.tiling.count):
        opened = load.open_tile(index, block)
        np.testing.assert_array_equal(opened, load.updates[:, load.tiling.part(index)])


@pytest.mark.parametrize("sketch", [None, 16_384])
def test_rows_that_were_received_are_the_updates(load, sketch):
    rows = load.receive(Stopwatch(), sketch=sketch)
    pieces = load.parties.federation.pieces
    space = np.empty(pieces.tile, np.float32)
    for row, values in zip(rows, load.updates, strict=True):
        assert row.values.resident
        read = [row.values.read(index, space) for index in range(pieces.count)]
        np.testing.assert_array_equal(np.concatenate(read), values)
        if sketch:
            # A sketch keeps norms, up to its own error.
            assert np.linalg.norm(row.sketch) == pytest.approx(row.norm, rel=0.1)
        else:
            assert row.sketch is None
    kernels.arrival(load, Stopwatch())
    assert all(row.sketch is not None for row in load.rows)


def test_the_memory_of_rows_is_there_before_the_clock_runs(load):
    assert load.rows
    space = load._memory._space
    load.receive(Stopwatch(), sketch=None)
    assert load._memory._space is space
    assert len(space) == CLIENTS * DIMENSION * 4


def test_every_run_verifies_all_headers(load):
    for _ in range(2):
        kernels.headers(load, Stopwatch())
        assert identity._remembered.cache_info().misses == CLIENTS


def test_headers_are_taken_as_often_as_they_are_measured(load):
    for _ in range(2):
        intake = load.intake()
        for header in load.headers:
            intake.accept(header)
        with pytest.raises(UpdateRejected):
            intake.accept(load.headers[0])


@pytest.mark.parametrize(
    ("stage", "add", "tolerance"),
    [
        (kernels.inside_naive, "add_naive", 1e-4),
        (kernels.inside_blas32, "add_gram32", 1e-3),
        (kernels.inside_blas64, "add_gram", 1e-9),
    ],
)
def test_the_distances_inside_are_those_of_the_updates(load, monkeypatch, stage, add, tolerance):
    totals = []
    kernel = getattr(gram, add)

    def watched(total, block):
        totals.append(total)
        kernel(total, block)

    monkeypatch.setattr(gram, add, watched)
    stage(load, Stopwatch())
    assert len(totals) == load.tiling.count
    measured = totals[-1] if stage is kernels.inside_naive else gram.from_gram(totals[-1])
    expected = gram.naive(load.updates.astype(np.float64))
    np.testing.assert_allclose(measured, expected, rtol=tolerance)


@pytest.mark.parametrize("masking", ["exact", "gaussian"])
def test_the_first_pass_is_a_real_one_and_can_be_repeated(load, masking):
    expected = Defence(DEFAULT, load.terms.f)(load.updates)
    for _ in range(2):
        attempt = load.attempt(masking)
        host = attempt.host(Stopwatch())
        published = host.finish(attempt.cohort, host.measure(attempt.cohort))
        assert published.receipt.rule == str(DEFAULT)
        assert published.selected == tuple(f"client-{row}" for row in expected.selected)
        np.testing.assert_allclose(published.aggregate, expected.mean, atol=1e-4)


@pytest.mark.parametrize("stage", [kernels.gaussian_online, kernels.exact_online])
def test_workers_are_not_on_the_clock(load, monkeypatch, stage):
    clock = Stopwatch()
    running = []
    monkeypatch.setattr(Stopwatch, "__enter__", lambda self: running.append(True))
    monkeypatch.setattr(Stopwatch, "__exit__", lambda self, *_: running.pop())
    add = Computing.add
    added = []

    def watched(self, share):
        added.append(bool(running))
        add(self, share)

    monkeypatch.setattr(Computing, "add", watched)
    stage(load, clock)
    assert added == [False] * (2 * load.tiling.count)


def test_gram_schmidt_is_extrapolated_where_it_would_take_too_long(load, monkeypatch):
    monkeypatch.setattr(kernels, "_MGS_WORK", 5_000 * CLIENTS**2)
    clock = Stopwatch()
    kernels.noise_mgs(load, clock)
    assert "5000 of 70000" in str(clock.note)


def test_updates_differ_between_clients():
    assert not np.array_equal(update(0, 100), update(1, 100))
