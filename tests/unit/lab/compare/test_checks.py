"""Spot checks: which cells are drawn, and what becomes of one that differs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from ostraka.errors import ServiceError
from ostraka_lab import run
from ostraka_lab.compare import Comparison, checks, running
from ostraka_lab.defence import Defence
from ostraka_lab.experiment import Experiment
from ostraka_lab.run_report import comparison as comparison_page

DEFENCES = ("plain", "exact", "multi-krum", "caf", "arc+nnm+geometric-median")


def comparison(root, spot_checks, defences=DEFENCES, **fields):
    small = Experiment(**{"clients": 6, "byzantine": 1, "rounds": 3, "steps": 2} | fields)
    attacks = ("none", "sign-flip", "ipm", "min-max")
    return Comparison(root, small, attacks, defences, (0,), "compare", spot_checks=spot_checks)


def ignore(*_):
    pass


def test_cells_of_rules_in_the_clear_are_drawn_from_the_seed(tmp_path):
    drawn = checks.chosen(comparison(tmp_path, 5))
    assert len({cell.name for cell in drawn}) == 5
    assert {cell.defence for cell in checks.chosen(comparison(tmp_path, 99))} == {*DEFENCES[2:]}
    assert [cell.name for cell in checks.chosen(comparison(tmp_path, 5))] == [
        cell.name for cell in drawn
    ]
    other = [cell.name for cell in checks.chosen(comparison(tmp_path, 5, seed=1))]
    assert {name.removesuffix("0") for name in other} != {
        cell.name.removesuffix("0") for cell in drawn
    }


def test_there_is_one_for_every_fifty_cells():
    assert list(map(checks.usual, (0, 49, 50, 884))) == [0, 0, 1, 17]


def stand_in(rounding, monkeypatch):
    """Services that compute in the clear, and whose masks round models by so much."""
    runs = []

    def over_services(cell, experiment):
        runs.append(experiment.distances)
        clear = checks._clear(cell, experiment)
        for number in range(1, experiment.rounds + 1):
            model = clear.round(number).model
            clear.model = (model * np.float32(1 + rounding[experiment.distances])).astype("<f4")
            yield clear.model

    monkeypatch.setattr(checks, "_over_services", over_services)
    return runs


def test_a_drift_beyond_what_is_allowed_must_be_gone_without_masks(tmp_path, monkeypatch):
    """Each round may be off by a little, which adds up: then only unmasked rounds can tell."""
    made = comparison(tmp_path, 1, ("arc+nnm+geometric-median",))
    runs = stand_in({"workers": 8e-6, "inside": 0.0}, monkeypatch)
    checks.run(made, tell=ignore)
    (check,) = checks.load(made)
    assert runs == ["workers", "inside"]
    assert check.drift is not None
    assert check.difference <= checks.ALLOWED < check.drift
    assert check.unmasked == 0
    page = comparison_page.write(made).read_text()
    assert "Spot checks passed" in page
    assert "1 of the cells were run once more, and their models are 0 apart" in page

    (tmp_path / "checks.json").unlink()
    stand_in({"workers": 8e-6, "inside": 8e-6}, monkeypatch)
    with pytest.raises(ServiceError, match=r"in one round, .* in a row, .* in a row without masks"):
        checks.run(made, tell=ignore)


def test_where_all_rounds_agree_nothing_runs_twice(tmp_path, monkeypatch):
    made = comparison(tmp_path, 2, ("multi-krum",))
    runs = stand_in({"workers": 0.0}, monkeypatch)
    checks.run(made, tell=ignore)
    assert runs == ["workers"] * 2
    assert all(each.drift == 0 and each.unmasked is None for each in checks.load(made))


def test_a_check_without_a_client_says_so_and_blames_no_model(tmp_path, monkeypatch):
    """A busy machine must not look like services that compute something else."""
    made = comparison(tmp_path, 1, ("multi-krum",))
    monkeypatch.setattr(run, "found_run", lambda *_, **__: None)
    rows = [SimpleNamespace(round=1, absent=(2, 5))]
    monkeypatch.setattr(run, "run", lambda _: (row for row in rows))
    with pytest.raises(ServiceError, match="no check without client-2, client-5 in round 1"):
        checks.run(made, tell=ignore)
    assert not checks.load(made)
    (cell,) = checks.chosen(made)
    assert checks._experiment(cell).deadline_s > cell.experiment.deadline_s


def test_checks_of_before_can_be_read(tmp_path):
    """They have one figure, and compared round by round."""
    made = comparison(tmp_path, 1)
    (tmp_path / "checks.json").write_text('[{"cell": "c", "rounds": 2, "difference": 1e-7}]')
    (check,) = checks.load(made)
    assert check.equal
    assert "in a row" not in comparison_page.write(made).read_text()


@pytest.mark.slow
def test_the_services_come_to_the_same_model_and_a_wrong_one_is_noticed(tmp_path, monkeypatch):
    """Real services, and then a run in the clear whose rule is not the enclave's."""
    made = comparison(tmp_path / "c", 1, ("arc+nnm+geometric-median",), client_momentum=0.9)
    made.save()
    told = []
    list(running.run(made, tell=lambda what, *_: told.append(what)))
    (check,) = checks.load(made)
    assert 0 <= check.difference <= checks.ALLOWED
    assert check.rounds == 2
    assert check.drift is not None
    # What the enclave measures by itself, no masks round: the same models, over all rounds.
    (cell,) = checks.chosen(made)
    free = checks._clear(cell, checks._experiment(cell))
    for number in (1, 2):
        free.round(number)
    assert checks._unmasked(cell, free.model) <= 1e-9
    assert any(what.startswith("spot check: ") for what in told)
    assert "Spot checks passed" in comparison_page.write(made).read_text()
    checks.run(made, tell=lambda what: pytest.fail("it is over"))

    as_it_is = Defence.__call__

    def a_little_off(self, updates, past):
        aggregate = as_it_is(self, updates, past)
        return type(aggregate)(1.01 * aggregate.mean, aggregate.selected, aggregate.shares)

    monkeypatch.setattr(Defence, "__call__", a_little_off)
    (tmp_path / "c" / "checks.json").unlink()
    with pytest.raises(ServiceError, match="came to another model"):
        checks.run(made, tell=ignore)
    # What was found stays found, with the rule as it should be, too.
    monkeypatch.setattr(Defence, "__call__", as_it_is)
    with pytest.raises(ServiceError, match="more than 1e-05 of its length"):
        checks.run(made, tell=ignore)
    page = comparison_page.write(made).read_text()
    assert "Spot checks failed" in page
    (kept,) = json.loads((tmp_path / "c" / "checks.json").read_text())
    assert np.isfinite(kept["difference"])
