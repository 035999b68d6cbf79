"""Comparisons: which runs they are made of, and the table that comes out."""

import json

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.compare import Comparison
from ostraka_lab.experiment import Experiment
from ostraka_lab.metrics import Metrics, RoundMetrics
from ostraka_lab.run_report import comparison as comparison_page

EXPERIMENT = Experiment(clients=5, byzantine=1, rounds=2)


def comparison(root, **fields):
    asked = {"attacks": ("alie", "none"), "defences": ("plain", "exact")} | fields
    return Comparison(root, EXPERIMENT, **asked, command="ostraka compare")


def finish(cell, accuracy, selected=0):
    cell.folder.root.mkdir(parents=True)
    metrics = Metrics(cell.folder.root)
    for number in (1, 2):
        metrics.write(
            RoundMetrics(number, accuracy=accuracy, byzantine_selected=selected, wall_s=1.0)
        )
    metrics.close()


def test_every_attack_meets_every_defence(tmp_path):
    cells = list(comparison(tmp_path / "c").cells())
    names = [cell.name for cell in cells]
    assert names == ["alie-plain", "alie-exact", "none-plain", "none-exact"]
    assert [cell.in_the_clear for cell in cells] == [True, False, True, False]
    assert {cell.experiment.seed for cell in cells} == {EXPERIMENT.seed}


REFUSED = {
    "a defence that there is not": ({"defences": ("hope",)}, "there is no defence 'hope'"),
    "an attack that there is not": ({"attacks": ("hope",)}, "there is no attack 'hope'"),
    "nothing": ({"attacks": ()}, "at least one attack"),
}


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_compared_is_refused(tmp_path, fields, words):
    with pytest.raises(ConfigError, match=words):
        comparison(tmp_path, **fields)


def test_it_can_be_gone_on_with(tmp_path):
    made = comparison(tmp_path / "c")
    made.save()
    assert Comparison.load(tmp_path / "c") == made
    with pytest.raises(ConfigError, match="is not empty"):
        made.save()
    (tmp_path / "c" / "comparison.json").write_text("{}")
    with pytest.raises(ConfigError, match="damaged"):
        Comparison.load(tmp_path / "c")
    with pytest.raises(ConfigError, match="holds no comparison"):
        Comparison.load(tmp_path / "d")


def test_results_are_of_runs_that_are_over(tmp_path):
    made = comparison(tmp_path / "c")
    made.save()
    first, *_ = made.cells()
    assert made.results() == []
    finish(first, accuracy=0.25, selected=1)
    (result,) = made.results()
    assert (result.attack, result.defence) == ("alie", "plain")
    assert (result.accuracy, result.selected, result.sent) == (0.25, 2, 2)
    assert result.accuracies == {1: 0.25, 2: 0.25}
    json.dumps(result.__dict__)


def test_the_table_has_a_row_for_each_attack(tmp_path):
    made = comparison(tmp_path / "c")
    made.save()
    for cell, accuracy in zip(made.cells(), (0.1, 0.5), strict=False):
        finish(cell, accuracy)
    path = comparison_page.write(made)
    text = (tmp_path / "c" / "table.md").read_text()
    assert "| alie | 10.0 % (0 %) | 50.0 % (0 %) |" in text
    assert "| none | - | - |" in text
    assert "`ostraka compare`" in text
    page = path.read_text()
    assert "<svg" in page
    assert "Multi-Krum itself is misled" in page
