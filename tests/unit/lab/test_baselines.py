"""The federation in the clear: what Ostraka is compared with, and must be equal to."""

import itertools
from contextlib import nullcontext

import numpy as np
import pytest

import ostraka
from ostraka.core.gram import from_gram
from ostraka.core.rules import krum_scores
from ostraka.errors import ConfigError, LeakyMasking
from ostraka_lab import baselines, data
from ostraka_lab.baselines import PLAIN, Clear, plain_average, rule
from ostraka_lab.defence import Aggregate, Past, inner_products
from ostraka_lab.experiment import Experiment
from ostraka_lab.folder import RunFolder
from ostraka_lab.task import Judge, Participant, Task

START = Past()
DEFAULT = "arc+nnm+geometric-median"


def loaded(**fields):
    try:
        return Task.load(Experiment(**fields))
    except ConfigError as absent:
        pytest.skip(str(absent))


def recorded(defence, **fields):
    """The updates of a run, round by round."""
    task = loaded(**fields)
    used = rule(task.experiment, defence)
    for each in Clear(task, used).rounds():
        yield each, used(each.updates)


def gap(updates, f):
    """How far the scores of the last selected and the first dropped client lie apart."""
    rows = inner_products(updates)
    norms = np.sqrt(np.diagonal(rows))
    limit = 2.0 ** np.ceil(np.log2(4 * np.median(norms)))
    scales = limit / np.maximum(norms, limit)
    scores = np.sort(krum_scores(from_gram(rows * np.outer(scales, scales)), f))
    return scores[-f] - scores[-f - 1]


RUNS = {
    "digits": {"attack_scale": 10.0, "rounds": 4},
    "digits under ALIE": {"attack": "alie", "rounds": 3, "partition": "dirichlet:0.5"},
}
CIFAR = {
    "CIFAR-10": {
        "dataset": "cifar10",
        "clients": 16,
        "byzantine": 4,
        "steps": 2,
        "rounds": 2,
        "attack_scale": 10.0,
    },
}


@pytest.mark.parametrize(
    "fields",
    [*RUNS.values(), *(pytest.param(each, marks=pytest.mark.slow) for each in CIFAR.values())],
    ids=[*RUNS, *CIFAR],
)
@pytest.mark.parametrize("masking", ["exact", "gaussian", "none"])
def test_privacy_costs_no_accuracy(fields, masking):
    """On the same recorded updates, all maskings select and average as Multi-Krum in the clear."""
    n = fields.get("clients", 12)
    f = fields.get("byzantine", 3)
    compared = 0
    for each, reference in recorded("multi-krum", **fields):
        with pytest.warns(LeakyMasking) if masking == "gaussian" else nullcontext():
            result = ostraka.run_round(each.updates, f=f, masking=masking, rule="multi-krum")
        # Each score is the sum of n - f - 2 distances.
        error = 2 * (n - f - 2) * result.distance_error
        if gap(each.updates, f) <= error:
            continue
        compared += 1
        assert result.selected == reference.selected
        assert off(result.aggregate, reference.mean) < 1e-5
    assert compared


def off(one, other):
    return np.linalg.norm(one - other) / np.linalg.norm(other)


@pytest.mark.parametrize("fields", RUNS.values(), ids=RUNS.keys())
@pytest.mark.parametrize("masking", ["exact", "none"])
def test_the_default_rule_is_the_same_in_private(fields, masking):
    for each, reference in recorded(DEFAULT, **fields):
        result = ostraka.run_round(each.updates, f=3, masking=masking)
        assert off(result.aggregate, reference.mean) < 1e-4


SMALL = {"clients": 7, "byzantine": 1, "rounds": 2, "steps": 1}


@pytest.mark.parametrize(
    "defence", [DEFAULT, "arc+caf", "trimmed-mean", "fltrust", "nnm+krum", "centred-clipping"]
)
def test_any_composition_is_a_defence(defence):
    task = loaded(**SMALL)
    *_, last = Clear(task, rule(task.experiment, defence)).rounds()
    assert np.isfinite(last.model).all()
    assert not last.failure
    assert 1 <= len(last.selected) <= 7


def test_the_experiment_s_k_and_root_client_are_the_defence_s():
    experiment = Experiment(k=6, root=4)
    assert str(rule(experiment, "multi-krum").composition) == "multi-krum(k=6)"
    trusting = rule(experiment, "fltrust")
    assert trusting.composition.options.root == "client-4"
    assert trusting.root == 3
    assert rule(experiment, "fltrust(root=client-2)").root == 1
    assert rule(experiment, DEFAULT).composition.options.given == ()


REFUSED = {
    "a rule that there is not": ("hope", {}, "there is no rule 'hope'"),
    "a pre-aggregation that there is not": ("hope+mean", {}, "there is no pre-aggregation"),
    "too few clients": ("multi-krum", {"clients": 8}, "needs at least 9 clients"),
    "a root client that there is not": ("fltrust(root=client-99)", {}, "client-1 to client-12"),
    "an option of another rule": ("mean(k=6)", {}, "k is no option of mean"),
}


@pytest.mark.parametrize(("defence", "fields", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_defend_is_refused(defence, fields, words):
    with pytest.raises(ConfigError, match=words):
        rule(Experiment(**fields), defence)


def test_attackers_are_up_against_the_defence_at_hand():
    """The same attack, optimised against what the run in the clear uses, and not the terms."""
    task = loaded(**SMALL | {"attack": "optimal-ipm", "rounds": 1})
    (attacker,) = task.experiment.attackers
    sent = {}
    for defence in (PLAIN, "multi-krum", DEFAULT):
        (each,) = Clear(task, rule(task.experiment, defence)).rounds()
        sent[defence] = np.linalg.norm(each.updates[attacker - 1])
    assert len({round(float(length), 6) for length in sent.values()}) == 3
    assert max(sent, key=sent.__getitem__) == PLAIN


def test_attackers_who_send_the_same_are_asked_once(monkeypatch):
    task = loaded(clients=9, byzantine=3, rounds=1, steps=1, attack="min-max")
    asked = []
    sends = Participant.sends

    def counted(self, *arguments):
        asked.append(self.number)
        return sends(self, *arguments)

    monkeypatch.setattr(Participant, "sends", counted)
    (each,) = Clear(task, plain_average).rounds()
    attackers = task.experiment.attackers
    assert len(set(asked) & set(attackers)) == 1
    for number in attackers:
        np.testing.assert_array_equal(each.updates[number - 1], each.updates[attackers[0] - 1])


@pytest.mark.parametrize("attack", ["optimal-ipm", "lasting-mimic"])
def test_attackers_train_only_where_something_comes_of_it(monkeypatch, attack):
    def run(know="all"):
        trained.clear()
        experiment = Experiment(attack=attack, know=know, rounds=3, client_momentum=0.5)
        clear = Clear(Task.load(experiment), rule(experiment, DEFAULT))
        return {*experiment.attackers}, [each.model for each in clear.rounds()]

    trained = set[int]()
    train = Participant.train

    def noted(self, *args):
        trained.add(self.number)
        return train(self, *args)

    monkeypatch.setattr(Participant, "train", noted)
    attackers, models = run()
    assert not trained & attackers
    run(know="own")
    assert trained > attackers
    monkeypatch.setattr(Participant, "idle", False)
    np.testing.assert_array_equal(run()[1], models)
    assert trained > attackers


def test_attackers_who_send_different_things_are_all_asked():
    task = loaded(clients=9, byzantine=3, rounds=1, steps=1, attack="shift")
    (each,) = Clear(task, plain_average).rounds()
    one, other, _ = task.experiment.attackers
    assert not np.array_equal(each.updates[one - 1], each.updates[other - 1])


def test_the_attackers_part_is_what_they_weigh():
    task = loaded(clients=9, byzantine=3, rounds=1, steps=1, attack="zero")
    (each,) = Clear(task, plain_average).rounds()
    assert each.attackers_share == pytest.approx(1 / 3)
    (each,) = Clear(task, rule(task.experiment, "nnm+trimmed-mean")).rounds()
    assert each.attackers_share is None


def test_a_round_that_fails_leaves_the_model():
    task = loaded(**SMALL | {"byzantine": 2, "f": 1, "attack": "nan", "clients": 5})
    clear = Clear(task, rule(task.experiment, "multi-krum"))
    before = clear.model.copy()
    failed = clear.round(1)
    assert "multi-krum" in failed.failure
    assert failed.selected == ()
    np.testing.assert_array_equal(clear.model, before)
    assert clear.last is None


def test_a_rule_gets_to_know_the_last_aggregate():
    seen = []

    def noting(updates, past=START):
        seen.append((past.number, past.last))
        return Aggregate(np.full(updates.shape[1], past.number, float), (0,))

    task = loaded(**SMALL | {"rounds": 3})
    list(Clear(task, noting).rounds())
    assert [number for number, _ in seen] == [1, 2, 3]
    assert seen[0][1] is None
    assert [last.mean() for _, last in seen[1:]] == [1, 2]


@pytest.mark.parametrize("defence", ["centred-clipping(radius=0.1)", "bucketing+multi-krum", PLAIN])
def test_a_run_that_goes_on_gives_what_a_whole_one_gives(tmp_path, defence):
    """The last aggregate is told from two models; the order of buckets from the round's number."""
    experiment = Experiment(clients=12, byzantine=1, f=1, rounds=4, steps=1)
    whole = Clear(Task.load(experiment), rule(experiment, defence))
    *_, expected = whole.rounds()
    folder = RunFolder(tmp_path)
    folder.save(experiment.with_rounds(2))
    baselines.aggregate(folder, defence, 0)
    folder.save(experiment)
    baselines.aggregate(folder, defence, 2)
    (path,) = tmp_path.glob("*-4.f32")
    np.testing.assert_allclose(np.fromfile(path, "<f4"), expected.model, atol=1e-6)


def test_attackers_get_to_know_what_they_may():
    experiment = Experiment(clients=5, byzantine=1, attack="mimic", rounds=1, steps=1)
    (each,) = Clear(Task.load(experiment), plain_average).rounds()
    (attacker,) = experiment.attackers
    honest = np.delete(each.updates, attacker - 1, axis=0)
    assert any(np.array_equal(each.updates[attacker - 1], row) for row in honest)


def test_the_digits_need_no_download():
    assert len(data.load("digits").train) > 1000


@pytest.mark.parametrize("upload", ["bfloat16", "float16", "int8"])
def test_a_short_format_learns_as_float32_does(upload):
    """The same updates, rounded with error feedback: after some rounds the models are close."""
    fields = {"clients": 6, "byzantine": 1, "rounds": 6, "steps": 2}
    models = []
    for each in ("float32", upload):
        task = loaded(**fields, upload=each)
        *_, last = Clear(task, rule(task.experiment, DEFAULT)).rounds()
        models.append(last.model - task.first()[1])
    assert 0 < off(models[1], models[0]) < 0.1
    assert not task.experiment.resumes_in_the_clear


def test_a_run_in_the_clear_rounds_alike_every_time():
    """Its rounding is drawn from the seed, unlike that of a real client."""
    task = loaded(clients=6, byzantine=1, rounds=2, steps=1, upload="int8")
    one, two = ([*Clear(task, rule(task.experiment, DEFAULT)).rounds()][-1].model for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_an_attack_that_is_not_finite_is_rejected_in_any_format():
    task = loaded(clients=6, byzantine=1, rounds=1, steps=1, upload="int8", attack="nan")
    (only,) = Clear(task, rule(task.experiment, DEFAULT)).rounds()
    assert not set(only.selected) & set(task.experiment.attackers)
    assert np.isfinite(only.model).all()


@pytest.mark.parametrize("attack", ["backdoor", "dba", "neurotoxin", "layer-wise"])
def test_plain_averaging_learns_every_backdoor_and_honest_clients_know_of_none(attack):
    task, honest = (
        loaded(attack=name, clients=10, byzantine=3, rounds=8) for name in (attack, "none")
    )
    judge = Judge(task)
    success = [
        judge.scores(list(Clear(each, plain_average).rounds())[-1].model)["attack_success"]
        for each in (task, honest)
    ]
    assert success[0] is not None
    assert success[1] is not None
    assert success[0] > 0.15
    assert success[1] < 0.03


def test_attackers_of_a_distributed_backdoor_train_different_parts():
    task = loaded(attack="dba", clients=10, byzantine=3)
    model = task.model()
    changed = []
    for number in task.experiment.attackers:
        trained = task.training(number, model, task.experiment.attacking)._images
        changed.append((trained != task.examples(number).images).any(axis=(0, 1)))
    assert not any((one & other).any() for one, other in itertools.combinations(changed, 2))


def test_an_aggregate_is_rounded_before_it_moves_the_model_as_in_the_enclave():
    """1 + (2^-24 + 2^-50) rounds up at once; by way of float32 it is a tie, which stays at 1."""
    task = loaded(clients=5, byzantine=1, steps=1)
    manifest, _ = task.first()
    clear = Clear(task, lambda *_: Aggregate(np.full(manifest.dimension, 2**-24 + 2**-50), (0,)))
    clear.model = np.ones(manifest.dimension, np.float32)
    assert (clear.round(1).model == 1).all()
    np.testing.assert_array_equal(clear.last, np.full(manifest.dimension, 2**-24))
