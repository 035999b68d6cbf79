"""What clients train on and send."""

import numpy as np
import pytest

from ostraka_lab.experiment import Experiment, Participant, Task

SMALL = {"clients": 5, "byzantine": 1, "steps": 1}


def cast(**fields):
    task = Task.load(Experiment(**SMALL | fields))
    model = task.model()
    return task, {number: Participant(task, number, model) for number in task.experiment.numbers}


def test_an_honest_client_sends_what_it_has_trained():
    task, participants = cast()
    (first, *_), start = task.experiment.honest, task.first()[1]
    own = participants[first].train(start, 1).update
    assert participants[first].sends(own, 1) is own
    assert np.linalg.norm(own) > 0


def test_an_attacker_does_not():
    task, participants = cast(attack="sign-flip", attack_scale=10.0)
    (attacker,), start = task.experiment.attackers, task.first()[1]
    own = participants[attacker].train(start, 1).update
    np.testing.assert_allclose(participants[attacker].sends(own, 1), -10 * own)


def test_training_is_the_same_in_every_process_and_order():
    task, participants = cast()
    start = task.first()[1]
    first = participants[2].train(start, 3).update
    participants[4].train(start, 1)
    _, others = cast()
    np.testing.assert_array_equal(others[2].train(start, 3).update, first)
    assert not np.array_equal(others[2].train(start, 4).update, first)


def test_clients_hold_different_examples():
    task, _ = cast()
    held = [task.examples(number) for number in task.experiment.numbers]
    assert sum(map(len, held)) == len(task.dataset.train)
    assert np.sum(task.holdings()) == len(task.dataset.train)


@pytest.mark.parametrize("know", ["all", "own"])
def test_who_tells_and_who_asks(know):
    task, participants = cast(attack="ipm", know=know)
    experiment = task.experiment
    telling = {number for number, each in participants.items() if each.tells}
    asking = {number for number, each in participants.items() if each.asks}
    assert telling == set(experiment.honest if know == "all" else experiment.attackers)
    assert asking == set(experiment.attackers)


def test_nobody_tells_where_no_attack_needs_it():
    for attack in ("none", "sign-flip"):
        _, participants = cast(attack=attack)
        assert not any(each.tells or each.asks for each in participants.values())


def test_poisoned_examples_are_the_attackers_alone():
    clean, flipped = cast(attack="none")[0], cast(attack="label-flip")
    start, (attacker,) = clean.first()[1], flipped[0].experiment.attackers
    honest = Participant(clean, attacker, clean.model()).train(start, 1).update
    assert not np.array_equal(flipped[1][attacker].train(start, 1).update, honest)
    other = flipped[0].experiment.honest[0]
    same = Participant(clean, other, clean.model()).train(start, 1).update
    np.testing.assert_array_equal(flipped[1][other].train(start, 1).update, same)
