"""What can be asked for, what is refused, and what clients train on and send."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ostraka.arrays import Float32
from ostraka.errors import ConfigError
from ostraka_lab.attacks import ATTACKS, Scene
from ostraka_lab.experiment import Experiment, Participant, Task

REFUSED = {
    "too few clients for that many attackers": (
        {"clients": 7, "byzantine": 3},
        "needs at least 8 clients",
    ),
    "too few clients for another rule": (
        {"clients": 8, "byzantine": 3, "rule": "multi-krum"},
        "multi-krum needs at least 9 clients",
    ),
    "a rule that there is not": ({"rule": "krumm"}, "did you mean krum"),
    "a rule before a rule": ({"pre": ("mean",)}, "no pre-aggregation 'mean': it is a rule"),
    "what comes before said twice": (
        {"rule": "arc+caf", "pre": ("nnm",)},
        "in --rule or by --pre, not by both",
    ),
    "options of another rule": ({"rule": "mean(k=5)"}, "k is no option of mean"),
    "a root client that there is not": ({"root": 13}, "root is a client, 1 to 12; got 13"),
    "a root client without images": ({"root_images": 1}, "root_images must be at least 2"),
    "a model that there is not": ({"model": "resnet"}, "there is no model 'resnet'"),
    "a data set that there is not": ({"dataset": "cifar100"}, "known: cifar10"),
    "an attack that there is not": ({"attack": "signflip"}, "did you mean sign-flip"),
    "a partition that there is not": ({"partition": "fair"}, "partition"),
    "knowledge of something else": ({"know": "everything"}, "kind of knowledge"),
    "no rounds": ({"rounds": 0}, "rounds must be at least 1"),
    "a seed below zero": ({"seed": -1}, "seed must be at least 0"),
    "both steps and epochs": ({"steps": 2, "epochs": 2}, "not both"),
    "more to average than may be honest": ({"k": 10}, "to n - f = 9"),
    "so few that colluders isolate one": ({"k": 4}, "from f \\+ 2 = 5"),
    "an endless past": ({"client_momentum": 1.0}, "client_momentum must be from 0 to below 1"),
    "a past that turns": ({"client_momentum": -0.1}, "client_momentum must be from 0"),
    "one worker": ({"workers": 1}, "workers must be from 2 to 7"),
    "no time at all": ({"deadline_s": 0.0}, "deadline"),
    "an attack without a scale for so few": (
        {"clients": 8, "byzantine": 1, "attack": "alie"},
        "alie has no scale of its own for 1 of 8",
    ),
    "one attacker that knows but itself": (
        {"byzantine": 1, "attack": "alie", "know": "own"},
        "alie needs to know at least 2 updates",
    ),
}


@pytest.mark.parametrize(("fields", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_work_is_refused(fields, words):
    with pytest.raises(ConfigError, match=words):
        Experiment(**fields)


def test_it_survives_json_and_ignores_what_a_run_adds():
    experiment = Experiment(clients=9, attack="alie", steps=3, rule="caf", pre=("arc",), root=2)
    fields = json.loads(json.dumps(experiment.to_json() | {"dimension": 5}))
    assert Experiment.from_json(fields) == experiment


def test_attackers_are_drawn_from_the_seed():
    casts = {Experiment(seed=seed).attackers for seed in range(20)}
    assert len(casts) > 10
    for cast in casts:
        assert len(set(cast)) == 3
        assert set(cast) <= set(range(1, 13))
    assert Experiment(seed=4).attackers == Experiment(seed=4).attackers


def test_everybody_is_honest_or_attacks():
    experiment = Experiment()
    assert sorted((*experiment.honest, *experiment.attackers)) == list(experiment.numbers)


def test_without_an_attack_nobody_attacks():
    experiment = Experiment(attack="none")
    assert experiment.attackers == ()
    assert experiment.attacking is None
    assert experiment.honest == tuple(range(1, 13))


def test_every_client_is_in_one_process():
    for clients, processes in ((12, None), (64, None), (7, 3), (5, 99)):
        experiment = Experiment(clients=clients, byzantine=1, processes=processes)
        members = [number for group in experiment.groups for number in group]
        assert sorted(members) == list(experiment.numbers)
        assert all(experiment.groups)
    assert len(Experiment(clients=12).groups) == 12
    assert len(Experiment(clients=16).groups) == 16
    assert len(Experiment(clients=17).groups) == len(Experiment(clients=64).groups) == 2


def test_a_model_is_chosen_for_the_data():
    assert Experiment().architecture == "mlp"
    assert Experiment(dataset="cifar10").architecture == "cnn"
    assert Experiment(model="cnn").architecture == "cnn"


def test_local_training_is_one_epoch_unless_it_is_said():
    assert Experiment().recipe.epochs == 1
    assert Experiment(steps=4).recipe.steps == 4
    assert Experiment(epochs=2).recipe.epochs == 2


def test_the_last_round_is_always_evaluated():
    experiment = Experiment(rounds=7, evaluate_every=3)
    assert [number for number in range(1, 8) if experiment.evaluates(number)] == [3, 6, 7]


def test_each_purpose_has_numbers_of_its_own():
    experiment = Experiment()
    streams = (
        experiment.attack_stream(1, 1),
        experiment.attack_stream(1, 2),
        experiment.attack_stream(2, 1),
        experiment.poison_stream(1),
    )
    assert len({stream.integers(2**62) for stream in streams}) == len(streams)
    assert experiment.training_seed(1, 2) != experiment.training_seed(2, 1)


def test_as_many_are_tolerated_as_attack_unless_f_is_given():
    assert Experiment(clients=12, byzantine=3).tolerated == 3
    more = Experiment(clients=12, byzantine=3, f=4)
    assert (more.tolerated, len(more.attackers)) == (4, 3)
    assert len(Experiment(clients=12, byzantine=9, f=1).attackers) == 9
    with pytest.raises(ConfigError, match="needs at least 14 clients"):
        Experiment(clients=12, byzantine=3, f=6)
    with pytest.raises(ConfigError, match="byzantine must be below the number of clients, 12"):
        Experiment(clients=12, byzantine=12, f=1)


RULES = {
    "nothing is said": ({}, "arc+nnm+geometric-median"),
    "another rule": ({"rule": "multi-krum"}, "multi-krum"),
    "what others call it": ({"rule": "GeometricMedian"}, "arc+nnm+geometric-median"),
    "nothing before it": ({"pre": ()}, "geometric-median"),
    "something before it": ({"rule": "caf", "pre": ("arc",)}, "arc+caf"),
    "options": ({"rule": "multi-krum(neighbours=4)", "k": 7}, "multi-krum(k=7, neighbours=4)"),
    "a k that only multi-krum has": ({"k": 7}, "arc+nnm+geometric-median"),
    "a root client": ({"rule": "fltrust", "root": 5}, "fltrust(root=client-5)"),
}


@pytest.mark.parametrize(("fields", "expected"), RULES.values(), ids=RULES.keys())
def test_the_rule_is_what_the_terms_will_say(fields, expected):
    assert str(Experiment(**fields).composition) == expected


def test_the_root_client_is_honest_and_the_same_under_every_attack():
    for seed in range(20):
        chosen = {Experiment(seed=seed, attack=attack).trusted for attack in ("alie", "none")}
        assert len(chosen) == 1
        assert not chosen & set(Experiment(seed=seed).attackers)
    assert len({Experiment(seed=seed).trusted for seed in range(20)}) > 5
    assert Experiment(root=3).trusted == 3


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


def test_what_attackers_have_learnt_is_not_resumed():
    assert Experiment(attack="mimic").resumes_in_the_clear
    for attack in ("lasting-mimic", "poisoned-fl"):
        assert not Experiment(attack=attack).resumes_in_the_clear


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
