"""Attacks that know updates of others: IPM, shift, ALIE, Mimic, Min-Max, Min-Sum and Fang."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.errors import ConfigError
from ostraka_lab.attacks import ATTACKS as BY_NAME
from ostraka_lab.attacks import informed
from ostraka_lab.attacks.informed import mimic


def inner_product_with_honest_mean(sent, honest, byzantine):
    everybody = np.vstack([honest, *[sent] * byzantine]).astype(np.float64)
    return everybody.mean(axis=0) @ honest.mean(axis=0, dtype=np.float64)


@given(st.integers(1, 6), st.integers(0, 1000))
def test_ipm_turns_the_mean_back_beyond_n_minus_f_over_f(scene, updates, byzantine, seed):
    honest = updates(9, 40, seed=seed)
    least = len(honest) / byzantine
    for scale, sign in ((1.01 * least, -1), (0.99 * least, 1)):
        sent = informed.ipm(scene(honest, scale=scale, byzantine=byzantine))
        assert sign * inner_product_with_honest_mean(sent, honest, byzantine) > 0


def test_ipm_is_the_opposite_of_the_mean(scene):
    honest = np.array([[1, 2, 4], [3, 2, -4]], dtype=np.float32)
    assert informed.ipm(scene(honest, scale=0.5)).tolist() == [-1, -1, 0]


def test_shift_moves_what_the_attacker_would_have_sent_by_the_honest_mean(scene):
    """The mean is (2, 2, 0)."""
    honest = np.array([[1, 2, 4], [3, 2, -4]], dtype=np.float32)
    own = np.array([5, 1, 1], dtype=np.float32)
    sent = informed.shift(scene(honest, own=own, scale=1.5))
    assert sent.dtype == np.float32
    assert sent.tolist() == [2, -2, 1]


def test_alie_is_the_stated_number_of_deviations_off_the_mean(scene):
    """Columns of mean 2, 2 and 0 and of deviation 1, 0 and 4."""
    honest = np.array([[1, 2, 4], [3, 2, -4]], dtype=np.float32)
    assert informed.alie(scene(honest, scale=1.5)).tolist() == [0.5, 2, -6]


@given(st.integers(0, 1000), st.floats(0, 3))
def test_alie_stays_within_its_deviations_in_every_coordinate(scene, updates, seed, z):
    honest = updates(9, 40, seed=seed)
    sent = informed.alie(scene(honest, scale=z))
    mean, deviation = honest.mean(axis=0), honest.std(axis=0)
    np.testing.assert_allclose((mean - sent) / deviation, z, atol=1e-4)


@pytest.mark.parametrize(
    ("n", "f", "z"),
    [
        # s = 26 - 24 = 2 supporters among 26, so the quantile of 24/26.
        (50, 24, 1.42607687),
        # s = 26 - 12 = 14 among 38: 24/38.
        (50, 12, 0.33603814),
        # s = 33 - 12 = 21 among 52: 31/52.
        (64, 12, 0.24340418),
        # s = 13 - 5 = 8 among 20: 12/20.
        (25, 5, 0.25334710),
        # s = 7 - 3 = 4 among 9: 5/9.
        (12, 3, 0.13971030),
        # s = 3 - 1 = 2 among 4: one half, so the mean itself.
        (5, 1, 0.0),
    ],
)
def test_z_max_is_the_quantile_at_which_supporters_suffice(n, f, z):
    assert informed.z_max(n, f) == pytest.approx(z, abs=1e-7)


def test_supporters_are_as_many_as_the_quantile_says():
    """Of many normal honest coordinates, s out of n - f lie further out than the attackers."""
    n, f = 50, 24
    drawn = np.random.default_rng(0).normal(size=200_000)
    beyond = np.mean(drawn < -informed.z_max(n, f))
    assert beyond == pytest.approx(2 / 26, abs=0.003)


@pytest.mark.parametrize(("n", "f"), [(2, 0), (5, 3), (10, 10)])
def test_z_max_says_what_it_needs(n, f):
    with pytest.raises(ConfigError, match="n >= 3 and f < n / 2"):
        informed.z_max(n, f)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_all_attackers_send_the_same_honest_update(scene, updates, m, seed):
    honest = updates(m, 40, seed=seed)
    one, other = (mimic(scene(honest, seed=seed)) for seed in (1, 2))
    np.testing.assert_array_equal(one, other)
    assert np.count_nonzero((honest == one).all(axis=1)) == 1


@given(st.integers(2, 12), st.integers(0, 1000))
def test_it_is_the_one_most_aligned_with_the_direction_of_most_variance(scene, updates, m, seed):
    honest = updates(m, 40, seed=seed).astype(np.float64)
    top = np.linalg.svd(honest - honest.mean(axis=0))[2][0]
    expected = honest[np.argmax(np.abs(honest @ top))]
    np.testing.assert_array_equal(mimic(scene(honest.astype(np.float32))), expected)


def test_the_order_of_the_known_updates_does_not_matter(scene, updates):
    honest = updates(9, 40)
    shuffled = np.random.default_rng(3).permutation(honest)
    np.testing.assert_array_equal(mimic(scene(honest)), mimic(scene(shuffled)))


def test_an_outlying_client_is_mimicked_in_every_round(scene, updates):
    """Where data differ, the choice is stable though nothing is remembered."""
    far = 4 * updates(1, 40, seed=99)[0]
    for number in range(10):
        honest = updates(9, 40, seed=number, noise=0.5)
        honest[5] += far
        np.testing.assert_array_equal(mimic(scene(honest)), honest[5])


def test_it_is_a_copy(scene, updates):
    honest = updates(4, 10)
    assert not np.shares_memory(mimic(scene(honest)), honest)


def test_a_model_that_has_run_away_is_no_error(scene):
    known = np.full((3, 4), np.nan, dtype=np.float32)
    assert np.isnan(mimic(scene(known))).all()


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


@pytest.mark.parametrize("bound", ["min-max", "min-sum"])
@pytest.mark.parametrize(
    ("name", "perturbation"), list(zip(["", "-sign", "-sd"], PERTURBATIONS, strict=True))
)
def test_every_perturbation_has_a_name(scene, updates, bound, name, perturbation):
    given = scene(updates(9, 40))
    attack = informed.min_max if bound == "min-max" else informed.min_sum
    send = BY_NAME[bound + name].send
    assert send is not None
    np.testing.assert_array_equal(send(given), attack(given, perturbation))


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


def federation(scene, honest, byzantine, **more):
    """All rows that the server gets, honest ones first."""
    sent = [
        informed.fang(scene(honest, byzantine=byzantine, seed=seed, **more))
        for seed in range(byzantine)
    ]
    return np.vstack([honest, *sent]).astype(np.float64)


@settings(max_examples=50)
@given(f=st.integers(1, 5), more=st.integers(3, 9), seed=st.integers(0, 1000))
def test_krum_selects_an_attacker(scene, updates, f, more, seed):
    honest = updates(f + more, 60, seed=seed, noise=3.0)
    rows = federation(scene, honest, f)
    (selected,) = krum.multi_krum(gram.naive(rows), f, 1)
    assert selected >= len(honest)


def test_multi_krum_keeps_every_copy(scene, updates):
    honest = updates(16, 300, noise=3.0)
    rows = federation(scene, honest, 4)
    assert {16, 17, 18, 19} <= set(krum.multi_krum(gram.naive(rows), 4, 16))


def test_twice_the_step_is_not_selected(scene, updates):
    """Halving stops at once: the last step that failed was twice as long."""
    for seed in range(20):
        honest = updates(12, 60, seed=seed, noise=3.0)
        rows = federation(scene, honest, 3, scale=2.0)
        (selected,) = krum.multi_krum(gram.naive(rows), 3, 1)
        assert selected < len(honest)


def test_the_bound_by_hand():
    """Updates 1, 2, 3 and 10, one attacker. The best score is 1 + 1, of the update 2.

    A copy's score has 4 - 1 - 1 = 2 terms, so it may be sqrt(2 / 2) away from the furthest, at 10.
    """
    honest = np.array([1.0, 2.0, 3.0, 10.0])
    krum = informed.Simulated(np.outer(honest, honest), -honest, 1.0, 1)
    assert krum.bound() == pytest.approx(11)


def test_nothing_beyond_the_bound_is_selected(scene, updates):
    for seed in range(20):
        honest = updates(12, 60, seed=seed)
        back = -np.sign(honest.mean(axis=0, dtype=np.float64))
        bound = informed.Simulated.of(honest, back, 3).bound()
        for factor in (1.001, 2.0, 10.0):
            rows = np.vstack([honest, *[factor * bound * back] * 3]).astype(np.float64)
            assert krum.multi_krum(gram.naive(rows), 3, 1)[0] < len(honest)


def test_goes_back_by_the_same_step_in_every_coordinate(scene, updates):
    honest = updates(12, 300)
    sent = informed.fang(scene(honest, byzantine=3))
    assert (np.sign(sent) == -np.sign(honest.mean(axis=0))).all()
    np.testing.assert_allclose(np.abs(sent), np.abs(sent).mean(), rtol=1e-3)


def test_copies_are_close_and_not_equal(scene, updates):
    *_, one, other = federation(scene, updates(12, 300), 3)
    assert 0 < np.linalg.norm(one - other) < 1e-3 * np.linalg.norm(one)


@pytest.mark.parametrize("m", [4, 5, 7, 8])
def test_with_few_known_updates_it_simulates_fewer_attackers(scene, updates, m):
    """Five attackers that know less than Krum needs of their kind still send something useful."""
    known = updates(m, 60, noise=3.0)
    sent = informed.fang(scene(known, byzantine=5, clients=20))
    assert sent @ known.mean(axis=0) < -1e-3


def test_gives_up_where_krum_cannot_be_fooled(scene, updates):
    """Honest updates that all but agree: even 0 is too far off."""
    honest = updates(12, 60, noise=0.01)
    sent = informed.fang(scene(honest, byzantine=3))
    assert np.linalg.norm(sent) < 1e-4


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_model_that_stands_still_or_has_run_away_is_no_error(scene, value):
    known = np.full((6, 5), value, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert informed.fang(scene(known)).shape == (5,)
