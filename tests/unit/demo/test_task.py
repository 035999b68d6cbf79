"""What clients compute: the same in every process, and different for every client and round."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from ostraka.demo import task
from ostraka.demo.attacks import ATTACKS
from ostraka.demo.settings import Demo

SMALL = Demo(clients=9, byzantine=2, dim=300, rounds=3)
MODEL = np.zeros(SMALL.dim, np.float32)


def test_attacks_do_what_they_say():
    rng = np.random.default_rng(0)
    update = rng.normal(size=1000)
    length = np.linalg.norm(update)
    assert ATTACKS["sign-flip"](update, rng) @ update == pytest.approx(-10 * length**2)
    assert np.linalg.norm(ATTACKS["scale"](update, rng)) == pytest.approx(1000 * length)
    assert np.linalg.norm(ATTACKS["noise"](update, rng)) == pytest.approx(10 * length, rel=0.2)
    assert np.isnan(ATTACKS["nan"](update, rng)).sum() == 1


def test_another_process_computes_the_same_update():
    """With another number of threads, as the demo's clients have."""
    code = (
        "import sys; from ostraka.demo import task; from ostraka.demo.settings import Demo;"
        "demo = Demo(clients=9, byzantine=2, dim=30_000);"
        "update = task.update(demo, 1, 2, task.first_model(demo));"
        "sys.stdout.buffer.write(update.tobytes())"
    )
    demo = Demo(clients=9, byzantine=2, dim=30_000)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout == task.update(demo, 1, 2, task.first_model(demo)).tobytes()


@pytest.mark.parametrize("other", [(2, 1, 0), (1, 2, 0), (1, 1, 1)])
def test_updates_differ_by_client_round_and_seed(other):
    client, number, seed = other
    first = task.update(SMALL, 1, 1, MODEL)
    second = task.update(dataclasses.replace(SMALL, seed=seed), client, number, MODEL)
    assert not np.array_equal(first, second)


def test_an_honest_client_goes_half_the_way_to_the_optimum():
    (first, *_) = task.honest(SMALL)
    update = task.update(SMALL, first, 1, MODEL)
    assert update @ task.optimum(SMALL) == pytest.approx(0.5, abs=0.05)


def test_everybody_is_honest_or_attacks():
    attackers = task.attackers(SMALL)
    assert list(attackers.values()) == SMALL.attacks()
    assert sorted([*attackers, *task.honest(SMALL)]) == list(range(1, 10))


def test_plain_averaging_leaves_out_only_what_is_not_finite():
    rows = np.array([[1, 2], [3, np.nan], [5, 6]], np.float32)
    assert task.plain_average(rows).tolist() == [3, 4]
    assert np.isnan(task.plain_average(rows[1:2])).all()
