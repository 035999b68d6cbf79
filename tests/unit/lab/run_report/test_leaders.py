"""The leader board: who comes first, and what is said of each."""

import json

import pytest

from ostraka_lab.compare import Comparison
from ostraka_lab.experiment import Experiment
from ostraka_lab.metrics import Metrics, RoundMetrics
from ostraka_lab.run_report import leaders

DEFAULT = "arc+nnm+geometric-median"
DEFENCES = ("plain", "trimmed-mean", DEFAULT, "fltrust", "median")


@pytest.fixture
def made(tmp_path):
    """A comparison of 9 clients, of which 1 or 3 attack, whose accuracies are all over."""
    made = Comparison(
        tmp_path / "c",
        Experiment(clients=9, byzantine=3, rounds=1),
        ("none", "ipm", "backdoor"),
        DEFENCES,
        (0,),
        "ostraka compare",
        attackers=(1, 3),
    )
    made.save()
    of = {"plain": 0.2, "trimmed-mean": 0.99, DEFAULT: 0.7, "fltrust": 0.8, "median": 0.5}
    for cell in made.cells():
        low = cell.attack == "ipm" and cell.scenario.byzantine == max(made.attackers)
        success = 0.25 * cell.scenario.byzantine if cell.attack == "backdoor" else None
        metrics = Metrics(cell.folder.root)
        row = RoundMetrics(
            1,
            accuracy=of[cell.defence] if low else 0.9,
            attack_success=success,
            stages_s={"aggregate": 0.5},
        )
        metrics.write(row)
        metrics.close()
    return made


def worst_of(leader):
    assert leader.worst is not None
    return leader.worst


def test_the_best_worst_case_comes_first_and_who_is_absent_last(made):
    found = leaders.of(made, made.results())
    order = ["fltrust", DEFAULT, "median", "plain", "trimmed-mean"]
    assert [each.defence for each in found] == order
    assert [str(each) for each in found[-1].absent] == ["iid, 3 attackers"]
    assert worst_of(found[-1]).mean == 0.9


def test_each_defence_has_its_worst_scenario_means_cost_and_guarantees(made):
    default = leaders.of(made, made.results())[1]
    assert (worst_of(default).attack, worst_of(default).mean) == ("ipm", 0.7)
    assert str(default.scenario) == "iid, 3 attackers"
    assert default.attacked == pytest.approx((0.9 * 3 + 0.7) / 4)
    assert (default.unattacked, default.backdoor, default.aggregate_s) == (0.9, 0.75, 0.5)
    assert default.least == (4, 8)
    assert 0 < (default.moved or 0) < 2
    assert default.remarks == ()


def test_what_a_defence_needs_and_gives_away_is_said(made):
    remarks = {each.defence: each.remarks for each in leaders.of(made, made.results())}
    assert remarks["plain"] == ("bounds nothing",)
    assert remarks["fltrust"] == ("trusts a root client",)
    assert remarks["median"] == ("publishes single values",)


def test_a_defence_with_runs_left_has_no_worst_case(made):
    some = [each for each in made.results() if (each.defence, each.attack) != ("fltrust", "ipm")]
    last = leaders.of(made, some)[-1]
    assert (last.defence, last.worst) == ("fltrust", None)
    assert leaders.table(made, some).rows[-1][1] == "-"


def test_the_board_is_there_for_programs_and_for_documents(made):
    figures = leaders.figures(made, made.results())
    assert json.loads(json.dumps(figures))[0]["scenario"] == {"partition": "iid", "byzantine": 3}
    text = leaders.table(made, made.results()).markdown()
    assert (
        "| fltrust | 80.0 % | ipm (iid, 3 attackers) | 87.5 % | 90.0 % | 75.0 % | 500.0 |" in text
    )
    assert "| n ≥ 5, 11; not with iid, 3 attackers |" in text
