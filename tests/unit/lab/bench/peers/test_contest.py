"""The updates that everybody gets, and who should be selected of them."""

import json

import numpy as np
import pytest

from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.errors import ConfigError
from ostraka_lab.bench.peers.contest import SCALE, Contest
from ostraka_lab.bench.peers.reference import averaged, selections

CONTEST = Contest(12, 4000)


def test_updates_are_small_beside_the_weights_and_an_attackers_is_the_opposite():
    weights = CONTEST.weights
    rows = np.stack(list(CONTEST.updates()))
    sizes = np.linalg.norm(rows, axis=1) / np.linalg.norm(weights)
    assert sizes == pytest.approx(SCALE, rel=0.1)
    honest = [row for row in range(12) if row not in CONTEST.attackers]
    mean = rows[honest].mean(axis=0)
    assert len(CONTEST.attackers) == CONTEST.f == 2
    assert all((rows[row] @ mean < 0) == (row in CONTEST.attackers) for row in range(12))


def test_seeds_make_the_contest():
    assert np.array_equal(CONTEST.update(3), Contest(12, 4000).update(3))
    assert not np.array_equal(CONTEST.update(3), Contest(12, 4000, seed=1).update(3))
    assert Contest(**json.loads(CONTEST.to_json())) == CONTEST


def test_whole_weights_are_the_model_and_the_difference():
    np.testing.assert_allclose(
        CONTEST.trained(0).astype(np.float64) - CONTEST.weights, CONTEST.update(0), atol=3e-7
    )
    centred = Contest(12, 4000, centred=True)
    assert np.array_equal(centred.trained(0), CONTEST.update(0))


def test_float64_selects_the_honest_by_either_convention():
    honest = sorted(set(range(12)) - CONTEST.attackers)
    assert selections(CONTEST) == {"n-f-2": honest, "n-f-1": honest}


def test_the_conventions_are_those_that_they_say(monkeypatch):
    """On a matrix where one neighbour more turns the selection around."""
    rows = np.random.default_rng(34).standard_normal((12, 3))
    measured = gram.naive(rows)
    monkeypatch.setattr("ostraka_lab.bench.peers.reference._distances", lambda contest: measured)
    found = selections(CONTEST)
    assert tuple(found["n-f-2"]) == krum.multi_krum(measured, 2, 10)
    others = np.sort(measured, axis=1)[:, 1:]
    scores = others[:, : 12 - 2 - 1].sum(axis=1)
    assert found["n-f-1"] == sorted(np.argsort(scores)[:10].tolist())
    assert found["n-f-1"] != found["n-f-2"]


@pytest.mark.parametrize("from_weights", [False, True])
def test_who_was_averaged_is_found_in_the_aggregate(from_weights):
    rows = [0, 2, 3, 7, 11]
    full = np.stack([CONTEST.trained(row) if from_weights else CONTEST.update(row) for row in rows])
    assert averaged(CONTEST, full.mean(axis=0), from_weights=from_weights) == rows


@pytest.mark.parametrize("options", [{"clients": 4}, {"dim": 100}, {"threads": 0}])
def test_impossible_contests_are_refused(options):
    with pytest.raises(ConfigError):
        Contest(**{"clients": 12, "dim": 4000} | options)
