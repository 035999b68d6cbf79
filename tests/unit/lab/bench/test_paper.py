"""How the paper's measurements become figures."""

from dataclasses import asdict

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench import paper, results
from ostraka_lab.bench.paper import Suite
from ostraka_lab.bench.paper_measurements import NETWORKS
from ostraka_lab.bench.results import Parts

SECONDS = {
    "open": 1.0,
    "naive": 9.0,
    "blas32": 2.0,
    "blas64": 3.0,
    "worker-gaussian-cpu": 2.0,
    "worker-exact-cpu": 4.0,
}
HEADLINE = {
    "clients": 8,
    "dimension": 100,
    "inside": {"naive": {"enclave_cpu_s": 12.0, "spread": 0.0}},
    "rows": [{"name": "exact", "enclave_cpu_s": 2.0, "slowest_worker_s": 1.0}],
}
EPOCH = {
    "parts": {"open": 0.5, "decode": 0.25},
    "uploaded_bytes": 1_000_000,
    "shared_bytes": 500_000,
    "sketch": None,
    "spread": 0.1,
}


@pytest.fixture
def calls(monkeypatch):
    seen = []

    def run_module(module, arguments, begin):
        assert module == "ostraka_lab.bench.paper_measurements"
        name, *values = arguments
        begin(name, 0, 1)
        seen.append((name, values))
        if name == "distances":
            clients, dimension, _ = map(int, values)
            spread = dict.fromkeys(SECONDS, 0.0)
            size = {"clients": clients, "dimension": dimension, "columns": dimension}
            return size | {"seconds": SECONDS, "spread": spread}
        return {
            "networks": dict.fromkeys(NETWORKS, 5_000_000),
            "headline": HEADLINE,
            "epoch": EPOCH,
            "training": {"step_s": 0.5, "batches": 25, "steps_timed": 4},
        }[name]

    monkeypatch.setattr(results, "run_module", run_module)
    return seen


@pytest.fixture
def run(tmp_path):
    """Of a suite, with the parts in a file."""

    def of(asked, begin=lambda *_: None):
        return paper.run(asked, begin, Parts(tmp_path / "parts", asdict(asked), lambda text: None))

    return of


def test_all_figures_are_measured_and_counted(calls, run):
    steps = []
    figures = run(Suite(clients=(8, 16)), lambda *step: steps.append(step))
    assert [done for _, done, _ in steps] == list(range(len(calls)))
    assert steps[0][2] == len(calls)
    assert len(figures["figure2a"]) == 4 * 2
    assert len(figures["figure2b"]) == 4 * 2 * 2
    assert len(figures["figure3"]) == 4 * 3
    assert len(figures["headline"]) == 2
    assert [name for name, _ in calls].count("training") == 4
    assert figures["slowdown"] is None
    assert any("SGX" in each for each in figures["not_measured"])


def test_a_kernel_is_compared_without_opening(calls, run):
    row = run(Suite(clients=(8,)))["figure2b"][0]
    assert (row["masking"], row["device"], row["kernel_s"]) == ("gaussian", "cpu", 2.0)
    assert (row["over_naive"], row["over_blas64"], row["over_blas32"]) == (4, 1, 0.5)


def test_an_epoch_is_training_and_a_link_and_the_round(calls, run):
    bar = run(Suite(bandwidth=2.0, epoch_clients=10))["figure3"][0]
    carried = 1_500_000 + 4 * 5_000_000 * 10
    assert bar["bytes"] == carried
    assert bar["seconds"] == {
        "training": 12.5,
        "communication": pytest.approx(carried * 8 / 2e9),
        "open": 0.5,
        "decode": 0.25,
    }


def test_a_slow_down_is_a_table_of_its_own(calls, run):
    plain = run(Suite())
    slowed = run(Suite(slowdown=3.0))
    assert slowed["headline"] == plain["headline"]
    assert slowed["slowdown"]["factor"] == 3
    assert slowed["slowdown"]["assumed"] is True
    row = slowed["slowdown"]["rows"][0]
    assert row["round_over_naive"] == pytest.approx(3 * 12 / (3 * 2 + 1))


def test_quick_is_small(calls, run):
    run(Suite.quick(bandwidth=1.0, slowdown=None))
    dimensions = {values[1] for name, values in calls if name == "distances"}
    assert dimensions == {"60000"}


@pytest.mark.parametrize("stop", [1, 7, 20])
def test_a_suite_that_was_stopped_goes_on(calls, run, monkeypatch, tmp_path, stop):
    """In a quick one several parts have the same arguments, and each is measured all the same."""
    quick = Suite.quick(bandwidth=1.0, slowdown=None)
    whole = run(quick)
    every = list(calls)
    (tmp_path / "parts").unlink()
    calls.clear()

    def interrupted(what, done, of):
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(quick, interrupted)
    assert calls == every[:stop]
    steps = []
    again = run(quick, lambda *step: steps.append(step))
    assert calls == every
    assert [(done, of) for _, done, of in steps] == [
        (done, len(every)) for done in range(stop, len(every))
    ]
    assert again | {"machine": None} == whole | {"machine": None}


@pytest.mark.parametrize("options", [{"bandwidth": 0.0}, {"slowdown": 0.5}, {"repeat": 0}])
def test_impossible_suites_are_refused(options):
    with pytest.raises(ConfigError):
        Suite(**options)
