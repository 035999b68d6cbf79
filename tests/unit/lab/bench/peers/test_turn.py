"""Everybody who is here takes a turn, and is judged by what it selects."""

import importlib.util

import numpy as np
import pytest

from ostraka.errors import ConfigError
from ostraka_lab.bench.peers import clear, peer_process
from ostraka_lab.bench.peers.contest import Contest

CONTEST = Contest(32, 6000)
HONEST = sorted(set(range(32)) - CONTEST.attackers)
OURS = [name for name in peer_process.ENTRANCES if name.startswith("ostraka")]


def take(name, contest=CONTEST):
    return peer_process.take(name, contest, lambda *_: None)


@pytest.mark.parametrize("name", ["blas-clear", *OURS])
def test_those_that_work_on_differences_select_the_honest(name):
    figures = take(name)
    assert figures["selected"] == HONEST
    assert figures["cpu_s"] > 0
    assert figures["wall_s"] > 0
    assert 10 < figures["inputs_rss_mib"] <= figures["peak_rss_mib"]


def test_the_clear_baseline_is_the_mean_of_those_that_it_selects():
    rows = np.stack(list(CONTEST.updates()))
    found = clear.multi_krum(rows, CONTEST.f, CONTEST.k)
    np.testing.assert_allclose(found, rows[HONEST].mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("name", OURS)
def test_all_roles_of_ours_are_counted(name):
    figures = take(name)
    assert figures["cpu_s"] == figures["enclave_cpu_s"] + figures["worker_cpu_s"]
    assert (figures["worker_cpu_s"] > 0) == ("inside" not in name)
    assert figures["sealing_cpu_s"] > 0


def test_the_floor_averages_k_rows_of_the_same_updates():
    assert take("floor")["selected"] == list(range(CONTEST.k))


def test_more_threads_select_the_same():
    two = Contest(32, 6000, threads=2)
    assert take("ostraka-exact-sketch", two)["selected"] == HONEST


def test_a_sketch_needs_long_updates():
    with pytest.raises(ConfigError, match="too short for a sketch"):
        take("ostraka-exact-sketch", Contest(8, 2000))


@pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs ostraka[flower]")
def test_flower_is_wrong_on_weights_and_right_on_differences():
    assert set(take("flower")["selected"]) & CONTEST.attackers
    assert take("flower", Contest(32, 6000, centred=True))["selected"] == HONEST
