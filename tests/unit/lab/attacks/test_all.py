"""What holds for every attack, and what the table of docs/attacks.md says of it."""

from pathlib import Path

import numpy as np
import pytest

from ostraka.core import rules
from ostraka.errors import ConfigError
from ostraka_lab.attacks import ATTACKS
from ostraka_lab.defence import Defence, Plain

DOCUMENT = Path(__file__).parents[4] / "docs" / "attacks.md"
# A row of its first table begins with a name in code.
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in DOCUMENT.read_text("utf-8").partition("\n## ")[0].splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
NAMES = {
    *("sign-flip", "scaled", "gaussian", "zero", "nan", "label-flip", "ipm", "alie"),
    *("min-max", "min-sum", "mimic", "fang", "backdoor"),
    *("optimal-ipm", "optimal-alie", "shift"),
    *("min-max-sign", "min-max-sd", "min-sum-sign", "min-sum-sd", "optimal-unit", "optimal-sign"),
    *("rop", "optimal-rop", "sparse-hybrid", "optimal-sparse-hybrid", "skew", "optimal-skew"),
    *("flanders-lie", "flanders-min-max", "flanders-opt", "lasting-mimic", "poisoned-fl"),
    *("dba", "neurotoxin", "layer-wise"),
}
SENDING = [attack for attack in ATTACKS.values() if attack.send is not None]
every = pytest.mark.parametrize("attack", SENDING, ids=lambda attack: attack.name)
knowing = pytest.mark.parametrize(
    "attack", [each for each in SENDING if each.needs_known], ids=lambda attack: attack.name
)
unknowing = pytest.mark.parametrize(
    "attack", [each for each in SENDING if not each.needs_known], ids=lambda attack: attack.name
)


def test_there_are_all_of_them():
    assert set(ATTACKS) == NAMES
    for name, attack in ATTACKS.items():
        assert attack.name == name
        assert attack.send or attack.poison


@every
def test_sends_one_float32_update(scene, updates, attack):
    known = updates(9, 40)
    sent = attack.send(scene(known))
    assert sent.shape == (40,)
    assert sent.dtype == np.float32
    assert not np.shares_memory(sent, known)


@every
def test_changes_nothing_that_it_is_given(scene, updates, attack):
    known, own = updates(9, 40), updates(1, 40, seed=5)[0]
    before = known.copy(), own.copy()
    attack.send(scene(known, own=own))
    np.testing.assert_array_equal(known, before[0])
    np.testing.assert_array_equal(own, before[1])


@every
def test_takes_what_nobody_may_write_to(scene, updates, attack):
    """As arrays that several attackers share."""
    known = updates(9, 40)
    known.flags.writeable = False
    attack.send(scene(known))


@every
def test_the_same_seed_sends_the_same(scene, updates, attack):
    known = updates(9, 40)
    one, again = (attack.send(scene(known, seed=4)) for _ in range(2))
    np.testing.assert_array_equal(one, again)


@knowing
def test_colluders_send_the_same_but_for_noise_of_their_own(scene, updates, attack):
    """But for a shift and a backdoor, which are of their own updates. Those that say so send the
    same to the bit: a run in the clear asks one of them only.
    """
    known = updates(9, 40)
    one, other = (attack.send(scene(known, own=known[seed], seed=seed)) for seed in (1, 2))
    if attack.alike:
        np.testing.assert_array_equal(one, other)
    elif attack.name == "shift":
        np.testing.assert_allclose(one - known[1], other - known[2], atol=1e-6)
    elif attack.poison is None:
        assert not np.array_equal(one, other)
        np.testing.assert_allclose(one, other, rtol=1e-3)


@unknowing
def test_those_that_need_no_knowledge_are_not_alike(attack):
    assert not attack.alike


@knowing
def test_longer_than_a_block_of_columns(scene, updates, attack):
    """Sums over blocks equal those over whole rows: the columns' order is nothing to an attack."""
    known = updates(6, 70_000)
    order = np.random.default_rng(0).permutation(70_000)
    sent = attack.send(scene(known))
    reordered = attack.send(scene(np.ascontiguousarray(known[:, order])))
    np.testing.assert_allclose(sent[order], reordered, rtol=1e-3, atol=1e-8)


@knowing
def test_too_little_knowledge_is_refused_with_what_to_do(scene, updates, attack):
    known = updates(attack.least_known, 40)
    attack.send(scene(known))
    own = known[0]
    for fewer in (known[:-1], np.empty((0, 0), np.float32)):
        with pytest.raises(ConfigError, match=r"at least \d known .* got \d: let the attackers"):
            attack.send(scene(fewer, own=own))


@unknowing
def test_those_that_need_no_knowledge_use_none(scene, updates, attack):
    own = updates(1, 40)[0]
    alone = attack.send(scene(np.empty((0, 40), np.float32), own=own))
    together = attack.send(scene(updates(9, 40, seed=8), own=own))
    np.testing.assert_array_equal(alone, together)


@pytest.mark.parametrize("scale", [-1.0, np.nan, np.inf])
def test_an_impossible_scale_is_refused(scene, updates, scale):
    with pytest.raises(ConfigError, match="must be finite and at least 0"):
        scene(updates(3, 4), scale=scale)


def test_updates_of_another_dimension_are_refused(scene, updates):
    with pytest.raises(ConfigError, match="one dimension"):
        scene(updates(3, 4), own=updates(1, 5)[0])


def test_default_scales():
    assert ATTACKS["sign-flip"].default_scale(12, 3) == 10
    # At half of that, Multi-Krum still learns, and nobody sees how it fails.
    assert ATTACKS["ipm"].default_scale(25, 9) == 1
    assert ATTACKS["backdoor"].default_scale(64, 12) == 64 / 12
    assert ATTACKS["alie"].default_scale(25, 5) == pytest.approx(0.2533, abs=1e-4)
    for attack in ATTACKS.values():
        assert attack.default_scale(12, 3) > 0


def test_the_document_lists_all_attacks_as_they_are():
    assert list(ROWS) == list(ATTACKS)
    for attack in ATTACKS.values():
        _, means, default, knows, paper, *_ = ROWS[attack.name]
        assert means == attack.scale_means
        assert paper == attack.paper
        least = attack.least_known
        assert knows == (f"{least} or more honest updates" if least else "nothing")
        if attack.scale_means and default.replace(".", "").isdigit():
            assert attack.default_scale(12, 3) == float(default)


def test_the_document_s_z_is_right():
    assert ATTACKS["alie"].default_scale(12, 3) == pytest.approx(0.14, abs=0.005)
    assert ATTACKS["alie"].default_scale(64, 12) == pytest.approx(0.24, abs=0.005)
    assert ATTACKS["flanders-lie"].default_scale(12, 3) == pytest.approx(0.71, abs=0.005)


F, HONEST = 4, 16
RULES = {"multi-krum": -2, "arc+nnm+geometric-median": -1}  # and where their columns are
both_rules = pytest.mark.parametrize("rule", RULES)

# What a verdict of the document means for the attackers' part in the aggregate, over some seeds.
# Everybody's is 1/20, so that of the four attackers would be a fifth.
VERDICTS = {
    "keeps": lambda least, most: least > 0.15,
    "partly": lambda least, most: 0.001 < least < 0.15 < most,
    "sometimes": lambda least, most: least < 0.001 and most > 0.15,
    "shortens": lambda least, most: least > 0.05 and most < 0.2,
    "drops": lambda least, most: most < 0.001,
}


def attackers_share(rule, honest, sent):
    """The attackers' part in the aggregate."""
    rows = np.vstack([honest, *sent]).astype(np.float32)
    shares = Defence(rules.parse(rule), len(sent))(rows).shares
    assert shares is not None
    return shares[len(honest) :].sum()


@both_rules
@pytest.mark.parametrize(
    "attack", [each for each in SENDING if each.name != "nan"], ids=lambda attack: attack.name
)
def test_rules_do_what_the_document_says(scene, updates, attack, rule):
    verdict = ROWS[attack.name][RULES[rule]].split()[0]
    shares = []
    for seed in range(5):
        clients = updates(HONEST + F, 2000, seed=seed)
        honest, attackers = clients[:HONEST], clients[HONEST:]
        scale = attack.default_scale(HONEST + F, F)
        # The last aggregate was as the honest mean is now.
        common = {"scale": scale, "byzantine": F, "rule": rule, "last": honest.mean(0, float)}
        asked = attackers[:1] if attack.alike else attackers
        sent = [
            attack.send(scene(honest, own=own, seed=number, **common))
            for number, own in enumerate(asked)
        ]
        sent *= F // len(sent)
        shares.append(attackers_share(rule, honest, sent))
    assert VERDICTS[verdict](min(shares), max(shares)), shares


@pytest.mark.parametrize(("factor", "share"), [(0.97, 1.0), (1.03, 0.0)])
@pytest.mark.parametrize(("n", "f", "sigmas"), [(64, 12, 1.25), (25, 9, 1.9)])
def test_the_ball_in_which_multi_krum_keeps_copies(*, updates, n, f, sigmas, factor, share):
    """|v - mu|^2 < (2 (n - f - 2) / (n - 2f - 1) - 1) sigma^2, as the document says."""
    honest = updates(n - f, 20_000, noise=2.0)
    sigma = 2.0
    radius = np.sqrt(2 * (n - f - 2) / (n - 2 * f - 1) - 1) * sigma
    assert radius == pytest.approx(sigmas * sigma, rel=0.01)
    away = _away(honest, factor * radius)
    kept = attackers_share("multi-krum", honest, [away] * f)
    assert kept == pytest.approx(share * f / (n - f))


def _away(honest, distance):
    """As far from the honest mean, towards zero and beyond."""
    mean = honest.mean(axis=0)
    return mean - distance * mean / np.linalg.norm(mean)


@pytest.mark.parametrize(("n", "f"), [(64, 12), (25, 9)])
def test_the_ball_in_which_the_default_keeps_copies_is_smaller(updates, n, f):
    """|v - mu| < sigma, however many send v: copies do not support each other."""
    honest, sigma = updates(n - f, 20_000, noise=2.0), 2.0
    inside, outside = (
        attackers_share("arc+nnm+geometric-median", honest, [_away(honest, part * sigma)] * f)
        for part in (0.9, 1.1)
    )
    assert inside == pytest.approx(f / (n - f), rel=0.01)
    assert outside < 0.01


def test_how_multi_krum_fails(updates):
    """As the document reckons: kept in the place of honest updates, copies turn the mean around."""
    n, f, scale = 25, 9, 1.0
    assert (n - f - scale * f) / n == pytest.approx(0.28)
    assert (n - 2 * f - scale * f) / (n - f) == pytest.approx(-0.13, abs=0.01)
    assert (n - 2 * f) / f == pytest.approx(0.8, abs=0.03)
    honest = updates(n - f, 4000, noise=3.0)
    mean = honest.mean(axis=0, dtype=np.float64)
    for factor, forwards in ((0.5, True), (scale, False)):
        rows = np.vstack([honest, *[-factor * mean] * f]).astype(np.float32)
        moved = Defence(rules.parse("multi-krum"), f)(rows).mean @ mean
        assert (moved > 0) == forwards
        assert Plain()(rows).mean @ mean > 0
