"""`ostraka train` and `ostraka demo`: what they print where, and how they end."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from ostraka import federation_file
from ostraka.cli import app
from ostraka.errors import TERMINATED, RoundFailed, ServiceError
from ostraka_lab import run as runs
from ostraka_lab.commands.round_view import RoundView
from ostraka_lab.folder import RunFolder
from ostraka_lab.metrics import BaselineMetrics, Metrics, RoundMetrics
from ostraka_lab.report import Html

SMALL = "--clients 5 --byzantine 1 --rounds 2"


def run(line):
    return CliRunner().invoke(app, line.split(), prog_name="ostraka")


def last_line_only(result):
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def row(number, attackers):
    return RoundMetrics(
        round=number,
        accuracy=0.4 + number / 10,
        loss=1.0,
        selected=tuple({1, 2, 3, 4, 5} - set(attackers)),
        dropped=tuple(attackers),
        stages_s={"train": 0.5, "measure": 0.1},
        wall_s=0.75,
        start_s=6.5 if number == 1 else None,
    )


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stage(monkeypatch):
    """stage(change): a run without its processes; change(row) may alter what came out.

    Its report has no pictures, which take long to draw.
    """
    monkeypatch.setattr("ostraka_lab.report.drawn", lambda *_, **__: Html(""))

    def change_rows(change=lambda row: row):
        def play(folder: RunFolder, *, rounds=None, tell=None, live=None):
            experiment = folder.load()[0]
            metrics = Metrics(folder.root)
            for number in range(1, experiment.rounds + 1):
                made = change(row(number, experiment.attackers))
                metrics.write(made)
                metrics.baseline(BaselineMetrics(number, 0.1, 2.3))
                yield made
            metrics.close()

        monkeypatch.setattr("ostraka_lab.run.run", play)

    return change_rows


@pytest.fixture
def fail(monkeypatch):
    """fail(error): let the run begin, and end like this."""

    def end_with(error):
        def play(folder, *, rounds=None, tell=None, live=None):
            yield from ()
            raise error

        monkeypatch.setattr("ostraka_lab.run.run", play)

    return end_with


def test_the_last_line_is_one_object_and_everything_else_is_on_stderr(stage):
    stage()
    result = run(f"train {SMALL} --out here --baseline --json")
    assert result.exit_code == 0, result.stderr
    figures = last_line_only(result)
    assert figures["accuracy"] == pytest.approx(0.6)
    assert figures["baseline_accuracy"] == pytest.approx(0.1)
    assert figures["rounds"] == 2
    assert figures["byzantine_selected"] == 0
    assert figures["masking"] == "exact"
    assert figures["simulated"] is True
    assert figures["stages_s"] == {"train": 0.5, "measure": 0.1}
    assert figures["start_s"] == 6.5
    assert figures["report"] == "here/report.html"
    assert "[ROUND 2/2] accuracy 60.0 % (plain averaging 10.0 %)" in result.stderr
    assert "No TEE protects this run" in result.stderr


def test_a_run_says_who_was_left_out_and_marks_attackers(stage, tmp_path):
    stage(lambda row: row)
    result = run(f"train {SMALL} --out here")
    (attacker,) = RunFolder(tmp_path / "here").load()[0].attackers
    assert f"{attacker}*" in result.stdout
    assert "No attacker was averaged in." in result.stdout
    assert "here/report.html" in result.stdout


def test_who_was_rejected_or_absent_is_told_apart(stage):
    stage(lambda row: replace(row, rejected={2: "a NaN"}, absent=(3,)))
    result = run(f"train {SMALL} --out here")
    assert "2 rejected; 3 absent" in result.stderr


def test_where_plain_averaging_does_better_the_demo_fails_and_the_experiment_does_not(stage):
    """In these runs it reaches 10 %."""
    stage(lambda row: replace(row, accuracy=0.07, byzantine_selected=1))
    result = run(f"demo {SMALL} --rule multi-krum --out demo --json")
    assert result.exit_code == 1
    figures = last_line_only(result)
    assert figures["misled"] is True
    assert figures["byzantine_selected"] == 2
    assert figures["rule"] == "multi-krum"
    told = run(f"train {SMALL} --rule multi-krum --out train")
    assert told.exit_code == 0
    assert "Attackers averaged in: 2 times. Accuracy after 2 rounds: 7.0 %" in told.stdout
    assert "This attack misleads multi-krum itself: see docs/attacks.md." in told.stdout


def test_a_difference_that_is_noise_misleads_nobody(stage):
    stage(lambda row: replace(row, accuracy=0.09))
    assert run(f"demo {SMALL} --out demo").exit_code == 0


def test_where_nobody_is_left_out_weights_are_what_counts(stage):
    stage(lambda row: replace(row, selected=(1, 2, 3, 4, 5), dropped=(), byzantine_selected=1))
    result = run(f"train {SMALL} --out here")
    assert "arc+nnm+geometric-median gives every update a weight" in result.stdout
    assert "averaged in" not in result.stdout


def test_a_round_that_fails_is_told_and_makes_no_rule_selective(stage):
    def second_fails(row):
        everybody = (1, 2, 3, 4, 5)
        if row.round == 2:
            return replace(row, selected=(), dropped=everybody, failure="too few had a weight")
        return replace(row, selected=everybody, dropped=())

    stage(second_fails)
    result = run(f"train {SMALL} --out here --json")
    assert last_line_only(result)["selective"] is False
    assert "left out: everybody: too few had a weight" in result.stderr


def test_the_rule_is_that_of_the_run_and_of_the_command_that_makes_it_again(stage, tmp_path):
    stage()
    asked = "--rule caf --pre arc --pre clip"
    assert run(f"train {SMALL} {asked} --out here").exit_code == 0
    experiment, facts = RunFolder(tmp_path / "here").load()
    assert facts["composition"] == str(experiment.composition) == "arc+clip+caf"
    assert asked in facts["command"]
    assert run(f"train {SMALL} --pre none --out there").exit_code == 0
    experiment, facts = RunFolder(tmp_path / "there").load()
    assert str(experiment.composition) == "geometric-median"
    assert facts["command"].endswith("--pre none")


REFUSED = {
    "a rule that there is not": ("--rule krumm", "did you mean krum"),
    "nothing, and something": ("--pre none --pre arc", "give it alone"),
    "a k that the rule does not take": ("--k 3", "k is an option of multi-krum"),
    "too few clients": ("--rule trimmed-mean --f 2", "needs at least"),
    "a root client that there is not": ("--rule fltrust --root 9", "1 to 5; got 9"),
    "the name of one": ("--rule fltrust --root client-9", "1 to 5; got 9"),
    "what is no client": (
        "--rule fltrust --root hospital",
        "--root is a client, by its name or its number, such as client-3 or 3; got 'hospital'",
    ),
    "a sketch that is too rough for nnm": (
        "--sketch 4096",
        "ostraka: --sketch 4096: nnm needs a sketch of at least 16384 columns; got 4096",
    ),
    "a sketch that is longer than the model": (
        "--sketch 5000",
        "ostraka: --sketch 5000: a sketch has 4096 to d = 4810 values; got m = 5000",
    ),
}


@pytest.mark.parametrize(("asked", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_rule_that_cannot_work_is_refused_before_anything_runs(asked, words, tmp_path):
    result = run(f"train {SMALL} {asked} --out here")
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("error", [RoundFailed("nobody came"), ServiceError("nobody came")])
def test_a_run_that_fails_says_why_where_its_logs_are_and_how_to_go_on(fail, error):
    fail(error)
    result = run(f"train {SMALL} --out here")
    assert result.exit_code == 1
    assert "nobody came" in result.stderr
    assert "All logs are in here/logs. To resume: ostraka train --resume here" in result.stderr


def test_an_interruption_exits_with_130_and_says_how_to_go_on(fail):
    fail(KeyboardInterrupt())
    result = run(f"train {SMALL} --out here")
    assert result.exit_code == 130
    assert "Interrupted after round 0 of 2." in result.stdout
    assert "To resume: ostraka train --resume here" in result.stdout
    assert "averaged in" not in result.stdout  # Nothing was.


def test_rounds_before_an_interruption_are_shown_beside_the_same_ones_of_plain_averaging(
    stage, monkeypatch
):
    def second(row):
        if row.round == 2:
            raise KeyboardInterrupt
        return row

    stage(second)
    ahead = [BaselineMetrics(1, 0.1), BaselineMetrics(2, 0.9)]
    monkeypatch.setattr("ostraka_lab.metrics.read_baseline", lambda folder: ahead)
    result = run(f"train {SMALL} --out here --json")
    assert result.exit_code == 130
    figures = last_line_only(result)
    assert figures["rounds"] == 1
    assert figures["baseline_accuracy"] == pytest.approx(0.1)
    assert "Interrupted after round 1 of 2." in result.stderr


@pytest.fixture
def stopped_late(stage, monkeypatch):
    """A run that is told to stop after its last round, when its processes are to end."""
    stage()
    play = runs.run

    def stopped(folder, *, tell=None, live=None):
        yield from play(folder, tell=tell)
        raise SystemExit(TERMINATED)

    monkeypatch.setattr("ostraka_lab.run.run", stopped)


@pytest.mark.parametrize("baseline", ["", "--baseline"])
def test_a_run_that_is_stopped_after_its_last_round_has_ended_well(stopped_late, baseline):
    result = run(f"train {SMALL} {baseline} --out here")
    assert result.exit_code == 0, result.stderr
    assert "Interrupted" not in result.stdout
    assert "To resume" not in result.stdout
    assert "Accuracy after 2 rounds: 60.0 %" in result.stdout


def test_a_last_round_that_is_on_record_and_not_shown_yet_counts(stage, monkeypatch):
    stage()
    monkeypatch.setattr(RoundView, "add", stopped_at(2, RoundView.add))
    result = run(f"train {SMALL} --out here")
    assert result.exit_code == 0, result.stderr
    assert "Accuracy after 2 rounds: 60.0 %" in result.stdout


def stopped_at(number, add):
    """Shows rounds by `add`, until SIGTERM comes before this one is shown."""

    def stopped(view, row):
        if row.round == number:
            raise SystemExit(TERMINATED)
        add(view, row)

    return stopped


def test_a_run_that_is_stopped_before_plain_averaging_is_done_can_be_resumed(
    stopped_late, monkeypatch
):
    first = [BaselineMetrics(1, 0.1)]
    monkeypatch.setattr("ostraka_lab.metrics.read_baseline", lambda folder: first)
    result = run(f"train {SMALL} --baseline --out here")
    assert result.exit_code == TERMINATED
    said = "All 2 rounds are done. Interrupted after round 1 of plain averaging"
    assert said in result.stdout
    assert "To resume: ostraka train --resume here" in result.stdout


def test_rounds_that_nobody_timed_have_no_time(stage):
    def untimed(row):
        return replace(row, stages_s={}, wall_s=None) if row.round == 1 else row

    stage(untimed)
    result = run(f"train {SMALL} --out here --json")
    assert last_line_only(result)["stages_s"] == {"train": 0.5, "measure": 0.1}
    assert "[ROUND 1/2] accuracy 50.0 %" in result.stderr
    assert ", - s" in result.stderr


def test_an_attack_is_as_strong_in_the_demo_as_it_is_elsewhere(stage, tmp_path):
    stage()
    small = "--clients 5 --byzantine 1 --rounds 1 --attack ipm"
    run(f"demo {small} --out demo")
    run(f"train {small} --out train")
    scales = {RunFolder(tmp_path / name).load()[1]["attack_scale"] for name in ("demo", "train")}
    assert len(scales) == 1


def test_a_folder_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").touch()
    result = run(f"train {SMALL} --out {tmp_path}")
    assert result.exit_code == 2
    assert "is not empty" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("command", ["train", "demo"])
def test_a_run_in_which_copies_can_turn_the_aggregate_around_is_warned_of(command, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "something").touch()  # so that nothing is started
    warning = "f equal updates can turn the aggregate of multi-krum around"
    told = run(f"{command} --clients 11 --byzantine 4 --rule multi-krum --out out")
    assert told.stderr.count(warning) == 1
    assert "is not empty" in told.stderr
    for other in ("--byzantine 3 --rule multi-krum", "--byzantine 4"):
        assert warning not in run(f"{command} --clients 11 {other} --out out").stderr


def test_nothing_but_the_rounds_can_be_changed_later(stage):
    stage()
    run(f"train {SMALL} --out here")
    result = run("train --resume here --lr 0.5")
    assert result.exit_code == 2
    assert "--lr cannot be changed" in result.stderr


def test_the_command_is_that_of_the_rounds_that_there_are_now(stage, tmp_path):
    stage()
    run(f"train {SMALL} --out here")
    assert run("train --resume here --rounds 3").exit_code == 0
    experiment, facts = RunFolder(tmp_path / "here").load()
    assert experiment.rounds == 3
    assert facts["command"].endswith("--rounds 3")
    assert facts["dimension"] > 0


def test_a_folder_without_a_run_cannot_be_gone_on_with(tmp_path):
    result = run(f"train --resume {tmp_path / 'nothing'}")
    assert result.exit_code == 2
    assert "holds no run" in result.stderr


def test_the_command_that_makes_the_run_again_is_kept(stage, tmp_path):
    stage()
    run(f"train {SMALL} --attack alie --lr 0.2 --baseline --out here --know all")
    command = RunFolder(tmp_path / "here").load()[1]["command"]
    words = "--clients 5 --byzantine 1 --attack alie --rounds 2 --lr 0.2 --baseline"
    assert command == f"ostraka train {words}"


@pytest.mark.parametrize("name", ["--client-momentum", "--worker-momentum"])
def test_client_momentum_has_its_older_name_too_and_is_signed(stage, tmp_path, name):
    stage()
    assert run(f"train {SMALL} {name} 0.75 --out here").exit_code == 0
    folder = RunFolder(tmp_path / "here")
    experiment, facts = folder.load()
    assert experiment.client_momentum == 0.75
    assert facts["command"].endswith("--client-momentum 0.75")
    signed = federation_file.load_charter(folder.federation / "federation.charter").federation
    assert signed.terms.client_momentum == 0.75


def test_the_format_of_uploads_is_signed_and_on_record(stage, tmp_path):
    stage()
    assert run(f"train {SMALL} --upload int8 --out here").exit_code == 0
    folder = RunFolder(tmp_path / "here")
    experiment, facts = folder.load()
    assert experiment.upload == "int8"
    assert facts["command"].endswith("--upload int8")
    signed = federation_file.load_charter(folder.federation / "federation.charter").federation
    assert signed.terms.upload == "int8"
    assert "did you mean int8?" in run(f"train {SMALL} --upload int").output
