"""What a lead and its shards are measured at, and what is told from it."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.errors import ConfigError
from ostraka_lab.bench import fit, results, shards
from ostraka_lab.bench.parties import EXACT, SKETCH
from ostraka_lab.bench.report import describe
from ostraka_lab.bench.results import Parts
from ostraka_lab.bench.service_rounds import Round, Served
from ostraka_lab.bench.shards import Grid
from ostraka_lab.report import render

GRID = Grid(clients=(16, 64, 256), dimensions=(200_000, 3_500_000), repeat=2)
MIB = 2**20


def fake_cell(clients, dimension, repeat, scheme, *counts):
    """A machine on which shards take 3 ns a value and 1 ms a client, and the lead 2 ms a client
    and 5 us for each client and shard. The second shard takes a fifth more than the first."""
    clients, dimension, repeat = int(clients), int(dimension), int(repeat)

    def ran(count):
        shard = 3e-9 * clients * dimension / count + 1e-3 * clients
        lead = 2e-3 * clients + 5e-6 * clients * count
        busy = [shard * (0.9 if at == 0 else 1.1) for at in range(2)]
        one = 3e-9 * clients * dimension + 2e-3 * clients
        rounds = [
            {
                "lead_cpu_s": (one if count == 1 else lead) * (1 + 0.01 * turn),
                "lead_parts_s": [0, 0, 0],
                "shard_cpu_s": [] if count == 1 else [each * (1 + 0.01 * turn) for each in busy],
                "shard_parts_s": [],
                "client_cpu_s": 1.0,
                "worker_cpu_s": 1.0,
            }
            for turn in range(repeat)
        ]
        return {
            "rounds": rounds,
            "lead_bytes": 100 * MIB if count > 1 else 100 * MIB + 4 * clients * dimension,
            "shard_bytes": [100 * MIB + 4 * clients * dimension // count] * (count > 1) * 2,
            "received_bytes": [4 * clients * dimension // count] * count,
        }

    return {
        "clients": clients,
        "dimension": dimension,
        "columns": 16_384 if scheme == SKETCH else dimension,
        "runs": {count: ran(int(count)) for count in counts},
        "selected": clients - 1,
        "same_selection": True,
        "model_difference": 3e-7,
    }


@pytest.fixture
def calls(monkeypatch):
    seen = []

    def run_module(module, arguments, begin):
        begin("a round", 0, 1)
        seen.append(tuple(map(int, arguments[:2])))
        return fake_cell(*arguments)

    monkeypatch.setattr(results, "run_module", run_module)
    monkeypatch.setattr(shards, "available_bytes", lambda: 64 * 2**30)
    monkeypatch.setattr(fit, "_DRAWS", 5)
    return seen


@pytest.fixture
def surveyed(calls, tmp_path):
    def run(grid=GRID, begin=lambda *_: None):
        kept = Parts(tmp_path / "parts", asdict(grid), lambda text: None)
        return shards.run(grid, 1e9, begin, kept)

    return run


def test_a_share_is_that_of_one_enclave_on_the_same(surveyed):
    (share,) = (
        each
        for each in surveyed()["shares"]
        if (each["clients"], each["dimension"], each["shards"]) == (64, 3_500_000, 4)
    )
    alone = 3e-9 * 64 * 3.5e6 + 2e-3 * 64
    shard = 3e-9 * 64 * 3.5e6 / 4 + 1e-3 * 64
    assert share["enclave_cpu_s"] == pytest.approx(alone * 1.005)
    assert share["x_share"] == pytest.approx([4 * 0.9 * shard / alone, 4 * 1.1 * shard / alone])
    assert share["equal"]


def test_the_lead_is_compared_at_two_lengths(surveyed):
    leads = {(each["clients"], each["shards"]): each for each in surveyed()["leads"]}
    assert set(leads) == {(n, count) for n in (16, 64) for count in (2, 4)}
    assert leads[64, 2]["dimensions"] == [200_000, 3_500_000]
    assert leads[64, 2]["cpu_s"][0] == leads[64, 2]["cpu_s"][1]
    assert leads[64, 2]["bytes"] == [100 * MIB, 100 * MIB]


def test_costs_are_extended_by_the_number_of_shards(surveyed):
    figures = surveyed()
    for told in figures["fits"]["shard_cpu_s"]:
        shard = 3e-9 * 1e4 * 1e8 / told["shards"] + 1e-3 * 1e4
        assert told["value"] == pytest.approx(shard, rel=0.02)
        assert told["low"] <= told["value"] <= told["high"]
        assert told["misfit"] < 0.01
    (alone,) = figures["fits"]["enclave_cpu_s"]
    assert alone["value"] == pytest.approx(3e-9 * 1e4 * 1e8 + 20, rel=0.02)
    for told in figures["fits"]["lead_cpu_s"]:
        assert told["value"] == pytest.approx(20 + 0.05 * told["shards"], rel=0.05)
    for told in figures["fits"]["shard_bytes"]:
        assert told["value"] == pytest.approx(4e12 / told["shards"], rel=0.02)
    assert [told["shards"] for told in figures["fits"]["lead_bytes"]] == [4, 16, 64]


def test_what_follows_from_formats_and_the_assumed_rate(surveyed):
    told = {each["shards"]: each for each in surveyed()["forecasts"]}
    for count, each in told.items():
        assert each["row_bytes"] == 4e12 / count
        assert each["received_bytes"] == pytest.approx(4e12 / count, rel=1e-3)
        assert each["receive_s"]["100"] == pytest.approx(320 / count, rel=1e-3)
        assert each["lead_received_bytes"] == count * 10_000 * 16_384 * 4
        assert each["worker_gpu_s"] == pytest.approx(20 * 1e8 * 16_384 / 1e15)
        assert each["shard_budget_bytes"] > each["lead_budget_bytes"] > 2 * 1e4 * 16_384 * 4
    assert told[4]["shard_budget_bytes"] > told[64]["shard_budget_bytes"]


def test_exact_masks_have_matrices_of_pairs_in_place_of_sketches(calls):
    cells = [fake_cell(n, d, 2, EXACT, "1", "2") for n in (16, 64) for d in (10**5, 10**6)]
    figures = shards.tell(Grid(scheme=EXACT), cells)
    (few, *_) = figures["forecasts"]
    assert few["lead_received_bytes"] == 4 * 1e8 * 4
    assert few["worker_gpu_s"] == pytest.approx(20 * 1e8 * 1e8 / 1e15)


def test_sizes_that_are_too_large_are_left_out_and_said(surveyed, calls, monkeypatch):
    figures = surveyed()
    assert figures["skipped"] == [[256, 3_500_000]]
    calls.clear()
    monkeypatch.setattr(shards, "available_bytes", lambda: 5 * 2**29)
    figures = surveyed(Grid(clients=(16, 64), dimensions=(200_000, 3_500_000)))
    assert calls == [(16, 200_000), (64, 200_000), (16, 3_500_000)]
    assert figures["skipped"] == [[64, 3_500_000]]


def test_a_survey_that_was_stopped_goes_on(surveyed, calls):
    def stop(what, done, of):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        surveyed(begin=stop)
    steps = []
    surveyed(begin=lambda *step: steps.append(step[1:]))
    assert len(calls) == len(set(calls)) == 5
    assert steps == [(2, 6), (3, 6), (4, 6)]


@pytest.mark.parametrize(
    "options",
    [
        {"clients": (8,)},
        {"dimensions": (200_000,)},
        {"counts": (2, 4)},
        {"counts": (1,)},
        {"repeat": 0},
        {"dimensions": (20_000, 200_000)},  # four shards cannot be cut from two leaves
    ],
)
def test_impossible_grids_are_refused(options):
    with pytest.raises(ConfigError):
        Grid(**options)


def served(values, selected):
    each = Round(0, 0, 0, 0, 0, 0, {})
    return Served([each], {}, np.array(values, np.float32), [selected])


@pytest.mark.parametrize(
    ("other", "same", "difference"),
    {
        "the same": (served([2.0, 0.5], ["client-2"]), True, 0),
        "another client": (served([2.0, 0.5], ["client-3"]), False, 0),
        "another model": (served([2.0, 0.25], ["client-2"]), True, 0.125),
    }.values(),
)
def test_another_selection_or_model_is_found(other, same, difference):
    found = shards._agreement([served([2.0, 0.5], ["client-2"]), other])
    assert found == {"selected": 1, "same_selection": same, "model_difference": difference}


def test_models_that_differ_are_not_equal(surveyed):
    cell = fake_cell(16, 200_000, 1, SKETCH, "1", "2")
    assert [share["equal"] for share in shards._shares(cell)] == [True]
    assert not shards._shares(cell | {"model_difference": 2e-6})[0]["equal"]
    assert not shards._shares(cell | {"same_selection": False})[0]["equal"]


SIZES = "--clients 16 --clients 64 --dimension 200000 --dimension 3500000"


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def invoke(line):
        return CliRunner().invoke(app, ["bench", "scale", *line.split()], prog_name="ostraka")

    return invoke


def test_the_command_shows_shares_the_lead_and_a_forecast(run, calls, tmp_path):
    result = run(f"--shards {SIZES} --out here")
    assert result.exit_code == 0, result.output
    told = " ".join(result.stdout.split())
    for words in (
        "Forecast: 10,000 clients of 100,000,000",
        "That rate is assumed",
        "Rows at each shard: 1,000.0, 250.0, 62.5 GB",
    ):
        assert words in told
    assert "NO" not in told.split()
    assert not (tmp_path / "here" / "scale.json").exists()
    figures = results.load(tmp_path / "here")["shards"]
    assert figures["command"] == f"ostraka bench scale {SIZES} --shards"
    page = render(describe({"shards": figures}))
    for words in ("busiest of 4 shards", "Forecasts for 10,000 clients", "memory of the lead"):
        assert words in page


def test_the_command_takes_numbers_of_shards_and_exact_masks(run, calls):
    result = run(f"--shards --exact --count 1 --count 2 {SIZES} --repeat 1 --json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout.splitlines()[-1])
    assert (figures["scheme"], figures["counts"], figures["repeat"]) == (EXACT, [1, 2], 1)
    assert {share["shards"] for share in figures["shares"]} == {2}


def test_options_of_shards_are_refused_without_them(run):
    result = run("--exact")
    assert result.exit_code == 2
    assert "--count and --exact are for --shards" in result.stderr


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(SKETCH, marks=pytest.mark.slow), pytest.param(EXACT, marks=pytest.mark.soak)],
)
def test_a_lead_and_two_shards_are_measured_and_give_what_one_enclave_gives(scheme):
    grid = Grid((6, 7), (40_000, 50_000), (1, 2), scheme, repeat=1)
    cell = shards.measure(grid, 6, 40_000, lambda *_: None)
    assert {len(each["rounds"]) for each in cell["runs"].values()} == {2}  # there and back
    assert cell["same_selection"]
    assert cell["selected"] == 5
    assert cell["model_difference"] <= 1e-6
    (share,) = shards._shares(cell)
    assert len(share["shard_cpu_s"]) == 2
    assert all(seconds > 0 for seconds in (*share["shard_cpu_s"], share["lead_cpu_s"]))
    assert 20 * MIB < share["lead_bytes"] < 2**30
    assert share["received_bytes"] == 6 * (4 * (40_000 - 16_384) + 2 * 16)
