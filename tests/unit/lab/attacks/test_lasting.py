"""Attacks over rounds, against their formulae written out for a run of several."""

import numpy as np
import pytest

from ostraka_lab.attacks import lasting

D = 40


def play(attack, learn, scenes):
    """What an attacker sends in each of these scenes, which follow each other."""
    memory, sent = None, []
    for build in scenes:
        memory = learn(build(memory))
        sent.append(attack(build(memory)))
    return sent


def runs(updates, rounds, *, noise=2.0):
    """Honest updates of some rounds, of clients that differ in the same way in all of them."""
    own = updates(9, D, seed=99, noise=noise)
    return [own + updates(9, D, seed=number) for number in range(rounds)]


def mimicked(honest, rounds):
    """The rows that a mimic follows."""
    first = honest[0].astype(np.float64)
    centre = first.mean(axis=0)
    z = np.linalg.svd(first - centre)[2][0]
    chosen = [np.argmax(np.abs(first @ z))]
    for t, now in enumerate(honest[1:], 1):
        if t >= rounds:
            chosen.append(chosen[-1])
            continue
        rows = now.astype(np.float64)
        centre = t / (t + 1) * centre + rows.mean(axis=0) / (t + 1)
        pull = sum(((row - centre) @ z) * (row - centre) for row in rows)
        z = t / (t + 1) * z + pull / np.linalg.norm(pull) / (t + 1)
        z /= np.linalg.norm(z)
        chosen.append(np.argmax(np.abs(rows @ z)))
    return chosen


@pytest.mark.parametrize("rounds", [1, 4, 30])
def test_mimic_learns_as_the_paper_says(scene, updates, rounds):
    honest = runs(updates, 8, noise=1.0)
    scenes = [
        lambda memory, known=known: scene(known, scale=float(rounds), memory=memory)
        for known in honest
    ]
    sent = play(lasting.mimic, lasting.watched, scenes)
    for row, known, chosen in zip(sent, honest, mimicked(honest, rounds), strict=True):
        np.testing.assert_array_equal(row, known[chosen])


def test_mimic_finds_what_no_single_round_shows(scene, updates):
    """One client differs by less than the noise of a round, and in the same way in every round."""
    apart = updates(1, D, seed=7, noise=0.0)[0]
    followed = []
    for start in range(20):
        memory = None
        for number in range(15):
            known = updates(9, D, seed=100 * start + number, noise=2.0)
            known[5] += 2 * apart
            memory = lasting.watched(scene(known, scale=30.0, memory=memory))
        assert memory is not None
        followed.append(memory.chosen)
    assert followed.count(5) > 16


def test_mimic_survives_a_client_that_leaves(scene, updates):
    known = updates(9, D)
    memory = lasting.Watch(20, np.zeros(D), np.zeros(D), 8)
    sent = lasting.mimic(scene(known[:5], scale=3.0, memory=memory))
    np.testing.assert_array_equal(sent, known[4])


def pushed(scene, rounds, *, moves, scale=8.0, d=D):
    """What PoisonedFL sends while the model moves by these aggregates (rounds, d)."""
    model = np.cumsum(np.vstack([np.zeros(d), moves]), axis=0).astype(np.float32)
    own = np.ones((1, d), np.float32)
    scenes = [
        lambda memory, at=at: scene(
            own,
            scale=scale,
            number=at + 1,
            memory=memory,
            model=model[at],
            last=moves[at - 1] if at else None,
        )
        for at in range(rounds)
    ]
    return play(lasting.poisoned_fl, lasting.pushed, scenes)


def test_poisoned_fl_sends_what_the_paper_says(scene, updates):
    moves = updates(6, D, seed=3).astype(np.float64)
    first, *sent = pushed(scene, 6, moves=moves)
    np.testing.assert_array_equal(first, np.ones(D))
    signs, before = np.sign(sent[0]), None
    assert set(signs) == {-1.0, 1.0}
    for aggregate, row in zip(moves, sent, strict=False):
        length = np.linalg.norm(aggregate)
        left = aggregate if before is None else aggregate - length * before / np.linalg.norm(before)
        expected = 8 * length * np.abs(left) / np.linalg.norm(left) * signs
        np.testing.assert_allclose(row, expected, rtol=1e-4)
        before = expected


@pytest.mark.parametrize(("follows", "lengths"), [(True, [8, 8]), (False, [8, 5.6])])
def test_poisoned_fl_goes_on_with_less_where_it_has_no_effect(scene, updates, follows, lengths):
    """Every ten rounds it asks whether the model has followed its signs."""
    moves = updates(11, D, seed=3).astype(np.float64)
    if follows:
        signs = np.sign(pushed(scene, 2, moves=moves)[1])
        moves = np.abs(moves) * signs
    sent = pushed(scene, 11, moves=moves)
    measured = [np.linalg.norm(sent[at]) / np.linalg.norm(moves[at - 1]) for at in (9, 10)]
    np.testing.assert_allclose(measured, lengths, rtol=1e-4)


def test_poisoned_fl_is_never_weaker_than_half_an_aggregate(scene, updates):
    moves = updates(140, D, seed=3).astype(np.float64)
    sent = pushed(scene, 140, moves=moves)
    # 8 x 0.7^7 = 0.66, and 0.7 of that is below a half.
    assert np.linalg.norm(sent[-1]) / np.linalg.norm(moves[-2]) == pytest.approx(
        8 * 0.7**7, rel=1e-3
    )


@pytest.mark.parametrize(
    ("aligned", "strength"), [(603_617, 0.7), (603_619, 1.0)], ids=["chance", "effect"]
)
def test_chance_is_the_binomial_quantile_of_the_paper_s_code(aligned, strength):
    """For 1,204,682 coordinates its code has 603,618 at 99 %."""
    signs = np.ones(1_204_682)
    moved = np.where(np.arange(len(signs)) < aligned, 1, -1).astype(np.float32)
    assert lasting._adapted(1.0, moved, signs) == strength


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_model_that_stands_still_or_has_run_away_is_no_error(scene, value):
    known = np.full((6, 5), value, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        for attack, learn in (
            (lasting.mimic, lasting.watched),
            (lasting.poisoned_fl, lasting.pushed),
        ):
            last = known[0].astype(np.float64)
            memory = learn(scene(known, last=last, scale=9.0))
            again = scene(known, last=last, scale=9.0, memory=memory, number=2)
            assert attack(scene(known, memory=learn(again))).shape == (5,)
