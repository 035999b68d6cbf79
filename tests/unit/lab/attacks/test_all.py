"""What holds for every attack, and what the table of docs/attacks.md says of it."""

from pathlib import Path

import numpy as np
import pytest

from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.errors import ConfigError
from ostraka_lab.attacks import ATTACKS

DOCUMENT = Path(__file__).parents[4] / "docs" / "attacks.md"
# A row of its table begins with a name in code.
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in DOCUMENT.read_text("utf-8").splitlines()
    if line.startswith("| `")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
NAMES = {
    *("sign-flip", "scaled", "gaussian", "zero", "nan", "label-flip", "ipm", "alie"),
    *("min-max", "min-sum", "mimic", "fang", "backdoor"),
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
    known = updates(9, 40)
    one, other = (attack.send(scene(known, own=known[seed], seed=seed)) for seed in (1, 2))
    np.testing.assert_allclose(one, other, rtol=1e-3)


@knowing
def test_longer_than_a_block_of_columns(scene, updates, attack):
    """Sums over blocks equal those over whole rows: the columns' order is nothing to an attack."""
    known = updates(6, 40_000)
    order = np.random.default_rng(0).permutation(40_000)
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
    assert ATTACKS["backdoor"].default_scale(64, 12) == 64 / 12
    assert ATTACKS["alie"].default_scale(25, 5) == pytest.approx(0.2533, abs=1e-4)
    for attack in ATTACKS.values():
        assert attack.default_scale(12, 3) > 0


def test_the_document_lists_all_attacks_as_they_are():
    assert list(ROWS) == list(ATTACKS)
    for attack in ATTACKS.values():
        _, means, default, knows, paper, _ = ROWS[attack.name]
        assert means == attack.scale_means
        assert paper == attack.paper
        least = attack.least_known
        assert knows == (f"{least} or more honest updates" if least else "nothing")
        if attack.scale_means and default.replace(".", "").isdigit():
            assert attack.default_scale(12, 3) == float(default)


def test_the_document_s_z_is_right():
    assert ATTACKS["alie"].default_scale(12, 3) == pytest.approx(0.14, abs=0.005)
    assert ATTACKS["alie"].default_scale(64, 12) == pytest.approx(0.24, abs=0.005)


def kept_by_multi_krum(honest, sent):
    """The share of the attackers that Multi-Krum keeps."""
    f, n = len(sent), len(honest) + len(sent)
    squared = gram.naive(np.vstack([honest, *sent]).astype(np.float64))
    kept = krum.multi_krum(squared, f, n - f)
    return sum(row >= len(honest) for row in kept) / f


@pytest.mark.parametrize(
    "attack", [each for each in SENDING if each.name != "nan"], ids=lambda attack: attack.name
)
def test_multi_krum_does_what_the_document_says(scene, updates, attack):
    verdict = ROWS[attack.name][-1].split()[0]
    shares = set()
    for seed in range(5):
        clients = updates(20, 2000, seed=seed)
        honest, attackers = clients[:16], clients[16:]
        scale = attack.default_scale(20, 4)
        sent = [
            attack.send(scene(honest, own=own, scale=scale, byzantine=4, seed=number))
            for number, own in enumerate(attackers)
        ]
        shares.add(kept_by_multi_krum(honest, sent))
    assert shares == {{"keeps": 1.0, "drops": 0.0}[verdict]}


@pytest.mark.parametrize(("factor", "share"), [(0.97, 1.0), (1.03, 0.0)])
def test_the_ball_in_which_copies_are_kept(updates, factor, share):
    """|v - mu|^2 < (2 (n - f - 2) / (n - 2f - 1) - 1) sigma^2, as the document says."""
    n, f = 64, 12
    honest = updates(n - f, 20_000, noise=2.0)
    mean = honest.mean(axis=0)
    sigma = 2.0
    radius = np.sqrt(2 * (n - f - 2) / (n - 2 * f - 1) - 1) * sigma
    assert radius == pytest.approx(1.25 * sigma, rel=0.01)
    away = mean - factor * radius * mean / np.linalg.norm(mean)
    assert kept_by_multi_krum(honest, [away] * f) == share
