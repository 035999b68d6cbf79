"""`ostraka compare`: what it prints where, and how it ends."""

import json

import pytest
from typer.testing import CliRunner

from ostraka.cli import app
from ostraka.errors import ServiceError
from ostraka_lab.compare import Comparison
from ostraka_lab.metrics import Metrics, RoundMetrics
from ostraka_lab.report import Html

SMALL = "--clients 5 --byzantine 1 --rounds 1"
DEFAULT = "arc+nnm+geometric-median"


def run(*words):
    line = [word for each in words for word in each.split()]
    return CliRunner().invoke(app, ["compare", *line], prog_name="ostraka")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ostraka_lab.report.drawn", lambda *_, **__: Html(""))


@pytest.fixture
def stage(monkeypatch):
    """stage(accuracy): a comparison without its processes; accuracy(cell), or what it raises."""

    def play_with(accuracy):
        def play(comparison, *, jobs, tell):
            for cell in comparison.cells():
                if cell.result() is None:
                    row = RoundMetrics(1, accuracy=accuracy(cell), wall_s=0.5)
                    metrics = Metrics(cell.folder.root)
                    metrics.write(row)
                    metrics.close()
                    yield cell.result()

        monkeypatch.setattr("ostraka_lab.compare.running.run", play)

    return play_with


def by_seed(cell):
    return 0.5 + cell.seed / 10 - 0.1 * (cell.attack != "alie")


def figures_of(result):
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def test_seeds_attacks_and_defences_are_what_was_asked_for(stage):
    stage(by_seed)
    result = run(
        SMALL,
        "--attack alie --attack ipm:2 --defence plain --defence arc+caf --seed 1 --seeds 2",
        "--out here --json",
    )
    figures = figures_of(result)
    found = [(each["attack"], each["defence"], each["seed"]) for each in figures["results"]]
    assert found == [
        (attack, defence, seed)
        for attack in ("alie", "ipm:2")
        for defence in ("plain", "arc+caf")
        for seed in (1, 2)
    ]
    (worst,) = (e for e in figures["spreads"] if e["worst_case"] and e["defence"] == "arc+caf")
    assert worst["attack"] == "ipm:2"
    assert worst["mean"] == pytest.approx(0.55)
    assert (worst["least"], worst["most"]) == (pytest.approx(0.5), pytest.approx(0.6))
    assert (
        "[RUN 1 of 8] alie on plain (iid, 1 attacker), seed 1: accuracy 60.0 %, 0.5 s"
        in result.stderr
    )


def test_every_split_meets_every_number_of_attackers(stage, tmp_path):
    stage(by_seed)
    grid = "--clients 8 --rounds 1 --partition iid --partition shards:2 --byzantine 1 --byzantine 2"
    asked = "--attack nan --attack ipm --defence plain --defence trimmed-mean --worst-seeds 2"
    figures = figures_of(run(grid, asked, "--out here --json"))
    found = {(each["partition"], each["byzantine"]) for each in figures["results"]}
    assert found == {("iid", 1), ("iid", 2), ("shards:2", 1), ("shards:2", 2)}
    assert len(figures["spreads"]) == 4 * 2 * 3
    assert [each["defence"] for each in figures["leaders"]] == ["plain", "trimmed-mean"]
    made = Comparison.load(tmp_path / "here")
    assert made.attackers == (1, 2)
    for words in ("--partition shards:2", "--byzantine 1 --byzantine 2", "--worst-seeds 2"):
        assert words in made.command
    shown = run("--resume here")
    assert "mean under" in " ".join(shown.stdout.lower().split())


@pytest.mark.parametrize(("asked", "checks"), [("", 0), ("--spot-checks 2", 2)])
def test_small_comparisons_are_checked_if_asked_for(stage, tmp_path, asked, checks):
    stage(by_seed)
    run(SMALL, "--attack ipm --defence multi-krum --out here", asked)
    assert Comparison.load(tmp_path / "here").spot_checks == checks


def test_the_table_is_for_people(stage):
    stage(by_seed)
    result = run(SMALL, "--attack alie --attack ipm --defence plain --seeds 2 --out here")
    assert result.exit_code == 0
    for said in ("plain", "55.0 %", "50.0–60.0", "worst case", "here/compare.html"):
        assert said in result.stdout
    assert "To resume" not in result.stdout


def test_by_default_multi_krum_the_default_rule_and_the_services_meet_optimised_attacks(stage):
    stage(by_seed)
    figures = figures_of(run(SMALL, "--out here --json"))
    defences = {each["defence"] for each in figures["results"]}
    assert defences == {"plain", "multi-krum", DEFAULT, "exact"}
    attacks = {each["attack"] for each in figures["results"]}
    assert {"ipm", "optimal-ipm", "optimal-alie"} <= attacks


def test_the_command_makes_the_same_comparison_again(stage, tmp_path):
    stage(by_seed)
    asked = (
        "--attack ipm:2 --defence multi-krum(k=3) --defence exact --seeds 2 --pre none "
        "--root-images 50 --client-momentum 0.9"
    )
    run(SMALL, asked, "--out one")
    made = Comparison.load(tmp_path / "one")
    assert "--defence 'multi-krum(k=3)'" in made.command
    run(made.command.removeprefix("ostraka compare").replace("'", ""), "--out two")
    again = Comparison.load(tmp_path / "two")
    assert (again.experiment, again.command) == (made.experiment, made.command)
    assert list(map(str, again.cells())) == list(map(str, made.cells()))


def test_an_interruption_shows_what_is_there_and_how_to_go_on(stage):
    def second(cell):
        if cell.defence == "multi-krum":
            raise KeyboardInterrupt
        return 0.5

    stage(second)
    result = run(SMALL, "--attack ipm --defence plain --defence multi-krum --out here")
    assert result.exit_code == 130
    assert "50.0 %" in result.stdout
    assert "To resume: ostraka compare --resume here" in result.stdout
    stage(by_seed)
    assert len(figures_of(run("--resume here --json"))["results"]) == 2


def test_a_run_that_fails_says_why_and_how_to_go_on(stage):
    def fail(cell):
        raise ServiceError("nobody came")

    stage(fail)
    result = run(SMALL, "--out here")
    assert result.exit_code == 1
    assert "nobody came\nTo resume: ostraka compare --resume here" in result.stderr


REFUSED = {
    "a defence that there is not": ("--defence prayer", "there is no rule 'prayer'"),
    "a scale that is none": ("--attack ipm:", "such as ipm:1"),
    "no seed": ("--seeds 0", "0 is not in the range"),
    "something else than it was": ("--resume here --seeds 3", "--seeds cannot be changed"),
}


@pytest.mark.parametrize(("asked", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_compared_is_refused(asked, words):
    result = run(asked)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_tables_are_published_once_all_runs_are_over(stage, tmp_path):
    stage(by_seed)
    grid = "--attack alie --attack ipm --defence plain --defence arc+caf --out here"
    figures = figures_of(run(SMALL, grid, "--tables mnist.rules --json"))
    assert figures["tables"] == ["mnist.rules.md", "mnist.rules.json"]
    told = (tmp_path / "mnist.rules.md").read_text()
    assert told.startswith("# Defences on digits\n\n5 clients, of which 1 attack")
    assert "| ipm | 40.0 % | 40.0 % |" in told
    assert "Made by `ostraka compare" in told
    published = json.loads((tmp_path / "mnist.rules.json").read_text())
    assert published["spreads"] == figures["spreads"]
    assert published["leaders"] == figures["leaders"]
    assert {*published} == {"command", "spreads", "leaders", "shares", "checks"}
    assert told.count("## The attackers' part") == 1
    again = run("--resume here --tables other")
    assert again.exit_code == 0
    assert (tmp_path / "other.md").read_text() == told


def test_half_a_comparison_publishes_no_tables(stage, tmp_path, monkeypatch):
    stage(by_seed)
    monkeypatch.setattr(Comparison, "is_whole", lambda *_: False)
    result = run(SMALL, "--attack alie --defence plain --out here --tables half")
    assert result.exit_code == 0
    assert not list(tmp_path.glob("half*"))
    assert "To resume" in result.stdout


def test_tables_have_a_folder_before_anything_runs(tmp_path):
    result = run(SMALL, "--out here --tables nowhere/mnist")
    assert result.exit_code != 0
    assert "there is no folder nowhere" in result.stderr
    assert not (tmp_path / "here" / "cells").exists()
