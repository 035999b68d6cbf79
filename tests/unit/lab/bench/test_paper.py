"""How the paper's measurements become figures."""

from dataclasses import asdict, replace

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


def headline(clients, dimension):
    """Rounds whose cost has a term per client, per value and per pair, as the fit has it."""

    def cost(client, value, pair):
        return clients * (client + dimension * (value + clients * pair))

    inside = {"naive": cost(1e-3, 1e-9, 8e-9), "blas64": cost(1e-3, 1e-9, 1e-9)}
    schemes = {
        "gaussian": cost(1e-3, 9.2e-9, 3e-9),
        "exact": cost(1e-3, 33.5e-9, 0),
        "sketch-inside": cost(1e-3, 2.2e-9, 1e-11),
        "sketch": cost(2e-3, 2.2e-9, 0),
    }
    return {
        "clients": clients,
        "dimension": dimension,
        "inside": {name: {"enclave_cpu_s": seconds} for name, seconds in inside.items()}
        | {"blas32": {"enclave_cpu_s": cost(1e-3, 1e-9, 0)}},
        "rows": [
            {
                "name": name,
                "enclave_cpu_s": seconds,
                "slowest_worker_s": 1.0,
                "prepare_cpu_s": cost(0, 0, 3e-9) if name == "gaussian" else 0.0,
            }
            for name, seconds in schemes.items()
        ],
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
        if name == "headline":
            return headline(int(values[0]), int(values[1]))
        return {
            "networks": {name: 5_000_000 + place for place, name in enumerate(NETWORKS)},
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
    assert len(figures["offloading"]["rows"]) == 5
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


def test_the_link_is_the_paper_s_gigabyte_a_second_unless_another_is_given(calls, run):
    bar = run(Suite())["figure3"][0]
    assert bar["seconds"]["communication"] == pytest.approx(bar["bytes"] / 1e9)


def test_off_loading_pays_where_the_fitted_costs_cross(calls, run):
    pays = run(Suite(parts=("offloading",)))["offloading"]["pays"]
    assert pays == {
        "gaussian": {"naive": [2, None], "blas64": None, "blas32": None},
        "gaussian-offline": {"naive": [2, None], "blas64": [9, None], "blas32": None},
        "exact": {"naive": [5, None], "blas64": [33, None], "blas32": None},
        # 1.2 ns a value more than float32 takes, and a pair on top.
        "sketch-inside": {"naive": [1, None], "blas64": [2, None], "blas32": None},
        # A client costs 1 ms more, and a pair 10 ps a value less.
        "sketch": {
            "naive": [1, None],
            "blas64": [6, None],
            "blas32": None,
            "sketch-inside": [382, None],
        },
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "pays", "words"),
    [
        ((1, 4), (2, 4), [1, None], "always"),
        ((1, 4), (1.5, 5), [1, None], "always"),
        ((9, 1), (2, 3), [4, None], "from 4"),
        ((2, 3), (9.5, 1), [1, 3], "up to 3"),
        ((2, 3), (2.5, 1), None, "never"),
        ((2, 3), (2, 3), None, "never"),
        ((3, 3), (2, 3), None, "never"),
    ],
)
def test_a_scheme_pays_from_or_up_to_a_number_of_clients(ours, theirs, pays, words):
    """Costs are (a value, a pair and value) in nanoseconds."""
    rows = [
        {
            "clients": n,
            "dimension": 1000,
            "seconds": {
                name: 1e-9 * n * 1000 * (value + n * pair)
                for name, (value, pair) in (("ours", ours), ("theirs", theirs))
            },
        }
        for n in (4, 16, 64)
    ]
    found = paper._pays(rows, "ours", "theirs")
    assert found == pays
    assert paper.clients_where(found) == words


def test_only_what_is_asked_for_is_measured(calls, run):
    figures = run(Suite(parts=("figure3",)))
    assert {name for name, _ in calls} == {"networks", "training", "epoch"}
    assert (figures["figure2a"], figures["headline"], figures["offloading"]) == ([], [], None)
    with pytest.raises(ConfigError, match="no part figure4"):
        Suite(parts=("figure4",))


def test_a_slow_down_is_a_table_of_its_own(calls, run):
    plain = run(Suite())
    slowed = run(Suite(slowdown=3.0))
    assert slowed["headline"] == plain["headline"]
    assert slowed["slowdown"]["factor"] == 3
    assert slowed["slowdown"]["assumed"] is True
    row = slowed["slowdown"]["rows"][0]
    (each, *_) = plain["headline"]
    inside, ours = each["inside"]["naive"]["enclave_cpu_s"], each["rows"][0]["enclave_cpu_s"]
    assert row["round_over_naive"] == pytest.approx(3 * inside / (3 * ours + 1))


def test_quick_is_small_and_its_networks_differ(calls, run):
    figures = run(Suite.quick())
    sizes = figures["measured_dimensions"]
    assert sizes == {name: size // 16 for name, size in figures["networks"].items()}
    measured = {int(values[1]) for name, values in calls if name == "distances"}
    assert measured == set(sizes.values())
    # Ratios mean something where updates are longer than a tile.
    assert min(measured) > 65_536


@pytest.mark.parametrize("stop", [1, 7, 20])
def test_a_suite_that_was_stopped_goes_on(calls, run, monkeypatch, tmp_path, stop):
    """Parts that have the same arguments are measured each."""
    quick = replace(Suite.quick(), offloading=((16, 65_536), (16, 65_536)))
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
