"""Sizes within memory and time, and what is told from them."""

import shutil
import time
from dataclasses import asdict

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench import fit, results, scale
from ostraka_lab.bench.fit import Size
from ostraka_lab.bench.parties import EXACT, SKETCH, sketch_size
from ostraka_lab.bench.results import Parts
from ostraka_lab.bench.scale import UNCHECKED, Budget, Grid

GRID = Grid(clients=(8, 32, 256, 1024), dimensions=(100_000, 1_000_000), repeat=2)


def fake_cell(clients, dimension, repeat):
    """A machine that takes 2 ns a value in the enclave and 1 ns a pair and value in workers."""

    def run(turn):
        return {
            "enclave_cpu_s": (2e-9 * clients * dimension + 1e-3) * (1 + 0.01 * turn),
            "worker_cpu_s": 1e-9 * clients**2 * dimension,
            "uploaded_bytes": 4 * clients * dimension,
            "shared_bytes": 8 * clients * dimension,
        }

    names = (EXACT, UNCHECKED, SKETCH)
    return {
        "clients": clients,
        "dimension": dimension,
        "columns": {name: 16_384 if name == SKETCH else dimension for name in names},
        "enclave_bytes": 10**7 + 8 * dimension,
        "runs": {name: [run(turn) for turn in range(repeat)] for name in names},
    }


@pytest.fixture
def calls(monkeypatch):
    seen = []

    def run_module(module, arguments, begin):
        begin("a round", 0, 1)
        seen.append(tuple(map(int, arguments)))
        return fake_cell(*seen[-1])

    monkeypatch.setattr(results, "run_module", run_module)
    monkeypatch.setattr(scale, "available_bytes", lambda: 64 * 2**30)
    monkeypatch.setattr(fit, "_DRAWS", 20)
    return seen


@pytest.fixture
def surveyed(calls, tmp_path):
    def run(budget=1e9, begin=lambda *_: None):
        kept = Parts(tmp_path / "parts", asdict(GRID), lambda text: None)
        return scale.run(GRID, budget, begin, kept)

    return run


@pytest.fixture
def stopped(surveyed):
    """A survey that is stopped after a number of sizes."""

    def run(after):
        def begin(what, done, of):
            if done == after:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            surveyed(begin=begin)

    return run


def fit_of(figures, variant, cost):
    (found,) = (f for f in figures["fits"] if (f["variant"], f["cost"]) == (variant, cost))
    return found


def test_growth_is_told_and_extended(surveyed):
    figures = surveyed()
    enclave = fit_of(figures, "exact", "enclave_cpu_s")
    for which in ("exponents", "exponents_few", "exponents_many"):
        assert enclave[which]["N"]["value"] == pytest.approx(1, abs=0.15)
    told = enclave["forecast"]
    assert told["value"] == pytest.approx(2e-9 * 1e4 * 1e9, rel=0.02)
    assert told["low"] <= told["value"] <= told["high"]
    assert told["misfit"] < 0.01
    worker = fit_of(figures, "exact", "worker_cpu_s")["forecast"]
    assert worker["value"] == pytest.approx(1e-9 * 1e8 * 1e9, rel=0.01)
    memory = fit_of(figures, "exact", "enclave_bytes")["forecast"]
    assert memory["value"] == pytest.approx(8e9, rel=0.01)


def test_what_takes_too_long_must_be_split(surveyed):
    pieces = {each["what"]: each["pieces"] for each in surveyed()["splits"]}
    assert pieces["dimensions, by time (exact worker)"] == pytest.approx(1e8 / 3600, rel=0.02)
    assert pieces["clients, by the sketch"] == 10
    assert pieces["pieces of tiles"] == 3


def test_a_sketch_is_forecast_for_as_many_clients_as_were_measured_on_one():
    assert scale._target(EXACT).clients == 10_000
    size = scale._target(SKETCH)
    assert sketch_size(size.clients, 10**6) == size.columns
    assert sketch_size(size.clients + 1, 10**6) is None


def test_a_budget_that_is_spent_leaves_the_large_sizes_out(surveyed, monkeypatch):
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    figures = surveyed(30.0)
    assert [8, 100_000] not in figures["skipped"]
    assert [1024, 1_000_000] in figures["skipped"]
    assert len(figures["cells"]) + len(figures["skipped"]) == 8


def test_a_survey_that_was_stopped_goes_on(surveyed, stopped, calls, tmp_path):
    whole = surveyed()
    every = list(calls)
    (tmp_path / "parts").unlink()
    calls.clear()
    stopped(3)
    steps = []
    again = surveyed(begin=lambda *step: steps.append(step))
    assert calls == every
    assert [(done, of) for _, done, of in steps] == [(done, 8) for done in range(3, 8)]
    assert again | {"machine": None} == whole | {"machine": None}


def test_what_was_measured_before_costs_nothing_and_tells_how_long_sizes_take(
    surveyed, stopped, calls, monkeypatch
):
    def takes(seconds):
        clock = iter(range(0, 10_000 * seconds, seconds))
        monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))

    takes(100)
    stopped(4)
    calls.clear()
    assert len(surveyed(50.0)["cells"]) == 4
    assert calls == []
    takes(1)
    assert len(surveyed(300.0)["cells"]) == 8
    assert len(calls) == 4


def test_a_size_that_was_measured_counts_though_there_is_no_memory_for_it_now(
    surveyed, stopped, calls, monkeypatch
):
    stopped(7)
    monkeypatch.setattr(scale, "available_bytes", lambda: 10)
    figures = surveyed()
    assert len(figures["cells"]) == len(calls) == 7
    assert figures["skipped"] == [[1024, 1_000_000]]


def test_sizes_beyond_the_memory_are_left_out(monkeypatch):
    monkeypatch.setattr(scale, "available_bytes", lambda: 17 * 32 * 1_000_000)
    sizes = list(GRID.sizes())
    assert (32, 1_000_000) in sizes
    assert (1024, 100_000) not in sizes
    assert sizes == sorted(sizes, key=lambda size: size[0] * size[1])


def test_what_a_size_takes_is_told_from_the_others():
    budget = Budget(1000.0)
    assert budget.allows(10**6, 10**6)
    for clients in (1, 2, 4, 8):  # pairs count: 1, 4, 16 and 64 seconds
        budget.spend(clients, 1000, float(clients**2))
    left = 1000 - 85
    assert budget.allows(30, 1000)
    assert left < 31**2
    assert not budget.allows(31, 1000)


def test_a_long_size_is_not_repeated(monkeypatch):
    clock = iter(range(0, 10_000, 61))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(scale, "_memory", lambda *_: 1)
    figures = scale.measure(8, 500, 3, lambda *_: None)
    assert [len(runs) for runs in figures["runs"].values()] == [1, 1]


def test_a_full_disk_leaves_sizes_out(monkeypatch):
    class Full:
        free = 10 * 32 * 100_000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Full)
    assert (1024, 100_000) not in list(GRID.sizes())


def test_noise_widens_the_band():
    sizes = [Size(n, d, d) for n in (8, 64, 512) for d in (10**4, 10**6)]
    quiet = [(size, [1e-9 * size.clients * size.dimension] * 3) for size in sizes]
    loud = [(size, [f * cost for f in (0.7, 1.0, 1.3)]) for size, (cost, *_) in quiet]
    far = Size(10_000, 10**9, 10**9)
    still, moving = (fit.extrapolate(each, ("1", "N d"), far) for each in (quiet, loud))
    assert still["low"] == pytest.approx(still["high"])
    assert moving["low"] < 0.95 * moving["value"] < 1.05 * moving["value"] < moving["high"]


def test_a_cell_measures_rounds_and_memory():
    figures = scale.measure(8, 20_000, 1, lambda *_: None)
    assert set(figures["runs"]) == {"exact", "exact-unchecked", "sketch"}
    assert figures["columns"] == {"exact": 20_000, "exact-unchecked": 20_000, "sketch": 16_384}
    assert 5 * 2**20 < figures["enclave_bytes"] < 2**29
    for runs in figures["runs"].values():
        assert runs[0]["enclave_cpu_s"] > 0
        assert runs[0]["uploaded_bytes"] == 8 * (4 * 20_000 + 16)


def test_a_cell_of_short_updates_has_no_sketch():
    assert set(scale.variants(8, 1000)) == {"exact", "exact-unchecked"}
    assert not scale.variants(8, 1000)["exact-unchecked"].verify


@pytest.mark.parametrize("options", [{"clients": (8,)}, {"dimensions": (100,)}, {"repeat": 0}])
def test_impossible_grids_are_refused(options):
    with pytest.raises(ConfigError):
        Grid(**options)


def test_no_budget_is_refused():
    with pytest.raises(ConfigError, match="must be above 0 seconds"):
        Budget(0)
