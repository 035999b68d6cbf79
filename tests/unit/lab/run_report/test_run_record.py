import json

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.run_report import run_record


def test_a_whole_run(fabricate):
    run = run_record.load(fabricate())
    assert run.finished
    assert len(run.rounds) == len(run.baseline) == 15
    assert run.experiment.attackers == (3, 7, 11)
    assert run.experiment.classes == 10
    assert run.accuracy == run.rounds[-1].accuracy
    assert run.baseline_accuracy == run.baseline[-1].accuracy
    assert (run.byzantine_selected, run.byzantine_chances) == (0, 45)


def test_an_unfinished_run_without_plain_averaging(fabricate):
    run = run_record.load(fabricate(done=4, baseline=False))
    assert not run.finished
    assert len(run.rounds) == 4
    assert run.baseline == ()
    assert run.baseline_accuracy is None


def test_the_last_accuracy_is_the_last_that_was_measured(fabricate):
    folder = fabricate()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 16, "accuracy": null}\n')
    run = run_record.load(folder)
    assert run.rounds[-1].accuracy is None
    assert run.accuracy == run.rounds[-2].accuracy


def test_a_file_of_few_words_is_enough(tmp_path):
    said = {"dataset": "digits", "clients": 5, "rounds": 2, "masking": "exact", "model": None}
    (tmp_path / "experiment.json").write_text(json.dumps(said))
    run = run_record.load(tmp_path)
    assert run.experiment.simulated
    assert not run.experiment.attacked
    assert run.experiment.holdings == ()
    assert run.experiment.command == ""


def test_a_command_may_be_words(fabricate):
    run = run_record.load(fabricate(command=["ostraka", "train", "--out", "my run"]))
    assert run.experiment.command == "ostraka train --out 'my run'"


COLLUSION = {2: 1, 3: 1, 4: 2, 5: 2, 7: 3}


@pytest.mark.parametrize("workers", COLLUSION)
def test_half_of_the_workers_may_collude(fabricate, workers):
    assert run_record.load(fabricate(workers=workers)).experiment.collusion == COLLUSION[workers]


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        run_record.load(tmp_path)


DAMAGES = {
    "no JSON": "{",
    "no object": "[]",
    "no data set": '{"clients": 3, "rounds": 2, "masking": "exact"}',
    "holdings of different lengths": json.dumps(
        {"dataset": "d", "clients": 2, "rounds": 1, "masking": "exact", "holdings": [[1], [1, 2]]}
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_named(tmp_path, what):
    (tmp_path / "experiment.json").write_text(DAMAGES[what])
    with pytest.raises(ConfigError, match=r"experiment\.json is damaged"):
        run_record.load(tmp_path)
