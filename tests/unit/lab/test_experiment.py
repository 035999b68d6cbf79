"""What can be asked for, and what is refused."""

import json

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.experiment import Experiment

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


def test_what_attackers_have_learnt_is_not_resumed():
    assert Experiment(attack="mimic").resumes_in_the_clear
    for attack in ("lasting-mimic", "poisoned-fl"):
        assert not Experiment(attack=attack).resumes_in_the_clear
