"""A stage has become slower if it is more than noise; and `ostraka bench calibrate`."""

import json

import pytest
from typer.testing import CliRunner

from ostraka import calibration
from ostraka.calibration import Costs
from ostraka.cli import app
from ostraka.errors import ConfigError
from ostraka_lab.bench import check
from ostraka_lab.bench.check import compare, load, plan, save


def run(**ratios):
    return {
        "format": 3,
        "ratios": {name: {"value": v, "noise": n} for name, (v, n) in ratios.items()},
    }


@pytest.mark.parametrize(
    ("now", "old", "tolerance", "slower"),
    [
        ((1.05, 0.0), (1.0, 0.0), 0.1, False),  # within the tolerance
        ((1.15, 0.0), (1.0, 0.0), 0.1, True),
        ((1.15, 0.05), (1.0, 0.0), 0.1, False),  # within three deviations
        ((1.15, 0.03), (1.0, 0.04), 0.1, False),  # of both runs together
        ((1.16, 0.03), (1.0, 0.04), 0.1, True),
        ((0.2, 0.0), (1.0, 0.0), 0.1, False),  # faster is no alarm
        ((float("nan"), 0.0), (1.0, 0.0), 0.1, True),
    ],
)
def test_a_stage_is_slower_beyond_noise_and_tolerance(now, old, tolerance, slower):
    (row,) = compare(run(floor=now), run(floor=old), tolerance=tolerance)
    assert row["slower"] is slower


def test_stages_that_the_baseline_does_not_know_are_left_out():
    rows = compare(run(a=(1, 0), b=(1, 0)), run(b=(1, 0), c=(1, 0)), tolerance=0.1)
    assert [row["stage"] for row in rows] == ["b"]


OPEN = {"cpu_s": 1.0, "x_open": 1.0, "spread": 0.2}


def test_ratios_come_with_the_noise_of_both_their_parts(monkeypatch):
    stages = {
        "open": OPEN,
        "floor": {"cpu_s": 2.0, "x_open": 2.0, "spread": 0.2},
    }
    monkeypatch.setattr(check, "run_kernels", lambda plan, begin: {"stages": stages})
    monkeypatch.setattr(check, "_service_ratios", lambda plan, begin: {})
    figures = check.run(plan(8, 20_000, 5), lambda *_: None)
    assert set(figures["ratios"]) == {"floor"}
    ratio = figures["ratios"]["floor"]
    assert ratio["value"] == 2
    assert 1.253 * 0.2 / 2.326 / 5**0.5 < ratio["noise"] < 0.2


def test_a_whole_service_of_the_same_size_is_guarded_too(monkeypatch):
    asked = []

    def measured(plan, begin):
        asked.append(plan)
        spreads = ("receive_cpu_s", "client_cpu_s", "close_cpu_s", "loop_cpu_s", "open_cpu_s")
        values = {"enclave_x_bare_loop": 1.5, "client_x_bare_loop": 0.5, "close_cpu_x_open": 3.0}
        return values | {"spread": dict.fromkeys(spreads, 0.2)}

    monkeypatch.setattr(check, "run_kernels", lambda plan, begin: {"stages": {"open": OPEN}})
    monkeypatch.setattr("ostraka_lab.bench.service.measure", measured)
    ratios = check.run(plan(8, 20_000, 5), lambda *_: None)["ratios"]
    assert {name: ratio["value"] for name, ratio in ratios.items()} == {
        "service_receive": 1.5,
        "service_client": 0.5,
        "service_close": 3.0,
    }
    own = 1.253 * 0.2 / 2.326 / 5**0.5
    assert all(own < ratio["noise"] < 2 * own for ratio in ratios.values())
    (served,) = asked
    assert (served.clients, served.dimension, served.repeat) == (8, 20_000, 5)
    assert not served.small


def test_what_is_saved_can_be_loaded(tmp_path):
    path = tmp_path / "new" / "baseline.json"
    save(run(floor=(1.0, 0.1)), path)
    assert load(path) == run(floor=(1.0, 0.1))


def test_noise_needs_three_runs():
    with pytest.raises(ConfigError, match="at least 3 to show noise; got 2"):
        plan(8, 5000, 2)


@pytest.mark.parametrize(
    "text",
    {
        "no JSON": "{",
        "no object": "[]",
        "another format": json.dumps({"format": 1, "ratios": {}}),
        "no ratios": json.dumps({"format": 3}),
        "a ratio without noise": json.dumps({"format": 3, "ratios": {"floor": {"value": 1}}}),
    }.values(),
)
def test_what_is_no_baseline_is_refused(tmp_path, text):
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"baseline\.json"):
        load(path)


def test_a_baseline_that_is_not_there_can_be_made(tmp_path):
    with pytest.raises(ConfigError, match="--save"):
        load(tmp_path / "none.json")


def test_every_stage_of_the_check_is_one_that_kernels_has():
    assert set(check.STAGES) < set(plan(8, 20_000, 3).stages)


COSTS = Costs(0.5, (4.0, 8.25, 20.0), int8_gram=0.25, int8_mask=(15.0, 15.5, 16.0))


def test_it_measures_what_it_says():
    begun = []
    costs = check.calibrate(lambda *event: begun.append(event), clients=5, tiles=1, repeat=1)
    assert begun == [("sealing updates", 0, 2), ("run 1", 1, 2)]
    every = (costs.gram, *costs.mask, costs.int8_gram, *costs.int8_mask)
    assert all(0 < cost < 1e6 for cost in every)


def test_costs_are_by_value_and_by_pair_of_clients(monkeypatch):
    """64 clients of 2 tiles are 2^23 values: these seconds are 3, 5 and 7 ns a value."""

    class Timed:
        def __init__(self, clients, tiles, workers, upload):
            self.workers, self.size = workers, {"float32": 1, "int8": 0.25}[upload]

        def inside(self):
            return 2**29 * 1e-9 * self.size**2  # 64 x 2^23 pairs and values

        def masked(self):
            return 2**23 * self.workers * 1e-9 * self.size

    monkeypatch.setattr(check, "_Cohort", Timed)
    costs = check.calibrate(lambda *_: None)
    assert costs.gram == pytest.approx(1)
    assert costs.mask == pytest.approx((3, 5, 7))
    assert costs.int8_gram == pytest.approx(1 / 16)
    assert costs.int8_mask == pytest.approx((3 / 4, 5 / 4, 7 / 4))


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(check, "run_calibration", lambda step: COSTS)
    return lambda line: CliRunner().invoke(app, line.split(), prog_name="ostraka")


def test_the_command_keeps_what_it_shows(calibrated):
    result = calibrated("bench calibrate")
    assert result.exit_code == 0
    assert calibration.load() == COSTS
    for shown in ("8 clients", "17 clients", "40 clients", "0.5 ns a pair"):
        assert shown in result.stdout
    for shown in ("60 clients", "62 clients", "64 clients", "0.25 ns for int8"):
        assert shown in result.stdout


def test_json_is_one_line_and_last(calibrated):
    result = calibrated("bench calibrate --json")
    (line,) = result.stdout.splitlines()
    path = str(calibration.path())
    assert json.loads(line) == {
        "gram": 0.5,
        "mask": [4.0, 8.25, 20.0],
        "int8_gram": 0.25,
        "int8_mask": [15.0, 15.5, 16.0],
        "path": path,
    }


def test_nothing_is_kept_of_a_calibration_that_failed(calibrated, monkeypatch):
    def fail(step):
        raise ConfigError("the benchmark needs Linux")

    monkeypatch.setattr(check, "run_calibration", fail)
    assert calibrated("bench calibrate").exit_code == 2
    assert not calibration.path().exists()
