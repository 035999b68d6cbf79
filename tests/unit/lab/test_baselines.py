"""The federation in the clear: what Ostraka is compared with, and must be equal to."""

import numpy as np
import pytest

import ostraka
from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.errors import ConfigError, LeakyMasking
from ostraka_lab import data
from ostraka_lab.baselines import Clear, clip, multi_krum, plain_average, squared_distances
from ostraka_lab.experiment import Experiment, Task

RNG = np.random.default_rng(6)


def test_plain_averaging_takes_everything():
    rows = RNG.normal(size=(5, 20)).astype(np.float32)
    rows[0] *= 1e6
    assert plain_average(rows).selected == (0, 1, 2, 3, 4)
    np.testing.assert_allclose(plain_average(rows).mean, rows.mean(axis=0, dtype=np.float64))
    rows[1, 3] = np.nan
    assert np.isnan(plain_average(rows).mean).sum() == 1


def test_distances_are_those_of_law_2():
    rows = RNG.normal(size=(6, 300))
    np.testing.assert_allclose(squared_distances(rows), gram.naive(rows), atol=1e-10)


def test_a_long_row_is_clipped_as_the_enclave_does_it():
    rows = RNG.normal(size=(7, 64)).astype(np.float32)
    rows[2] *= 1000
    norms = np.linalg.norm(clip(rows, 1), axis=1)
    limit = 2.0 ** np.ceil(np.log2(4 * np.median(np.linalg.norm(rows.astype(np.float64), axis=1))))
    np.testing.assert_allclose(norms[2], limit)
    np.testing.assert_allclose(np.delete(clip(rows, 1), 2, 0), np.delete(rows, 2, 0))


def test_a_nan_lowers_n_and_f_together():
    rows = (1 + 0.1 * RNG.normal(size=(9, 50))).astype(np.float32)
    rows[4, 0] = np.nan
    result = multi_krum(3, None)(rows)
    expected = krum.multi_krum(squared_distances(clip(np.delete(rows, 4, 0), 3)), 2, 6)
    assert [row - (row > 4) for row in result.selected] == list(expected)
    assert 4 not in result.selected


def recorded(**fields):
    """The updates of a run, round by round."""
    experiment = Experiment(**fields)
    try:
        task = Task.load(experiment)
    except ConfigError as absent:
        pytest.skip(str(absent))
    rule = multi_krum(experiment.byzantine, experiment.k)
    for each in Clear(task, rule).rounds():
        yield each, rule(each.updates)


def gap(updates, f):
    """How far the scores of the last selected and the first dropped client lie apart."""
    scores = np.sort(krum.krum_scores(squared_distances(clip(updates, f)), f))
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
    for each, reference in recorded(**fields):
        with pytest.warns(LeakyMasking) if masking == "gaussian" else _nothing():
            result = ostraka.run_round(each.updates, f=f, masking=masking)
        # Each score is the sum of n - f - 2 distances.
        error = 2 * (n - f - 2) * result.distance_error
        if gap(each.updates, f) <= error:
            continue
        compared += 1
        assert result.selected == reference.selected
        off = np.linalg.norm(result.aggregate - reference.mean) / np.linalg.norm(reference.mean)
        assert off < 1e-5
    assert compared


def _nothing():
    from contextlib import nullcontext

    return nullcontext()


def test_attackers_get_to_know_what_they_may():
    experiment = Experiment(clients=5, byzantine=1, attack="mimic", rounds=1, steps=1)
    (each,) = Clear(Task.load(experiment), plain_average).rounds()
    (attacker,) = experiment.attackers
    honest = np.delete(each.updates, attacker - 1, axis=0)
    assert any(np.array_equal(each.updates[attacker - 1], row) for row in honest)


def test_the_digits_need_no_download():
    assert len(data.load("digits").train) > 1000
