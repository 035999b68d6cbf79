"""What clients train on, know and send."""

from dataclasses import replace

import numpy as np
import pytest

from ostraka.arrays import Float32
from ostraka_lab.attacks import ATTACKS, Scene
from ostraka_lab.experiment import Experiment
from ostraka_lab.task import Participant, Task

SMALL = {"clients": 5, "byzantine": 1, "steps": 1}


def cast(**fields):
    task = Task.load(Experiment(**SMALL | fields))
    model = task.model()
    return task, {number: Participant(task, number, model) for number in task.experiment.numbers}


def test_a_root_client_may_have_images_of_all_kinds():
    skewed = Experiment(partition="shards:1", rule="fltrust")
    own, drawn = Task.load(skewed), Task.load(replace(skewed, root_images=100))
    trusted = own.experiment.trusted
    assert len(np.unique(own.examples(trusted).labels)) < 5
    assert len(drawn.examples(trusted)) == 100
    assert len(np.unique(drawn.examples(trusted).labels)) == 10
    others = [number for number in own.experiment.numbers if number != trusted]
    for number in others:
        np.testing.assert_array_equal(own.examples(number).labels, drawn.examples(number).labels)
    assert (
        drawn.holdings()[trusted - 1]
        == np.bincount(drawn.examples(trusted).labels, minlength=10).tolist()
    )


def test_attackers_know_the_rule_the_root_client_and_the_last_aggregate(monkeypatch):
    scenes: list[Scene] = []

    def look(scene: Scene) -> Float32:
        scenes.append(scene)
        return scene.own

    monkeypatch.setitem(ATTACKS, "ipm", replace(ATTACKS["ipm"], send=look))
    task, participants = cast(attack="ipm", rule="fltrust", clients=6)
    (number,), start = task.experiment.attackers, task.first()[1]
    attacker = participants[number]
    known = np.zeros((5, start.size), np.float32)
    for round_number, model in ((1, start), (2, start + 1), (4, start)):
        attacker.sends(attacker.train(model, round_number).update, round_number, known)
    first, second, after_a_gap = scenes
    assert str(first.defence.composition) == f"fltrust(root=client-{task.experiment.trusted})"
    assert first.defence.f == 1
    assert first.root is not None
    assert task.experiment.telling[first.root] == task.experiment.trusted
    assert first.last is None
    assert second.last is not None
    np.testing.assert_allclose(second.last, 1, atol=1e-6)
    assert after_a_gap.last is None


def test_attackers_learn_once_a_round_and_know_the_model(monkeypatch):
    scenes: list[Scene] = []

    def look(scene: Scene) -> Float32:
        scenes.append(scene)
        return scene.own

    def count(scene: Scene) -> int:
        assert scene.memory is None or isinstance(scene.memory, int)
        return (scene.memory or 0) + 1

    counting = replace(ATTACKS["ipm"], send=look, learn=count)
    monkeypatch.setitem(ATTACKS, "ipm", counting)
    task, participants = cast(attack="ipm")
    (number,), start = task.experiment.attackers, task.first()[1]
    attacker = participants[number]
    known = np.zeros((4, start.size), np.float32)
    for round_number in (1, 2, 2, 3):
        own = attacker.train(start + round_number, round_number).update
        attacker.sends(own, round_number, known)
    assert [scene.memory for scene in scenes] == [1, 2, 2, 3]
    np.testing.assert_array_equal(scenes[-1].model, start + 3)
    assert sum(scenes[-1].layers) == start.size
    assert len(scenes[-1].layers) == len(task.first()[0].tensors)


def test_neurotoxin_trains_what_others_leave_alone():
    task, participants = cast(attack="neurotoxin")
    (number,), start = task.experiment.attackers, task.first()[1]
    attacker = participants[number]
    assert np.count_nonzero(attacker.train(start, 1).update[:100])
    moved = start.copy()
    moved[:100] += 1
    update = attacker.train(moved, 2).update
    assert not update[:100].any()
    assert update.any()


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
