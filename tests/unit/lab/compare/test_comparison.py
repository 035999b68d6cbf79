"""Comparisons: which runs they are made of, and the tables that come out."""

import json
import re
from dataclasses import asdict

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.compare import Comparison, checks, running, write_json
from ostraka_lab.experiment import Experiment
from ostraka_lab.metrics import Metrics, RoundMetrics, read
from ostraka_lab.run_report import comparison as comparison_page

DEFAULT = "arc+nnm+geometric-median"
EXPERIMENT = Experiment(clients=5, byzantine=1, rounds=2, steps=1)


def comparison(root, *, experiment=EXPERIMENT, **fields):
    asked = {"attacks": ("alie", "none"), "defences": ("plain", "exact"), "seeds": (0,)} | fields
    return Comparison(root, experiment, **asked, command="ostraka compare")


def finish(cell, accuracy, selected=0, share=None, **more):
    cell.folder.root.mkdir(parents=True)
    metrics = Metrics(cell.folder.root)
    for number in (1, 2):
        metrics.write(
            RoundMetrics(
                number,
                accuracy=accuracy,
                byzantine_selected=selected,
                attackers_share=share,
                wall_s=1.0,
                **more,
            )
        )
    metrics.close()


def finish_all(made, accuracies):
    """accuracies: by attack, defence and seed."""
    made.save()
    for cell in made.cells():
        finish(cell, accuracies[cell.attack, cell.defence, cell.seed])
    return made.results()


def test_every_attack_meets_every_defence_with_every_seed(tmp_path):
    cells = list(comparison(tmp_path / "c", seeds=(3, 4)).cells())
    names = [cell.name for cell in cells]
    assert names == [
        f"{attack}-{defence}-seed-{seed}"
        for attack in ("alie", "none")
        for defence in ("plain", "exact")
        for seed in (3, 4)
    ]
    assert [cell.in_the_clear for cell in cells] == [True, True, False, False] * 2
    assert [cell.experiment.seed for cell in cells] == [3, 4] * 4
    assert {cell.experiment.masking for cell in cells} == {"exact"}
    assert [str(cell) for cell in cells][:2] == ["alie on plain (seed 3)", "alie on plain (seed 4)"]


def test_each_attack_may_have_a_scale_of_its_own(tmp_path):
    scaled = Experiment(clients=5, byzantine=1, rounds=2, attack_scale=7.0)
    made = comparison(tmp_path / "c", experiment=scaled, attacks=("ipm:0.5", "ipm:2", "sign-flip"))
    found = {(cell.attack, cell.experiment.attack, cell.experiment.scale) for cell in made.cells()}
    assert found == {("ipm:0.5", "ipm", 0.5), ("ipm:2", "ipm", 2.0), ("sign-flip", "sign-flip", 7)}


def test_folders_have_names_that_any_disk_takes(tmp_path):
    defences = ("multi-krum(k=3, neighbours=2)", "fltrust(root=client-1)", DEFAULT)
    made = comparison(tmp_path / "c", attacks=("ipm:0.5",), defences=defences)
    assert [cell.name for cell in made.cells()] == [
        "ipm-0.5-multi-krum-k=3-neighbours=2-seed-0",
        "ipm-0.5-fltrust-root=client-1-seed-0",
        f"ipm-0.5-{DEFAULT}-seed-0",
    ]


REFUSED = {
    "a defence that there is not": (
        {"defences": ("hope",)},
        "a defence is one of plain, exact, gaussian, none, or .* there is no rule 'hope'",
    ),
    "a defence that cannot stand on so few": (
        {"defences": ("trimmed-mean",), "experiment": Experiment(clients=9, byzantine=3)},
        "needs at least 11 clients",
    ),
    "an attack that there is not": ({"attacks": ("hope",)}, "there is no attack 'hope'"),
    "a scale that is no number": ({"attacks": ("ipm:much",)}, "such as ipm:1; got 'ipm:much'"),
    "nothing": ({"attacks": ()}, "at least one attack"),
    "no seed": ({"seeds": ()}, "one seed"),
    "a run twice": ({"attacks": ("alie", "alie")}, "alie-exact-seed-0 is asked for twice"),
}


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_compared_is_refused(tmp_path, fields, words):
    with pytest.raises(ConfigError, match=words):
        comparison(tmp_path, **fields)


def grid(root, **fields):
    asked = {"partitions": ("iid", "shards:2"), "attackers": (1, 2), "defences": ("plain", DEFAULT)}
    asked["attacks"] = ("ipm", "none")
    eight = Experiment(clients=8, byzantine=2, rounds=2, steps=1)
    return comparison(root, **{"experiment": eight, **asked, **fields})


def test_a_grid_has_every_split_with_every_number_of_attackers(tmp_path):
    cells = list(grid(tmp_path / "c").cells())
    assert len(cells) == 4 * 2 * 2
    assert len({cell.name for cell in cells}) == 16
    assert cells[0].name == "iid-1-ipm-plain-seed-0"
    assert str(cells[-1]) == f"none on {DEFAULT} (shards:2, 2 attackers)"
    found = {(each.experiment.partition, each.experiment.byzantine) for each in cells}
    assert found == {("iid", 1), ("iid", 2), ("shards:2", 1), ("shards:2", 2)}


def test_a_defence_is_left_out_where_there_are_too_few_clients(tmp_path):
    made = grid(tmp_path / "c", defences=("plain", "trimmed-mean"), attackers=(2, 3))
    standing = [each.byzantine for each in made.scenarios if made.stands(each, "trimmed-mean")]
    assert standing == [2, 2]
    assert {cell.scenario.byzantine for cell in made.cells() if cell.defence != "plain"} == {2}
    made.save()
    comparison_page.write(made)
    assert "needs more clients" in (tmp_path / "c" / "table.md").read_text()
    with pytest.raises(ConfigError, match="needs at least 11 clients"):
        grid(tmp_path / "d", defences=("plain", "trimmed-mean"), attackers=(3,))


def test_the_worst_case_gets_more_seeds_until_no_other_attack_is_worse(tmp_path):
    made = comparison(
        tmp_path / "c", attacks=("none", "alie", "ipm"), defences=("plain",), worst_seeds=3
    )
    made.save()
    for cell, accuracy in zip(made.cells(), (0.1, 0.5, 0.6), strict=True):
        assert made.further(made.results()) == []
        finish(cell, accuracy)
    assert (made.runs, made.is_whole(made.results())) == (5, False)
    first = made.further(made.results())
    assert [(cell.attack, cell.seed) for cell in first] == [("alie", 1), ("alie", 2)]
    for cell in first:
        finish(cell, 0.8)
    # The mean of alie is 0.7 now, and ipm looks worse.
    assert made.worst(made.results(), "plain").attack == "ipm"
    second = made.further(made.results())
    assert [(cell.attack, cell.seed) for cell in second] == [("ipm", 1), ("ipm", 2)]
    for cell in second:
        finish(cell, 0.3)
    worst = made.worst(made.results(), "plain")
    assert (worst.attack, worst.least, worst.most, worst.seeds) == ("ipm", 0.3, 0.6, 3)
    assert worst.mean == pytest.approx(0.4)
    assert made.further(made.results()) == []
    assert made.is_whole(made.results())


def test_results_of_scenarios_are_kept_apart(tmp_path):
    made = grid(tmp_path / "c", attacks=("ipm", "sign-flip"))
    made.save()
    for number, cell in enumerate(made.cells()):
        finish(cell, number / 100)
    found = comparison_page.spreads(made, made.results())
    worst = {
        (each["partition"], each["byzantine"]): each["mean"]
        for each in found
        if each["worst_case"] and each["defence"] == "plain"
    }
    assert worst == {("iid", 1): 0, ("iid", 2): 0.04, ("shards:2", 1): 0.08, ("shards:2", 2): 0.12}
    text = (comparison_page.write(made).parent / "table.md").read_text()
    for caption in ("iid, 1 attacker:", "shards:2, 2 attackers:"):
        assert caption in text
    assert text.count("\n| worst case | ") == 4


def test_it_can_be_gone_on_with(tmp_path):
    given = Experiment(clients=5, byzantine=1, rule="caf", pre=("arc",))
    made = comparison(tmp_path / "c", experiment=given, seeds=(0, 1))
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
    finish(first, accuracy=0.25, selected=1, share=0.125, failure="too few")
    (result,) = made.results()
    assert (result.attack, result.defence, result.seed) == ("alie", "plain", 0)
    assert (result.accuracy, result.selected, result.sent) == (0.25, 2, 2)
    assert (result.attackers_share, result.failed) == (0.125, 2)
    assert result.accuracies == {1: 0.25, 2: 0.25}
    json.dumps(asdict(result))


ACCURACIES = {
    ("none", "plain"): (0.9, 0.95),
    ("alie", "plain"): (0.5, 0.2),
    ("ipm", "plain"): (0.3, 0.6),
    ("none", DEFAULT): (0.1, 0.1),
    ("alie", DEFAULT): (0.8, 0.8),
    ("ipm", DEFAULT): (0.7, 0.9),
}
BY_SEED = {(*pair, seed): both[seed] for pair, both in ACCURACIES.items() for seed in (0, 1)}


def several(root):
    return comparison(
        root, attacks=("none", "alie", "ipm"), defences=("plain", DEFAULT), seeds=(0, 1)
    )


def test_the_spread_is_over_seeds(tmp_path):
    made = several(tmp_path / "c")
    results = finish_all(made, BY_SEED)
    spread = made.spread(results, "alie", "plain")
    assert (spread.mean, spread.least, spread.most, spread.seeds) == (0.35, 0.2, 0.5, 2)
    assert made.spread(results, "gaussian", "plain") is None


def test_the_worst_case_is_taken_seed_by_seed_over_all_attacks(tmp_path):
    """No attack at all is no attack, however badly a defence does without one."""
    made = several(tmp_path / "c")
    results = finish_all(made, BY_SEED)
    worst = made.worst(results, "plain")
    assert (worst.mean, worst.least, worst.most) == (0.25, 0.2, 0.3)
    assert worst.attack == "alie"
    assert made.worst(results, DEFAULT).least == 0.7
    some = [each for each in results if (each.attack, each.seed) != ("ipm", 1)]
    assert made.worst(some, "plain") is None


def test_the_table_has_a_row_for_each_attack_and_the_worst_case(tmp_path):
    made = several(tmp_path / "c")
    finish_all(made, BY_SEED)
    path = comparison_page.write(made)
    text = (tmp_path / "c" / "table.md").read_text()
    assert f"| attack | plain averaging | {DEFAULT} |" in text
    assert "| alie | 35.0 % (20.0–50.0) | 80.0 % (80.0–80.0) |" in text
    assert "| worst case | 25.0 % (20.0–30.0) | 75.0 % (70.0–80.0) |" in text
    assert "the mean of 2 seeds, and their range" in text
    assert "All defences run in the clear" in text
    assert "`ostraka compare`" in text
    page = path.read_text()
    assert "<svg" in page
    assert "worst case" in page


def test_seeds_that_agree_are_drawn(tmp_path):
    """The mean of these three is a little more than each of them."""
    made = comparison(tmp_path / "c", attacks=("alie",), defences=("plain",), seeds=(0, 1, 2))
    finish_all(made, {("alie", "plain", seed): 0.098 for seed in (0, 1, 2)})
    spread = made.spread(made.results(), "alie", "plain")
    assert spread.mean != spread.least
    assert "9.8 % (9.8–9.8)" in comparison_page.write(made).read_text()


def drawn_texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text("utf-8"))


def test_bars_have_their_values_with_the_spread_of_several_seeds(tmp_path):
    made = several(tmp_path / "c")
    finish_all(made, BY_SEED)
    texts = drawn_texts(comparison_page.write(made))
    written = {cell for row in comparison_page.rows(made, made.results()) for cell in row[1:]}
    assert "25.0 % (20.0–30.0)" in written
    assert written <= set(texts)


def test_many_defences_are_a_map_that_a_page_may_show(tmp_path):
    """An image would be fetched, in the eyes of a browser, and the page forbids that."""
    defences = ("plain", "multi-krum", "nnm+krum", "median", "caf", "mean", "geometric-median")
    made = comparison(tmp_path / "c", attacks=("alie",), defences=defences)
    finish_all(made, {("alie", each, 0): place / 10 for place, each in enumerate(defences)})
    path = comparison_page.write(made)
    assert "<image" not in path.read_text("utf-8")
    assert drawn_texts(path)[-len(defences) :] == [f"{10 * x}" for x in range(len(defences))]


def test_services_are_said_to_be_simulated_where_they_were_used(tmp_path):
    used, clear = comparison(tmp_path / "c"), comparison(tmp_path / "d", defences=("plain",))
    for made in (used, clear):
        made.save()
    page = comparison_page.write(used).read_text("utf-8")
    assert "SIMULATED enclave." in page
    assert "This concerns Ostraka exact." in page
    assert "SIMULATED enclave." in (tmp_path / "c" / "table.md").read_text("utf-8")
    assert "SIMULATED" not in comparison_page.write(clear).read_text("utf-8")
    write_json(clear.root / "checks.json", [asdict(checks.Check("alie on plain", 2, 0.0))])
    assert "This concerns the spot checks." in comparison_page.write(clear).read_text("utf-8")


def test_one_seed_has_no_range_and_runs_that_are_not_over_have_no_figure(tmp_path):
    made = comparison(tmp_path / "c")
    made.save()
    for cell, accuracy in zip(made.cells(), (0.1, 0.5), strict=False):
        finish(cell, accuracy)
    comparison_page.write(made)
    text = (tmp_path / "c" / "table.md").read_text()
    assert "| alie | 10.0 % | 50.0 % |" in text
    assert "| none | - | - |" in text
    assert f"Ostraka runs {DEFAULT}, on updates that only the enclave sees" in text


def test_a_backdoor_s_success_has_a_row_of_its_own(tmp_path):
    made = comparison(tmp_path / "c", attacks=("backdoor",), defences=("plain",))
    made.save()
    (cell,) = made.cells()
    finish(cell, 0.9, attack_success=0.75)
    assert comparison_page.rows(made, made.results()) == [
        ["backdoor", "90.0 %"],
        ["backdoor: its success", "75.0 %"],
    ]


def test_the_figures_of_the_table_are_there_for_programs(tmp_path):
    made = several(tmp_path / "c")
    found = comparison_page.spreads(made, finish_all(made, BY_SEED))
    assert len(found) == 8
    (worst,) = (each for each in found if each["worst_case"] and each["defence"] == "plain")
    assert (worst["attack"], worst["mean"], worst["seeds"]) == ("alie", 0.25, 2)
    json.dumps(found)


def test_the_attackers_part_is_a_share_of_weights_or_of_updates(tmp_path):
    made = comparison(tmp_path / "c", attacks=("alie",), defences=("plain", "nnm+trimmed-mean"))
    made.save()
    first, second = made.cells()
    finish(first, 0.5, selected=1, share=0.2)
    finish(second, 0.5, selected=1)
    page = comparison_page.write(made).read_text()
    assert ">20 %<" in page
    assert ">(100 %)<" in page


@pytest.mark.slow
def test_runs_in_the_clear_are_run_resumed_and_told_of(tmp_path):
    """Real processes: a run that was cut short goes on, and the table is whole."""
    made = comparison(
        tmp_path / "c", attacks=("sign-flip", "ipm:1"), defences=("plain", DEFAULT), seeds=(5,)
    )
    made.save()
    told = []
    results = list(running.run(made, jobs=2, tell=lambda *what: told.append(what)))
    assert {(each.attack, each.defence) for each in results} == {
        (attack, defence) for attack in made.attacks for defence in made.defences
    }
    assert all(each.accuracy is not None and each.seed == 5 for each in results)
    assert told[-1][1:] == (4, 4)
    assert any("round" in what for what, *_ in told)
    saved = json.loads((tmp_path / "c" / "results.json").read_text())
    assert [each["seed"] for each in saved["results"]] == [5] * 4
    cell, *_ = made.cells()
    lines = (cell.folder.root / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cell.folder.root / "metrics.jsonl").write_text(lines[0])
    again = list(running.run(made, tell=lambda *_: None))
    assert [(each.attack, each.defence) for each in again] == [(cell.attack, cell.defence)]
    assert [row.accuracy for row in read(cell.folder.root)] == [
        json.loads(line)["accuracy"] for line in lines
    ]
    assert list(running.run(made, tell=lambda *_: None)) == []
