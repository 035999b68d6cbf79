"""Min-Max and Min-Sum: within their bound, and by no more than needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.core import gram
from ostraka_lab.attacks import informed

PERTURBATIONS = [informed.inverse_unit, informed.inverse_sign, informed.inverse_deviation]


def squares(sent, honest):
    """Squared distances (m,) from the honest updates."""
    return np.square(sent.astype(np.float64) - honest).sum(axis=1)


def largest(sent, honest):
    """Of the distances, in those of the most distant pair."""
    return np.sqrt(squares(sent, honest).max() / gram.naive(honest.astype(np.float64)).max())


def total(sent, honest):
    """Of the squared distances, in those of the honest update that has most."""
    between = gram.naive(honest.astype(np.float64))
    return squares(sent, honest).sum() / between.sum(axis=1).max()


ATTACKS = [(informed.min_max, largest), (informed.min_sum, total)]


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
@pytest.mark.parametrize(("attack", "measure"), ATTACKS)
@given(m=st.integers(2, 12), seed=st.integers(0, 1000), noise=st.floats(0.01, 10))
def test_goes_to_the_bound_and_no_further(
    *, scene, updates, attack, measure, perturbation, m, seed, noise
):
    honest = updates(m, 30, seed=seed, noise=noise)
    sent = attack(scene(honest), perturbation)
    assert measure(sent, honest) == pytest.approx(1, rel=1e-4)
    further = attack(scene(honest, scale=1.01), perturbation)
    assert measure(further, honest) > 1.001


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
@pytest.mark.parametrize(("attack", "measure"), ATTACKS)
@given(seed=st.integers(0, 1000), scale=st.floats(0, 1))
def test_every_shorter_step_keeps_within_the_bound(
    *, scene, updates, attack, measure, perturbation, seed, scale
):
    """So that the step is the largest of all, not one crossing of several."""
    honest = updates(7, 30, seed=seed)
    assert measure(attack(scene(honest, scale=scale), perturbation), honest) <= 1 + 1e-4


@pytest.mark.parametrize("attack", [informed.min_max, informed.min_sum])
def test_steps_along_the_chosen_direction(scene, updates, attack):
    honest = updates(9, 200)
    mean, deviation = honest.mean(axis=0, dtype=np.float64), honest.std(axis=0, dtype=np.float64)
    towards = {
        informed.inverse_unit: -mean,
        informed.inverse_sign: -np.sign(mean),
        informed.inverse_deviation: -deviation,
    }
    for perturbation, direction in towards.items():
        step = attack(scene(honest), perturbation) - mean
        cosine = step @ direction / np.linalg.norm(step) / np.linalg.norm(direction)
        assert cosine == pytest.approx(1, abs=1e-5)


def test_by_hand(scene):
    """Updates 1 and 3, so mean 2, deviation 1, and 2 apart. Towards 0 the update 3 is the bound:

    Min-Max stops 2 from it, at 1. Min-Sum stops where both squares sum to 4, at 2 - 1.
    """
    honest = np.array([[1.0], [3.0]], dtype=np.float32)
    assert informed.min_max(scene(honest)).tolist() == [1.0]
    assert informed.min_sum(scene(honest)).tolist() == [1.0]
    wider = np.array([[1.0], [3.0], [5.0]], dtype=np.float32)
    # The most distant are 4 apart: 5 - 4 = 1. Sums: 3 (3 - x)^2 + 8 = 16 + 4.
    assert informed.min_max(scene(wider)).tolist() == [1.0]
    assert informed.min_sum(scene(wider)).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("perturbation", PERTURBATIONS)
@pytest.mark.parametrize("attack", [informed.min_max, informed.min_sum])
@pytest.mark.parametrize("value", [0.0, 0.1])
def test_where_all_agree_there_is_no_room(scene, attack, perturbation, value):
    honest = np.full((4, 6), value, dtype=np.float32)
    np.testing.assert_allclose(attack(scene(honest), perturbation), honest[0], rtol=1e-5)
