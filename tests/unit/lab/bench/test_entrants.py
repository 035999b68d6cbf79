"""The updates that every peer gets, and what each peer selects of them."""

import importlib.util
import json

import numpy as np
import pytest

from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.errors import ConfigError
from ostraka_lab.bench import entrants
from ostraka_lab.bench.entrants import SCALE, Contest, averaged, multi_krum_in_the_clear
from ostraka_lab.bench.peers import selections

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
    monkeypatch.setattr("ostraka_lab.bench.peers._distances", lambda contest: measured)
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


@pytest.mark.parametrize("options", [{"clients": 4}, {"dimension": 100}, {"threads": 0}])
def test_impossible_contests_are_refused(options):
    with pytest.raises(ConfigError):
        Contest(**{"clients": 12, "dimension": 4000} | options)


LARGER = Contest(32, 6000)
LARGER_HONEST = sorted(set(range(32)) - LARGER.attackers)
OURS = [name for name in entrants.ENTRANTS if name.startswith("ostraka")]


def take(name, contest=LARGER):
    return entrants.take_turn(name, contest, lambda *_: None)


@pytest.mark.parametrize("name", ["blas-clear", *OURS])
def test_those_that_work_on_differences_select_the_honest(name):
    figures = take(name)
    assert figures["selected"] == LARGER_HONEST
    assert figures["cpu_s"] > 0
    assert figures["wall_s"] > 0
    # The kernel counts pages in batches, so the peak may lag behind by a part of a MiB.
    assert 10 < figures["inputs_rss_mib"] <= figures["peak_rss_mib"] + 1


def test_the_clear_baseline_is_the_mean_of_those_that_it_selects():
    rows = np.stack(list(LARGER.updates()))
    found = multi_krum_in_the_clear(rows, LARGER.f, LARGER.k)
    np.testing.assert_allclose(found, rows[LARGER_HONEST].mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("name", OURS)
def test_all_roles_of_ours_are_counted(name):
    figures = take(name)
    assert figures["cpu_s"] == figures["enclave_cpu_s"] + figures["worker_cpu_s"]
    assert (figures["worker_cpu_s"] > 0) == ("inside" not in name)
    assert figures["sealing_cpu_s"] > 0
    assert 0 < figures["receiving_cpu_s"] < figures["enclave_cpu_s"]
    clients = figures["sealing_cpu_s"]
    assert figures["clients_cpu_s"] == clients
    assert figures["all_roles_cpu_s"] == pytest.approx(figures["cpu_s"] + clients)
    value = 1 if "int8" in name else 4
    assert figures["uploaded_bytes"] == LARGER.clients * (LARGER.dimension * value + 16)


PLAIN = ("cpu_s", "clients_cpu_s", "unpacking_cpu_s")


def test_a_plain_federation_packs_and_unpacks_its_updates():
    figures = take("blas-clear")
    assert all(figures[part] > 0 for part in PLAIN)
    assert figures["all_roles_cpu_s"] == pytest.approx(sum(figures[part] for part in PLAIN))


def test_the_clients_of_the_floor_seal():
    figures = take("floor")
    assert "unpacking_cpu_s" not in figures
    assert figures["all_roles_cpu_s"] == pytest.approx(figures["cpu_s"] + figures["clients_cpu_s"])


def test_what_is_posted_arrives_as_it_was():
    post = entrants.Post()
    values = CONTEST.update(0)
    arrived = post.array(values)
    assert arrived is not values
    assert np.array_equal(arrived, values)
    assert all(seconds > 0 for seconds in post.costs().values())


def test_the_floor_averages_k_rows_of_the_same_updates():
    assert take("floor")["selected"] == list(range(LARGER.k))


def test_more_threads_select_the_same():
    two = Contest(32, 6000, threads=2)
    assert take("ostraka-exact-sketch", two)["selected"] == LARGER_HONEST


def test_a_sketch_needs_long_updates():
    with pytest.raises(ConfigError, match=r"too short for a sketch.*multi-krum needs 4096 columns"):
        take("ostraka-exact-sketch", Contest(8, 2000))


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs ostraka[flower]")
def test_flower_is_wrong_on_weights_and_right_on_differences():
    figures = take("flower")
    assert set(figures["selected"]) & LARGER.attackers
    assert all(figures[part] > 0 for part in PLAIN)
    assert take("flower", Contest(32, 6000, centred=True))["selected"] == LARGER_HONEST
