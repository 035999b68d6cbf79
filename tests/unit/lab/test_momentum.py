"""Worker momentum on disk."""

import numpy as np

from ostraka_lab.experiment import Experiment, Participant, Task
from ostraka_lab.folder import MomentumFile


def participant(**fields):
    task = Task.load(Experiment(clients=5, byzantine=1, steps=1, **fields))
    return task, Participant(task, 1, task.model())


def test_a_client_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path):
    task, steady = participant(worker_momentum=0.9)
    start = task.first()[1]
    expected = [steady.train(start, number).update for number in range(1, 5)]
    updates = []
    for number in (1, 2, 2, 3, 3, 4):  # Rounds 2 and 3 are run again, by a process of their own.
        _, fresh = participant(worker_momentum=0.9)
        file = MomentumFile(tmp_path / "momentum", fresh)
        file.restore(number)
        updates.append(fresh.train(start, number).update)
        file.save(number)
    for row, of in zip(updates, (0, 1, 1, 2, 2, 3), strict=True):
        np.testing.assert_array_equal(row, expected[of])
    assert len(list((tmp_path / "momentum").iterdir())) == 2


def test_without_momentum_nothing_is_written(tmp_path):
    task, steady = participant()
    file = MomentumFile(tmp_path / "momentum", steady)
    file.restore(1)
    steady.train(task.first()[1], 1)
    file.save(1)
    assert not (tmp_path / "momentum").exists()
