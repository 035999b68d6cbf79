"""The folder of a run."""

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import RunFolder


def test_what_was_asked_for_and_what_follows_from_it_are_kept(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.make()
    folder.save(Experiment(clients=9), dimension=5, command="ostraka train")
    experiment, facts = folder.load()
    assert experiment == Experiment(clients=9)
    assert facts["dimension"] == 5


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"is not empty.*--resume"):
        RunFolder(tmp_path).make()
    with pytest.raises(ConfigError, match="is not empty"):
        RunFolder(tmp_path / "thesis.txt").make()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be made"):
        RunFolder(tmp_path / "file" / "run").make()


DAMAGED = {
    "nothing": None,
    "half of a file": '{"clients": 9',
    "a list": "[1, 2]",
    "numbers that cannot work": '{"clients": "many"}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_run_that_cannot_be_read_is_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(ConfigError, match=r"experiment\.json"):
        RunFolder(tmp_path).load()
