"""A plan that exists can be run; one that cannot says why, with numbers."""

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench import kernels as plans
from ostraka_lab.bench.kernels import STAGES, Plan


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"clients": 2}, "n=2"),
        ({"dim": 7}, "8 clients and 7 dimensions"),
        ({"threads": 0}, "threads must be at least 1; got 0"),
        ({"repeat": 0}, "repeat must be at least 1; got 0"),
        ({"only": ("floor", "ceiling")}, "no stage ceiling; there are open, "),
        ({"only": ("exact_sketch",)}, "8 clients' 1000 values is possible, and so no exact_sketch"),
    ],
)
def test_impossible_plans_are_refused(sizes, message):
    with pytest.raises(ConfigError, match=message):
        Plan(**{"clients": 8, "dim": 1000} | sizes)


def test_all_stages_run_unless_some_are_named():
    assert Plan(8, 5000).stages == tuple(STAGES)


def test_short_updates_have_no_sketch():
    without = set(STAGES) - set(Plan(8, 4095).stages)
    assert without == {"exact_sketch", "sketch_inside", "second_pass"}


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
