"""`ostraka bench calibrate`, and the measurement behind it on a small federation."""

import json

import pytest
from typer.testing import CliRunner

from ostraka import calibration
from ostraka.calibration import Costs
from ostraka.cli import app
from ostraka.errors import ConfigError
from ostraka_lab.bench import calibrate
from ostraka_lab.commands import bench as command

COSTS = Costs(gram=0.5, mask=(4.0, 8.25, 20.0))


def test_it_measures_what_it_says():
    begun = []
    costs = calibrate.calibrate(lambda *event: begun.append(event), clients=5, tiles=1, repeat=1)
    assert begun == [("sealing updates", 0, 2), ("run 1", 1, 2)]
    # In a run this short some of it may be lost in noise, and is then just above zero.
    assert all(1e-4 <= cost < 1e6 for cost in (costs.gram, *costs.mask))


def test_what_is_common_to_both_ways_is_taken_off(monkeypatch):
    """64 clients of 2 tiles are 2^23 values: these seconds are 2, 4 and 8 ns a value and more."""

    class Timed:
        def __init__(self, clients, tiles, workers):
            self.workers = workers

        def opened(self):
            return 1.0

        def inside(self):
            return 1 + 2**29 * 1e-9  # 64 x 2^23 pairs and values

        def masked(self):
            return 1 + 2**23 * self.workers * 1e-9

    monkeypatch.setattr(calibrate, "_Cohort", Timed)
    costs = calibrate.calibrate(lambda *_: None)
    assert costs.gram == pytest.approx(1)
    assert costs.mask == pytest.approx((2, 4, 6))


@pytest.fixture
def calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "run_calibration", lambda step: COSTS)
    return lambda line: CliRunner().invoke(app, line.split(), prog_name="ostraka")


def test_the_command_keeps_what_it_shows(calibrated):
    result = calibrated("bench calibrate")
    assert result.exit_code == 0
    assert calibration.load() == COSTS
    for shown in ("2 or 3", "8 clients", "17 clients", "40 clients", "0.5 ns a pair"):
        assert shown in result.stdout


def test_json_is_one_line_and_last(calibrated):
    result = calibrated("bench calibrate --json")
    (line,) = result.stdout.splitlines()
    path = str(calibration.path())
    assert json.loads(line) == {"gram": 0.5, "mask": [4.0, 8.25, 20.0], "path": path}


def test_nothing_is_kept_of_a_calibration_that_failed(calibrated, monkeypatch):
    def fail(step):
        raise ConfigError("the benchmark needs Linux")

    monkeypatch.setattr(command, "run_calibration", fail)
    assert calibrated("bench calibrate").exit_code == 2
    assert not calibration.path().exists()
