import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostraka.core import exact, field, loops
from ostraka.core.exact import Freivalds
from ostraka.core.field import P
from ostraka.core.gram import from_gram
from ostraka.core.loops import twin
from ostraka.errors import ConfigError

INFINITY = "infinity"


def distances(*decoded):
    """The squared distances that law 10 gives by law 2."""
    return from_gram(exact.products(*decoded))


def norms(rows):
    return np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))


def quantise(rows, steps, rng, dither=None):
    """The rows at once: q as int64, residues, s, v. With a mask of zeros a share is q itself."""
    if dither is None:
        dither = rng.integers(0, 2**16, rows.shape).astype(np.uint16)
    masks, out = np.zeros((1, *rows.shape), np.uint32), np.empty((2, *rows.shape), np.uint32)
    s, v, _ = loops.share(list(rows), exact.scale(steps), dither, masks, out)
    return field.signed(out[0]), out[0], s, v


def masked(residues, t, rng):
    """The masks (t, g, b), and the shares by point, of residues within 2^15 of zero."""
    shape = residues.shape
    masks = rng.integers(0, P, (t, *shape)).astype(np.uint32)
    out, dither = np.empty((2 * t, *shape), np.uint32), np.zeros(shape, np.uint16)
    loops.share(list(field.signed(residues).astype(np.float32)), ones(shape), dither, masks, out)
    return masks, dict(zip(exact.points(t), out, strict=True))


def ones(shape):
    """The scales (g,) under which a whole number within 2^15 is its own q."""
    return np.full(shape[0], 2.0**16, np.float32)


# Law 7.


@given(norm=st.floats(0, 1e300), d=st.integers(1, 2**30))
def test_law7_steps_are_the_formula_and_scales_are_exact(norm, d):
    (step,) = exact.step(np.array([norm]), d)
    formula = norm / (math.sqrt((P - 1) / 2 - d / 4) - 64)
    assert step == pytest.approx(min(max(formula, 2.0**-111), 2.0**142), rel=2**-23)
    (scale,) = exact.scale(np.array([step]))
    assert np.float64(scale) * step == pytest.approx(2**16, rel=2**-52)


@pytest.mark.parametrize("d", [0, -1, 2**30 + 1])
def test_law7_refuses_dimensions_that_leave_no_room(d):
    with pytest.raises(ConfigError, match=str(d)):
        exact.step(np.ones(1), d)


@pytest.mark.parametrize("a", [0, 1, -1, 32768, 65535, 65536, -65536, 100_001, -(2**30) - 3])
def test_law7_every_dither_once_gives_the_exact_mean_and_variance(a):
    # A scale of one makes the value itself the integer a, in units of delta / 2^16.
    a = int(np.float32(a))
    every = np.arange(2**16, dtype=np.uint16)[None]
    row = np.full((1, 2**16), a, np.float32)
    q, residues, s, v = quantise(row, np.array([2.0**16]), None, dither=every)
    assert int(q.sum()) == a  # the mean is a / 2^16
    counts = Counter(q[0].tolist())
    assert int(v[0]) == sum(count * (2**16 * x - a) ** 2 for x, count in counts.items())
    assert int(s[0]) == int((q**2).sum())
    np.testing.assert_array_equal(residues, q % P)


def test_law7_rounding_is_within_what_is_stated():
    rng = np.random.default_rng(1)
    rows = rng.standard_cauchy((20, 500)).astype(np.float32)
    steps = exact.step(norms(rows), 500)
    a = twin._rounded(list(rows), exact.scale(steps), rows.shape).astype(np.int64)
    q, *_ = quantise(rows, steps, rng, np.zeros(rows.shape, np.uint16))
    np.testing.assert_array_equal(q, a >> 16)
    wanted = rows / steps[:, None] * 2**16
    assert (np.abs(a - wanted) <= 0.5 + 2**-24 * np.abs(wanted)).all()
    assert (norms(a - wanted) / 2**16 <= 2**-9 + 2**-17 * math.sqrt(500)).all()


HOSTILE = {
    "one coordinate": lambda d: np.eye(1, d),
    "one negative coordinate": lambda d: -np.eye(1, d),
    "all equal": lambda d: np.ones((1, d)),
    "alternating": lambda d: np.resize([1.0, -1.0], (1, d)),
    "one large among small ones": lambda d: np.full((1, d), 1e-3) + np.eye(1, d),
    "two large": lambda d: np.resize([1.0, -1.0] + [0.0] * (d - 2), (1, d)),
}


@pytest.mark.parametrize("row", HOSTILE)
@pytest.mark.parametrize("d", [2, 500, 2**16, 2**20])
@pytest.mark.parametrize("scale", [1.0, 1e-28, 1e30])
def test_law7_no_row_wraps_even_with_its_norm_understated(row, d, scale):
    rng = np.random.default_rng(d)
    values = (HOSTILE[row](d) * scale).astype(np.float32)
    steps = exact.step(norms(values) * (1 - 2**-10), d)
    # Up to 500 dimensions no dither at all can make the row too long.
    worst = np.full(values.shape, 2**16 - 1, np.uint16) if d <= 500 else None
    q, _, s, _ = quantise(values, steps, rng, dither=worst)
    assert exact.fits(s).all()
    assert int(s[0]) == int((q**2).sum())
    assert int(s[0]) > 0.99 * exact.MAX_SQUARE * (1 - d / 4 / exact.MAX_SQUARE)
    assert np.abs(q - values / steps[:, None]).max() < 1.01


def test_law7_fits_is_strict_at_half_the_modulus():
    assert exact.fits(np.array([0, (P - 1) // 2, (P + 1) // 2])).tolist() == [True, True, False]


def test_law7_zero_and_tiny_rows():
    rows = np.zeros((3, 10), np.float32)
    rows[1, 3], rows[2, 3] = 2.0**-149, 2.0**-100
    steps = exact.step(norms(rows), 10)
    q, _, s, v = quantise(rows, steps, np.random.default_rng(0))
    assert not q[:2].any()
    assert s[0] == v[0] == 0
    assert exact.fits(s).all()


@pytest.mark.parametrize("bad", [3.0, 1e5, 1e38, np.inf, -np.inf, np.nan])
def test_law7_a_row_with_a_false_norm_spoils_only_itself(bad):
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((3, 50)).astype(np.float32)
    dither = rng.integers(0, 2**16, rows.shape).astype(np.uint16)
    steps = exact.step(norms(rows), 50)
    good = quantise(rows, steps, rng, dither)
    rows[1] *= np.float32(bad)
    spoiled = quantise(rows, steps, rng, dither)
    for a, b in zip(good, spoiled, strict=True):
        np.testing.assert_array_equal(a[[0, 2]], b[[0, 2]])
    assert np.abs(spoiled[0]).max() <= 2**15
    if not np.isnan(bad):
        assert not exact.fits(spoiled[2])[1]


def test_law7_s_and_v_add_up_over_tiles_and_groups():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((5, 300)).astype(np.float32)
    dither = rng.integers(0, 2**16, rows.shape).astype(np.uint16)
    steps = exact.step(norms(rows), 300)
    q, _, s, v = quantise(rows, steps, rng, dither)
    for first in range(0, 5, 2):
        part = slice(first, min(first + 2, 5))
        for start in range(0, 300, 128):
            tile = (part, slice(start, min(start + 128, 300)))
            values, words = rows[tile].copy(), dither[tile].copy()
            q_part, _, s_part, v_part = quantise(values, steps[part], rng, words)
            s[part] -= s_part
            v[part] -= v_part
            np.testing.assert_array_equal(q_part, q[tile])
    assert not s.any()
    assert not v.any()


def test_groups_are_at_least_one_row_and_never_more_than_freivalds_takes():
    sizes = [exact.group_rows(width) for width in (1, 64, 4096, 16_384, 2**22)]
    assert sizes == [128, 128, 32, 8, 1]


# Law 8.


@pytest.mark.parametrize("t", [1, 2, 3])
def test_law8_shares_are_the_polynomial(t):
    rng = np.random.default_rng(t)
    q = field.reduce(rng.integers(-(2**15), 2**15, (2, 50)))
    q[0, :5] = [0, 1, P - 1, P - 2**15, 2**15 - 1]
    masks, shares = masked(q, t, rng)
    require_polynomial(q, masks, shares)
    # The twin takes any residue, for the exhaustive tests below.
    q = rng.integers(0, P, (2, 50)).astype(np.uint32)
    q[0, :4] = [0, 1, P - 1, (P - 1) // 2]
    out = np.empty((2 * t, *q.shape), np.uint32)
    twin._shares(q, masks, out, np.empty_like(q))
    require_polynomial(q, masks, dict(zip(exact.points(t), out, strict=True)))


def require_polynomial(q, masks, shares):
    assert sorted(shares) == [x for x in range(-len(masks), len(masks) + 1) if x]
    for x, share in shares.items():
        expected = q.astype(object)
        for power, mask in enumerate(masks, start=1):
            expected = expected + x**power * mask.astype(object)
        np.testing.assert_array_equal(share, expected % P)


@pytest.mark.parametrize("t", [0, 4])
def test_law8_refuses_other_numbers_of_colluders(t):
    with pytest.raises(ConfigError, match=str(t)):
        exact.points(t)


def views(q, t, modulus):
    """What each worker sees of one coordinate, for every choice of masks: {worker: (modulus^t,)}

    By the twin, since C has one modulus; with that one, the two are equal to the bit.
    """
    every = np.array(list(itertools.product(range(modulus), repeat=t)), np.uint32).T.copy()
    secret = np.full(modulus**t, q, np.uint32)
    out = np.empty((2 * t, *secret.shape), np.uint32)
    twin._shares(secret, every, out, np.empty_like(secret), np.uint32(modulus))
    return {**dict(zip(exact.points(t), out, strict=True)), INFINITY: every[-1]}


def joint(view, workers):
    return Counter(zip(*(view[worker].tolist() for worker in workers), strict=True))


@pytest.mark.parametrize(("t", "modulus"), [(1, 3), (1, 5), (2, 5), (2, 7), (2, 11), (3, 7)])
def test_law8_any_t_workers_learn_nothing_and_t_plus_one_learn_everything(t, modulus):
    by_secret = [views(q, t, modulus) for q in range(modulus)]
    workers = [*exact.points(t), INFINITY]
    for some in itertools.combinations(workers, t):
        seen = [joint(view, some) for view in by_secret]
        # Every joint view occurs for exactly one choice of masks, whatever the secret is.
        assert all(counts == seen[0] for counts in seen)
        assert set(seen[0].values()) == {1}
        assert len(seen[0]) == modulus**t
    for some in itertools.combinations(workers, t + 1):
        seen = [joint(view, some) for view in by_secret]
        assert len(set().union(*seen)) == sum(map(len, seen))


# Law 9.


@pytest.mark.parametrize("t", [1, 2, 3])
def test_law9_decoding_gives_the_exact_inner_products(t):
    rng = np.random.default_rng(10 + t)
    rows = rng.standard_normal((7, 400)).astype(np.float32)
    rows[1], rows[2], rows[3] = rows[0], -rows[0], np.eye(1, 400) * 1e6
    rows[5] = 0
    q, residues, _, _ = quantise(rows, exact.step(norms(rows), 400), rng)
    masks, shares = masked(residues, t, rng)
    grams = {x: field.gram(share) for x, share in shares.items()}
    decoded = exact.decode(grams, field.gram(masks[-1]))
    np.testing.assert_array_equal(field.signed(decoded), q @ q.T)


def test_law9_inner_products_of_half_the_modulus_keep_their_sign():
    q = np.array([[32767, 255, 8, 1, 1, 1], [-32767, -255, -8, -1, -1, -1]])
    q = np.concatenate([q, np.zeros((2, 4), np.int64)], axis=1)
    missing = (P - 1) // 2 - int((q[0] ** 2).sum())
    q[0, 6:] = [math.isqrt(missing), 0, 0, 0]
    q[1] = -q[0]
    rng = np.random.default_rng(0)
    masks, shares = masked(field.reduce(q), 1, rng)
    grams = {x: field.gram(share) for x, share in shares.items()}
    decoded = field.signed(exact.decode(grams, field.gram(masks[-1])))
    np.testing.assert_array_equal(decoded, q @ q.T)
    assert exact.fits((q**2).sum(axis=1)).all()
    assert decoded[0, 1] < -0.9999 * (P - 1) / 2


@pytest.mark.parametrize(("t", "modulus"), [(1, 3), (2, 5), (3, 7)])
def test_law9_decodes_every_secret_under_every_mask(t, modulus):
    for q in range(modulus):
        view = views(q, t, modulus)
        squares = {x: y * y % modulus for x, y in view.items()}
        leading = squares.pop(INFINITY)
        assert (exact.decode(squares, leading, modulus) == q * q % modulus).all()


# Law 10.


def pairs(rng, d):
    a, b = rng.standard_normal((2, d))
    return {
        "independent": (a, b),
        "correlated": (a, a + 0.1 * b),
        "nearly equal": (a, a + 1e-4 * b),
        "equal": (a, a),
        "opposite": (a, -a),
        "of very different length": (a, 1e4 * b),
        "on the grid's halves": (np.resize([0.5, 1.5, 100], d), np.resize([1.5, 0.5, -100], d)),
        "one coordinate": (np.eye(1, d)[0], b / 100),
    }


@pytest.mark.parametrize("kind", pairs(np.random.default_rng(0), 3))
def test_law10_distances_are_unbiased_with_the_stated_deviation(kind):
    rng = np.random.default_rng(20)
    trials, d = 400, 1500
    rows = np.array(pairs(rng, d)[kind], np.float32)
    steps = exact.step(norms(rows), d)
    truth = float(((rows[0].astype(float) - rows[1]) ** 2).sum())
    decoded, uncorrected = np.empty((2, trials))
    for trial in range(trials):
        q, _, s, v = quantise(rows, steps, rng)
        decoded[trial] = distances(q @ q.T, steps, s, v)[0, 1]
        uncorrected[trial] = distances(q @ q.T, steps, s, 0 * v)[0, 1]
    stated = exact.deviation(np.full((2, 2), truth), steps, d)[0, 1]
    assert decoded.std() < 1.1 * stated
    assert decoded.std() > 0.02 * stated
    assert abs(decoded.mean() - truth) < 5 * decoded.std() / math.sqrt(trials) + 0.01 * stated
    if kind == "equal":
        assert uncorrected.mean() - truth > 5 * stated
        assert 0.3 < (decoded < 0).mean() < 0.7


def test_law10_the_diagonal_is_zero_and_the_matrix_symmetric():
    rng = np.random.default_rng(21)
    rows = rng.standard_normal((6, 100)).astype(np.float32)
    steps = exact.step(norms(rows), 100)
    q, _, s, v = quantise(rows, steps, rng)
    found = distances(q @ q.T, steps, s, v)
    assert not found.diagonal().any()
    np.testing.assert_array_equal(found, found.T)
    true = ((rows[:, None].astype(float) - rows) ** 2).sum(axis=2)
    assert (np.abs(found - true) <= 6 * exact.deviation(true, steps, 100)).all()


def test_law10_a_deviation_is_a_number_for_negative_distances():
    found = exact.deviation(np.array([[0.0, -1.0], [-1.0, 0.0]]), np.ones(2), 100)
    np.testing.assert_allclose(found, 5.0)


# Law 11.


def checked(q, rng, *, group=128, block=64, challenge=None):
    """Evidence about q (n, d), gathered group by group and block by block."""
    if challenge is None:
        challenge = rng.integers(0, P, (len(q), 2)).astype(np.uint32)
    check = Freivalds(challenge, block)
    for start in range(0, q.shape[1], block):
        for first in range(0, len(q), group):
            witness(check, first, q[first : first + group, start : start + block])
        check.end_block()
    return check


def witness(check, first, q):
    """Lets it take rows first, first + 1, ... of a block, as the enclave does while masking."""
    masks, out = np.zeros((1, *q.shape), np.uint32), np.empty((2, *q.shape), np.uint32)
    dither, rows = np.zeros(q.shape, np.uint16), list(q.astype(np.float32))
    kept = check.expect(range(first, first + len(q)), q.shape[1])
    loops.share(rows, ones(q.shape), dither, masks, out, q=kept)


def secrets(rng, n=9, d=200):
    q = rng.integers(-300, 300, (n, d))
    return q, field.reduce(q @ q.T)


def test_law11_the_true_matrix_is_accepted():
    rng = np.random.default_rng(30)
    q, gram = secrets(rng)
    for group, block in [(1, 200), (4, 64), (128, 7)]:
        assert checked(q, rng, group=group, block=block).accepts(gram)


def test_law11_a_thousand_least_lies_are_caught():
    rng = np.random.default_rng(31)
    q, gram = secrets(rng)
    for _ in range(1000):
        lie = gram.copy()
        i, j = rng.integers(0, len(q), 2)
        lie[i, j] = lie[j, i] = (int(lie[i, j]) + rng.choice([1, -1])) % P
        assert not checked(q, rng, block=200).accepts(lie)


LIES = {
    "two entries that cancel in the sum": lambda g: g + np.diag([1, -1] + [0] * (len(g) - 2)),
    "a constant added everywhere": lambda g: g + 1,
    "one sign": lambda g: g * (1 - 2 * (np.indices(g.shape) == 1).all(axis=0)),
    "one row and column zero": lambda g: g * (np.indices(g.shape) != 2).all(axis=0),
    "two rows swapped": lambda g: g[np.ix_([1, 0, *range(2, len(g))], [1, 0, *range(2, len(g))])],
    "another federation's matrix": lambda g: g.T[::-1, ::-1] * 3,
    "zero": lambda g: 0 * g,
}


@pytest.mark.parametrize("lie", LIES)
def test_law11_lies_of_other_shapes_are_caught(lie):
    rng = np.random.default_rng(32)
    q, gram = secrets(rng)
    false = field.reduce(LIES[lie](gram.astype(np.int64)))
    assert not np.array_equal(false, gram)
    assert not checked(q, rng).accepts(false)


@pytest.mark.parametrize("blind", [0, 1])
def test_law11_both_columns_of_the_challenge_are_checked(blind):
    """An error that one column cannot see at all, because E v = 0, is caught by the other."""
    rng = np.random.default_rng(35)
    q, gram = secrets(rng)
    challenge = rng.integers(0, P, (len(q), 2)).astype(np.uint32)
    error = unseen_by(challenge[:, blind])
    lie = field.reduce(gram.astype(np.int64) + error)
    evidence = checked(q, rng, challenge=challenge)
    assert evidence.accepts(gram)
    assert not evidence.accepts(lie)


def unseen_by(column):
    """A symmetric error E of rank one, with E v = 0 modulo p for this column v."""
    v = [int(value) for value in column]
    w = [v[1], P - v[0], *[0] * (len(v) - 2)]
    assert sum(a * b for a, b in zip(v, w, strict=True)) % P == 0
    return np.array([[a * b % P for b in w] for a in w])


def test_law11_the_sums_are_exact_for_many_rows_of_the_largest_values():
    rng = np.random.default_rng(33)
    n, half = 701, (P - 1) // 2
    # An odd sum of odd products beyond 2^53: the first that float64 cannot hold.
    q = np.where(rng.random((n, 40)) < 0.5, 1 - 2**15, 2**15 - 1)
    q[:, 0] = 2**15 - 1
    extremes = np.full((n, 2), half, np.uint32)
    for challenge in (extremes, None):
        evidence = checked(q, rng, block=16, challenge=challenge)
        assert evidence.accepts(field.reduce(q @ q.T))


def test_law11_groups_may_be_given_to_several_checkers_of_one_challenge():
    rng = np.random.default_rng(34)
    n = 300
    q = rng.integers(-(2**15), 2**15, (n, 90))
    challenge = rng.integers(0, P, (n, 2)).astype(np.uint32)
    checks = [Freivalds(challenge, 64) for _ in range(3)]
    for start in (0, 64):
        for group, first in enumerate(range(0, n, 50)):
            witness(checks[group % 3], first, q[first : first + 50, start : start + 64])
        for other in checks[1:]:
            checks[0].take(other)
        checks[0].end_block()
    gram = field.reduce(q @ q.T)
    assert checks[0].accepts(gram)
    gram[0, 0] ^= 1
    assert not checks[0].accepts(gram)


@settings(deadline=None, max_examples=30)
@given(n=st.integers(2, 12), t=st.integers(1, 3), long=st.floats(0, 6), seed=st.integers(0, 2**32))
def test_laws_7_to_11_together(n, t, long, seed):
    rng = np.random.default_rng(seed)
    d = 300
    rows = rng.standard_normal((n, d)).astype(np.float32)
    rows[0] *= np.float32(10**long)
    steps = exact.step(norms(rows), d)
    q, residues, s, v = quantise(rows, steps, rng)
    assert exact.fits(s).all()
    masks, shares = masked(residues, t, rng)
    grams = {x: field.gram(share) for x, share in shares.items()}
    decoded = exact.decode(grams, field.gram(masks[-1]))
    assert checked(q, rng).accepts(decoded)
    found = distances(field.signed(decoded), steps, s, v)
    true = ((rows[:, None].astype(float) - rows) ** 2).sum(axis=2)
    assert (np.abs(found - true) <= 8 * exact.deviation(true, steps, d)).all()
    one = grams[1]
    one[-1, 0] = one[0, -1] = (int(one[0, -1]) + 1) % P
    assert not checked(q, rng).accepts(exact.decode(grams, field.gram(masks[-1])))


def test_repr_shows_no_challenge():
    assert repr(Freivalds(np.ones((4, 2), np.uint32), 8)) == "Freivalds(<secret>, rows=4)"
