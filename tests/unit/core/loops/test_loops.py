"""The loops in C and in numpy are equal to the bit, and right."""

import ctypes
import ctypes.util
import math
import os
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.core import loops
from ostraka.core.loops import native, twin
from ostraka.errors import LocalProtocolError

P = 2**31 - 1
ABSENT = "the package was built without a compiler: python tools/build_native.py builds the loops"
# A build with sanitizers, which test_build.py makes, or the one that is installed.
LIBRARY = Path(os.environ.get("OSTRAKA_TEST_LOOPS", native.LIBRARY))
LEVELS = range(len(native.LEVELS))


@pytest.fixture(scope="module", params=LEVELS, ids=native.LEVELS)
def library(request):
    """The loops for one instruction set."""
    if native.load(LIBRARY) is None:
        pytest.skip(ABSENT)
    loaded = ctypes.CDLL(str(LIBRARY))
    if request.param > native.best(loaded):
        pytest.skip(f"this processor has no {native.LEVELS[request.param]}")
    return native.Native(loaded, request.param)


# Inputs. Sizes are few and odd, or near what the loops work on at a time. Most values are ordinary,
# and some are the ones that arithmetic treats in a way of its own.

SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([127, 128, 129, 511, 512, 513, 1023, 1025, 2049, 16385])
)
MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-149
SPECIAL = [math.nan, math.inf, 0.0, TINY, 2.0**-126 - TINY, 2.0**-126, MAX]
EDGES = [2.0**31, 2.0**31 - 128, 0.5, 1.5, 2.0**23 + 1]
SIGNALLING = np.array([0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
SEEDS = st.integers(0, 2**32 - 1)
SHIFTED = st.integers(0, 17)
# A generator, the share of special values, and how far an array starts behind an even address.
DRAWN = st.tuples(SEEDS.map(np.random.default_rng), st.sampled_from([0, 0.01]), SHIFTED)


def placed(array, offset):
    """The same values at another place in memory, aligned to their own size only."""
    space = np.empty(array.size + offset, array.dtype)[offset:].reshape(array.shape)
    space[...] = array
    return space


def reals(rng, shape, special):
    """float32 of all magnitudes, a share of them special."""
    with np.errstate(all="ignore"):
        values = rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)
        values = values.astype(np.float32)
    chosen = rng.random(shape) < special
    special_ones = np.array([*SPECIAL, *EDGES], np.float32)
    values[chosen] = rng.choice([*special_ones, *-special_ones, *SIGNALLING], int(chosen.sum()))
    return values


def doubles(rng, shape, special):
    with np.errstate(all="ignore"):
        return reals(rng, shape, special).astype(np.float64) / 3


def bits_of(result):
    """What must be equal: all bits, but for those of a NaN."""
    array = np.array(result)
    if array.dtype.kind != "f":
        return array
    raw = array.view(f"u{array.itemsize}").copy()
    raw[np.isnan(array)] = 2**31 - 1
    return raw


def assert_same(ours, theirs):
    np.testing.assert_array_equal(bits_of(ours), bits_of(theirs))


@given(n=SIZES, drawn=DRAWN)
def test_dot_is_the_same_in_c(library, n, drawn):
    rng, special, offset = drawn
    x = placed(reals(rng, n, special), offset)
    y = reals(rng, n, special)
    assert_same(library.dot(x, y), twin.dot(x, y))
    assert_same(library.squares(x), twin.dot(x, x))
    assert_same(library.squares(x), twin.squares(x))


@given(
    n=SIZES,
    m=st.one_of(st.integers(1, 70), st.sampled_from([128, 1000, 4096])),
    scale=st.one_of(st.just(1.0), st.floats(width=32)),
    drawn=DRAWN,
)
def test_absorb_is_the_same_in_c(library, n, m, scale, drawn):
    rng, special, offset = drawn
    values = placed(reals(rng, n, special), offset)
    bits = rng.integers(0, 256, -(-n // 8)).astype(np.uint8)
    shifts = rng.integers(0, m, -(-n // m)).astype(np.uint32)
    ours = placed(reals(rng, m, special), offset)
    theirs, before = ours.copy(), values.copy()
    pinned = library.pin_fold(bits, shifts, n), library.pin_sketch(ours, scale)
    squares = library.absorb(values, *pinned)
    assert_same(squares, twin.absorb(values, (bits, shifts, len(values)), (theirs, scale)))
    assert_same(ours, theirs)
    assert values.tobytes() == before.tobytes()


@given(first=st.integers(0, 300), n=SIZES, rest=st.integers(0, 300), drawn=DRAWN)
def test_a_part_of_a_row_is_absorbed_as_if_it_were_alone(library, first, n, rest, drawn):
    rng, special, offset = drawn
    row = placed(reals(rng, first + n + rest, special), offset)
    bits = rng.integers(0, 256, -(-n // 8)).astype(np.uint8)
    shifts = rng.integers(0, 100, -(-n // 100)).astype(np.uint32)
    for each in (library, twin):
        ours, theirs = np.zeros((2, 100), np.float32)
        fold = each.pin_fold(bits, shifts, n)
        part = each.absorb_part(each.pin_row(row), first, fold, each.pin_sketch(ours, 1.0))
        alone = row[first : first + n].copy()
        assert_same(part, each.absorb(alone, fold, each.pin_sketch(theirs, 1.0)))
        assert_same(ours, theirs)


@given(n=SIZES, scale=st.one_of(st.just(1.0), st.floats(width=32)), drawn=DRAWN)
def test_scaled_squares_are_those_of_a_fold_and_the_same_in_c(library, n, scale, drawn):
    rng, special, offset = drawn
    values = placed(reals(rng, n, special), offset)
    bits, shifts = np.zeros(-(-n // 8), np.uint8), np.zeros(-(-n // 100), np.uint32)
    folded = twin.absorb(values, (bits, shifts, len(values)), (np.zeros(100, np.float32), scale))
    assert_same(library.scaled_squares(values, scale), folded)
    assert_same(twin.scaled_squares(values, scale), folded)


@given(count=st.integers(0, 11), n=SIZES, drawn=DRAWN)
def test_add_rows_is_the_same_in_c(library, count, n, drawn):
    rng, special, offset = drawn
    rows = [placed(reals(rng, n, special), offset) for _ in range(count)]
    weights, ours = doubles(rng, count, special), doubles(rng, n, special)
    theirs = ours.copy()
    library.add_rows(rows, weights, ours)
    twin.add_rows(rows, weights, theirs)
    assert_same(ours, theirs)


def group(rng, g, b, t, special=0.0):
    """The arguments of `share`, at scales from hardly any to far too large."""
    dither = rng.integers(0, 2**16, (g, b)).astype(np.uint16)
    masks = rng.integers(0, 2**32, (t, g, b)).astype(np.uint32)
    masks[rng.random(masks.shape) < 0.1] = rng.choice([0, 1, P - 1, 2**31, 2**32 - 2])
    scales = (2.0 ** rng.integers(-10, 40, g)).astype(np.float32)
    values = list(reals(rng, (g, b), special))
    return values, scales, dither, masks, np.zeros((2 * t, g, b), np.uint32)


def q_if(kept, shape):
    return np.zeros(shape, np.int16) if kept else None


@given(shape=st.tuples(st.integers(0, 10), SIZES), t=st.integers(1, 3), drawn=DRAWN)
@pytest.mark.parametrize("kept", [True, False])
def test_share_is_the_same_in_c(library, shape, t, drawn, kept):
    (rng, special, offset), (g, b) = drawn, shape
    values, scales, dither, masks, shares = group(rng, g, b, t, special)
    if rng.random() < 0.1:
        masks[rng.random(masks.shape) < 0.1] = rng.choice([P, 2**32 - 1])
    values = [placed(row, offset) for row in values]
    theirs, q, their_q = shares.copy(), q_if(kept, shape), q_if(kept, shape)
    inputs = values, scales, placed(dither, offset), placed(masks, offset)
    ours = library.share(*inputs, shares, q=q)
    expected = twin.share(*inputs, theirs, q=their_q)
    assert_same(ours[:2], expected[:2])
    assert ours[2] == expected[2] == max((masks & P).flat, default=0)
    assert_same(shares, theirs)
    if kept:
        assert_same(q, their_q)


@given(shape=st.tuples(st.integers(0, 10), SIZES), t=st.integers(1, 3), drawn=DRAWN)
@pytest.mark.parametrize("kept", [True, False])
def test_share_integers_is_the_same_in_c_and_as_without_dither(library, shape, t, drawn, kept):
    (rng, _, offset), (g, b) = drawn, shape
    _, scales, dither, masks, shares = group(rng, g, b, t)
    values = [rng.integers(-128, 128, b + offset).astype(np.int8)[offset:] for _ in range(g)]

    def shared(loop, *rows):
        out, q = shares.copy(), q_if(kept, shape)
        *found, greatest = loop(*rows, masks, out, q=q)
        return found, greatest, out, np.zeros(0) if q is None else q

    ours, theirs = shared(library.share_integers, values), shared(twin.share_integers, values)
    wide = [row.astype(np.float32) for row in values]
    scales[:], dither[:] = 2.0**16, 0
    (s, v), *rest = shared(twin.share, wide, scales, dither)
    for found in (ours, theirs):
        for each, expected in zip(found, ([s], *rest), strict=True):
            assert_same(each, expected)
    assert not v.any()


@given(shape=st.tuples(st.integers(0, 20), SIZES), seed=SEEDS, offset=SHIFTED)
def test_witness_is_the_same_in_c_and_the_products(library, shape, seed, offset):
    rng, (g, b) = np.random.default_rng(seed), shape
    q = rng.choice([-(2**15), 2**15 - 1, 0, 1, 17], shape).astype(np.int16)
    weights = rng.integers(-(2**30) + 1, 2**30, (g, 2))
    before = rng.integers(-(2**40), 2**40, (2, b + offset))
    ours, theirs = before.astype(np.float64), before.astype(np.float64)
    library.witness(placed(q, offset), weights.astype(np.float64), ours)
    twin.witness(q, weights.astype(np.float64), theirs)
    assert_same(ours, theirs)
    before[:, :b] += weights.T @ q.astype(np.int64)
    assert_same(ours, before.astype(np.float64))


# Blocks of four rows, vectors of 64 values and what is left of either, and spans of 4096.
ROWS = st.one_of(st.integers(1, 13), st.sampled_from([127, 130]))
WIDTHS = st.one_of(SIZES, st.sampled_from([63, 64, 65, 4095, 4096, 4097, 8191, 8256]))
INTEGERS = {
    "any": lambda rng, shape: rng.integers(-128, 128, shape),
    "the largest": lambda rng, shape: np.full(shape, 127),
    "the least of law 19": lambda rng, shape: np.full(shape, -127),
    "the least of all": lambda rng, shape: np.full(shape, -128),
    "the ends": lambda rng, shape: rng.choice([-128, -127, 127], shape),
    "opposite rows": lambda rng, shape: np.full(shape, 127) * (-1) ** np.arange(shape[0])[:, None],
}


def integers(kind, seed, shape, offset):
    """Rows of int8, each at another place behind an even address; and the same, wide."""
    wide = INTEGERS[kind](np.random.default_rng(seed), shape).astype(np.int64)
    return [placed(row.astype(np.int8), offset * i % 67) for i, row in enumerate(wide)], wide


@given(
    shape=st.tuples(ROWS, WIDTHS), kind=st.sampled_from(list(INTEGERS)), seed=SEEDS, offset=SHIFTED
)
def test_add_gram_is_the_same_in_c_and_the_inner_products(library, shape, kind, seed, offset):
    rows, wide = integers(kind, seed, shape, offset)
    count = len(rows)
    before = np.random.default_rng(seed).integers(-(2**60), 2**60, (count, count))
    first, last = sorted(seed // k % (count + 1) for k in (1, 7919))
    for part in (range(count), range(first, last)):
        ours, theirs, expected = before.copy(), before.copy(), before.copy()
        if part:  # as `loops.add_gram` has it
            library.add_gram(rows, ours, part)
            twin.add_gram(rows, theirs, part)
        for row in part:
            expected[row, row:] += wide[row:] @ wide[row]
        assert_same(ours, expected)
        assert_same(theirs, expected)


@given(n=SIZES, seed=SEEDS, mask=st.integers(0, 2**32 - 1), offset=SHIFTED)
def test_keep_bits_is_the_same_in_c(library, n, seed, mask, offset):
    words = np.random.default_rng(seed).integers(0, 2**32, n).astype(np.uint32)
    ours, theirs = placed(words, offset), words.copy()
    assert library.keep_bits(ours, mask) == twin.keep_bits(theirs, mask) == max(theirs, default=0)
    assert_same(ours, theirs)
    assert_same(ours, words & np.uint32(mask))


@given(b=SIZES, seed=SEEDS)
def test_limb_products_are_the_same_in_c_and_those_of_the_residues(library, b, seed):
    most = 2**53 - 2**31
    block = np.random.default_rng(seed).integers(-most, most, (2, b))
    # Ties and their neighbours are where a rounded quotient goes wrong.
    edges = [P * k // 2 + e for k in (1, 2**21 - 1, -(2**21) + 1) for e in (-1, 0, 1)] + [
        -most,
        most,
    ]
    block[:, : len(edges)] = edges[:b]
    ours = library.limb_products(block.astype(np.float64))
    assert_same(ours, twin.limb_products(block.astype(np.float64)))
    (hh, mixed, ll), residues = ours.astype(np.int64).astype(object), block.astype(object)
    products = 2**32 * hh + 2**16 * (mixed - hh - ll) + ll
    pairs = ((0, 0), (0, 1), (1, 1))
    expected = [sum(residues[i] * residues[j]) % P for i, j in pairs]
    assert [int(x) % P for x in products] == expected


@given(n=st.integers(0, 5), b=SIZES, first=st.integers(0, 9), seed=SEEDS)
def test_limbs_are_the_same_in_c_and_make_up_the_residues(library, n, b, first, seed):
    whole = np.random.default_rng(seed).integers(0, P, (n, b + 9)).astype(np.uint32)
    part = whole[:, first : first + b]
    ours, theirs = np.empty((3, n, b)), np.empty((3, n, b))
    library.limbs(part, *ours)
    twin.limbs(part, *theirs)
    assert_same(ours, theirs)
    high, both, low = theirs
    np.testing.assert_array_equal(high * 2.0**16 + low, part)
    np.testing.assert_array_equal(high + low, both)
    assert ((low < 2**16) & (high < 2**15)).all()


def test_all_float16_and_bfloat16_are_the_same_in_c(library):
    every = np.arange(2**16).astype(np.uint16)
    ours, theirs = np.empty((2, 2**16), np.float32)
    for name in ("widen_float16", "widen_bfloat16"):
        getattr(library, name)(every, ours)
        getattr(twin, name)(every, theirs)
        assert_same(ours, theirs)


@given(step=st.floats(width=32), n=st.integers(0, 256))
def test_all_int8_are_the_same_in_c(library, step, n):
    every = np.arange(-128, 128).astype(np.int8)[:n]
    ours, theirs = np.empty((2, n), np.float32)
    library.widen_int8(every, step, ours)
    twin.widen_int8(every, step, theirs)
    assert_same(ours, theirs)


# What they compute, by other means. These run with whichever loops there are.


def exactly(x, y):
    return sum((Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y, strict=True)), 0)


@given(n=st.integers(0, 700), seed=SEEDS)
def test_dot_is_in_the_stated_order_and_close_to_the_exact_sum(n, seed):
    rng = np.random.default_rng(seed)
    x, y = reals(rng, (2, n), 0)
    sums = [0.0] * 128
    for k in range(n):
        sums[k % 128] += float(x[k]) * float(y[k])
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [a + b for a, b in zip(sums[:half], sums[half:], strict=True)]
    assert loops.dot(x, y) == twin.dot(x, y) == sums[0]
    size = float(np.abs(x.astype(np.float64) * y).sum())
    assert abs(Fraction(loops.dot(x, y)) - exactly(x, y)) <= Fraction(size) * Fraction(2) ** -45
    assert loops.squares(x) == loops.dot(x, x)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 127, 128, 999])
def test_squares_show_what_is_not_finite(bad, place):
    values = np.ones(1000, np.float32)
    values[place] = bad
    assert not math.isfinite(loops.squares(values))


def test_squares_of_the_longest_row_stay_finite():
    assert math.isfinite(loops.squares(np.full(5000, np.finfo(np.float32).max)))


@given(n=st.integers(0, 300), m=st.integers(1, 90), scale=st.sampled_from([1.0, 0.3]), seed=SEEDS)
def test_law12_absorb_is_the_formula(n, m, scale, seed):
    rng = np.random.default_rng(seed)
    values = reals(rng, n, 0)
    bits = rng.integers(0, 256, -(-n // 8)).astype(np.uint8)
    shifts = rng.integers(0, m, -(-n // m)).astype(np.uint32)
    sketch = np.zeros(m, np.float32)
    expected = np.zeros(m, np.float32)
    for k in range(n):
        sign = -1 if bits[k // 8] >> (7 - k % 8) & 1 else 1
        place = (k % m + int(shifts[k // m])) % m
        expected[place] += np.float32(sign) * (values[k] * np.float32(scale))
    fold = loops.Fold(bits, shifts, width=n, m=m)
    squares = loops.absorb(values, fold, loops.Sketch(sketch, scale))
    scaled = values.astype(np.float64) * np.float32(scale)
    assert squares == pytest.approx(scaled @ scaled, rel=1e-5, abs=1e-30)
    assert_same(sketch, expected)


@pytest.mark.parametrize("m", [100, 1024, 1500, 5000])
def test_absorbed_squares_depend_on_the_values_alone(m):
    """A client hears whether its norm was right. If the sum were rounded where values meet in the
    sketch, some norms would tell the client which of them do."""
    n, rng = 4096, np.random.default_rng(m)
    for _ in range(20):
        # The square of the small one is lost beside that of a large one in float32.
        values = np.where(rng.random(n) < 0.3, 1.0, 2.0**-12.5).astype(np.float32)
        heard = set()
        for _ in range(4):
            bits = rng.integers(0, 256, -(-n // 8), np.uint8)
            shifts = rng.integers(0, 2**32, -(-n // m), np.uint32)
            fold = loops.Fold(bits, shifts, width=n, m=m)
            heard.add(loops.absorb(values, fold, loops.Sketch(np.zeros(m, np.float32), 1.0)))
        assert len(heard) == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("place", [0, 127, 128, 999, 1500])
def test_absorbed_squares_show_what_is_not_finite_or_out_of_range(bad, place):
    values = np.ones(1501, np.float32)
    values[place] = bad
    fold = loops.Fold(np.zeros(188, np.uint8), np.zeros(1, np.uint32), width=1501, m=2000)
    sketch = loops.Sketch(np.zeros(2000, np.float32), 1.0)
    assert not loops.absorb(values, fold, sketch) < 1e38


@given(count=st.integers(0, 9), n=st.integers(0, 50), seed=SEEDS)
def test_add_rows_adds_in_order(count, n, seed):
    rng = np.random.default_rng(seed)
    rows = [reals(rng, n, 0) for _ in range(count)]
    weights, total = rng.standard_normal(count), rng.standard_normal(n)
    expected = total.tolist()
    for row, weight in zip(rows, weights, strict=True):
        expected = [a + float(weight) * float(b) for a, b in zip(expected, row, strict=True)]
    loops.add_rows(rows, weights, total)
    assert total.tolist() == expected


@given(g=st.integers(0, 4), b=st.integers(0, 40), t=st.integers(1, 3), seed=SEEDS)
def test_laws_7_and_8_share_is_the_formulas(g, b, t, seed):
    rng = np.random.default_rng(seed)
    values, scales, dither, masks, shares = group(rng, g, b, t)
    scales[:] = 2.0 ** rng.integers(-10, 10, g)
    kept = np.zeros((g, b), np.int16)
    s, v, _ = loops.share(values, scales, dither, masks, shares, q=kept)
    for row in range(g):
        squares = variance = 0
        for k in range(b):
            a = round(Fraction(float(values[row][k] * scales[row])))
            q = (a + int(dither[row, k])) >> 16
            assert kept[row, k] == q
            squares += q * q
            variance += (a % 2**16) * (2**16 - a % 2**16)
            for j, x in enumerate([1, -1, 2, -2, 3, -3][: 2 * t]):
                polynomial = sum(x ** (i + 1) * (int(masks[i, row, k]) & P) for i in range(t))
                assert shares[j, row, k] == (q + polynomial) % P
        assert (s[row], v[row]) == (squares, variance)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**31, -(2.0**31), 1e38, -1e38])
def test_law7_what_is_out_of_range_counts_as_the_least(bad):
    values, dither = np.full(3, bad, np.float32), np.array([[0, 1, 2**16 - 1]], np.uint16)
    shares = np.empty((2, 1, 3), np.uint32)
    masks = np.zeros((1, 1, 3), np.uint32)
    s, v, _ = loops.share([values], np.ones(1, np.float32), dither, masks, shares)
    np.testing.assert_array_equal(shares, np.full((2, 1, 3), P - 2**15))
    assert (s[0], v[0]) == (3 * 2**30, 0)


def test_float16_and_bfloat16_widen_to_the_same_numbers():
    every = np.arange(2**16).astype(np.uint16)
    out = np.empty(2**16, np.float32)
    loops.widen(every, "float16", out)
    halves = [struct.unpack("<e", word.tobytes())[0] for word in every]
    assert_same(out, np.array(halves, np.float32))
    loops.widen(every, "bfloat16", out)
    np.testing.assert_array_equal(out.view(np.uint32), every.astype(np.uint32) << 16)


def test_int8_widens_to_multiples_of_the_step():
    every, out = np.arange(-128, 128).astype(np.int8), np.empty(256, np.float32)
    loops.widen(every, "int8", out, 0.1)
    assert out.tolist() == [float(np.float32(q) * np.float32(0.1)) for q in range(-128, 128)]


# Which one runs.


def kind_in(**environment):
    asked = "from ostraka.core import loops; print(loops.kind(), loops.NATIVE)"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.strip()


def test_numpy_runs_where_the_environment_says_so():
    assert kind_in(OSTRAKA_NATIVE="0") == "numpy False"
    assert kind_in(OSTRAKA_NATIVE="1") in ("numpy False", f"native ({best_level()}) True")


def best_level():
    return "none" if (found := native.load()) is None else found.level


def test_a_missing_a_broken_and_a_foreign_library_are_none(tmp_path):
    assert native.load(tmp_path / "_native.so") is None
    (tmp_path / "_native.so").write_bytes(b"no library")
    assert native.load(tmp_path / "_native.so") is None
    foreign = ctypes.util.find_library("c")
    assert foreign is None or native.load(Path(foreign)) is None


# Bad arguments.


def f32(*shape):
    return np.zeros(shape, np.float32)


def fold_of_eight():
    return loops.Fold(np.zeros(1, np.uint8), u32(1), width=8, m=8)


def unaligned(n):
    return np.zeros(4 * n + 1, np.uint8)[1:].view(np.float32)


def readonly(array):
    array.flags.writeable = False
    return array


def u16(*shape):
    return np.zeros(shape, np.uint16)


def u32(*shape):
    return np.zeros(shape, np.uint32)


def i8(n):
    return np.zeros(n, np.int8)


def gram_with(**other):
    usual = {"rows": [i8(5)] * 3, "gram": np.zeros((3, 3), np.int64), "part": range(3)}
    return lambda: ANYTHING.add_gram(**(usual | other))


def share_with(**other):
    usual = {
        "values": [f32(5), f32(5)],
        "scales": f32(2),
        "dither": u16(2, 5),
        "masks": u32(1, 2, 5),
        "shares": u32(2, 2, 5),
        "q": np.zeros((2, 5), np.int16),
    }
    return lambda: ANYTHING.share(**(usual | other))


def integers_with(**other):
    usual = {
        "values": [np.zeros(5, np.int8), np.zeros(5, np.int8)],
        "masks": u32(1, 2, 5),
        "shares": u32(2, 2, 5),
        "q": np.zeros((2, 5), np.int16),
    }
    return lambda: ANYTHING.share_integers(**(usual | other))


def witness_with(**other):
    usual = {
        "q": np.zeros((3, 5), np.int16),
        "weights": np.zeros((3, 2)),
        "sums": np.zeros((2, 6)),
    }
    return lambda: ANYTHING.witness(**(usual | other))


ANYTHING: Any = loops  # which may be called with what its types forbid
BAD = {
    "a list": lambda: ANYTHING.squares([1.0]),
    "nothing": lambda: ANYTHING.squares(None),
    "a number": lambda: loops.squares(np.array(1.0, np.float32)),
    "float64": lambda: ANYTHING.squares(np.zeros(3)),
    "another byte order": lambda: loops.squares(np.zeros(3, ">f4")),
    "two dimensions": lambda: loops.squares(f32(3, 3)),
    "every other value": lambda: loops.squares(f32(6)[::2]),
    "not aligned": lambda: loops.squares(unaligned(4)),
    "two lengths": lambda: loops.dot(f32(3), f32(4)),
    "too few bits": lambda: loops.Fold(np.zeros(1, np.uint8), u32(1), width=9, m=9),
    "too few shifts": lambda: loops.Fold(np.zeros(2, np.uint8), u32(1), width=9, m=8),
    "no sketch": lambda: loops.Fold(np.zeros(0, np.uint8), u32(0), width=0, m=0),
    "a tile of another width": lambda: loops.absorb(
        f32(7), fold_of_eight(), loops.Sketch(f32(8), 1)
    ),
    "a part beyond its row": lambda: loops.absorb_part(
        loops.Row(f32(15)), 8, fold_of_eight(), loops.Sketch(f32(8), 1)
    ),
    "a part before its row": lambda: loops.absorb_part(
        loops.Row(f32(15)), -1, fold_of_eight(), loops.Sketch(f32(8), 1)
    ),
    "a part with a longer sketch": lambda: loops.absorb_part(
        loops.Row(f32(8)), 0, fold_of_eight(), loops.Sketch(f32(9), 1)
    ),
    "a row of integers": lambda: loops.Row(u32(8)),
    "a longer sketch": lambda: loops.absorb(f32(8), fold_of_eight(), loops.Sketch(f32(9), 1)),
    "a sketch to read": lambda: loops.Sketch(readonly(f32(8)), 1),
    "too few weights": lambda: loops.add_rows([f32(3)] * 2, np.zeros(1), np.zeros(3)),
    "one short row": lambda: loops.add_rows([f32(3), f32(2)], np.zeros(2), np.zeros(3)),
    "a float32 total": lambda: loops.add_rows([f32(3)], np.zeros(1), f32(3)),
    "too few rows": share_with(values=[f32(5)]),
    "a short row": share_with(values=[f32(5), f32(4)]),
    "too few scales": share_with(scales=f32(1)),
    "dither of the wrong type": share_with(dither=np.zeros((2, 5), np.int16)),
    "no masks": share_with(masks=u32(0, 2, 5)),
    "four masks": share_with(masks=u32(4, 2, 5), shares=u32(8, 2, 5)),
    "too few shares": share_with(shares=u32(1, 2, 5)),
    "q of 32 bits": share_with(q=np.zeros((2, 5), np.int32)),
    "q to read": share_with(q=readonly(np.zeros((2, 5), np.int16))),
    "too few sums": witness_with(sums=np.zeros((2, 4))),
    "challenges the other way round": witness_with(weights=np.zeros((2, 3))),
    "sums to read": witness_with(sums=readonly(np.zeros((2, 5)))),
    "a witness of bytes": witness_with(q=np.zeros((3, 5), np.int8)),
    "integers that are float32": integers_with(values=[f32(5), f32(5)]),
    "too few rows of integers": integers_with(values=[np.zeros(5, np.int8)]),
    "a short row of integers": integers_with(values=[np.zeros(5, np.int8), np.zeros(4, np.int8)]),
    "masks of another width": integers_with(masks=u32(1, 2, 4)),
    "too few q of integers": integers_with(q=np.zeros((1, 5), np.int16)),
    "a row of bytes without a sign": gram_with(rows=[i8(5), i8(5), np.zeros(5, np.uint8)]),
    "a short row to multiply": gram_with(rows=[i8(5), i8(5), i8(4)]),
    "a long row to multiply": gram_with(rows=[i8(5), i8(5), i8(6)]),
    "every other integer": gram_with(rows=[i8(5), i8(5), i8(10)[::2]]),
    "a matrix for more rows": gram_with(gram=np.zeros((4, 4), np.int64)),
    "a matrix of float64": gram_with(gram=np.zeros((3, 3))),
    "a matrix to read": gram_with(gram=readonly(np.zeros((3, 3), np.int64))),
    "more rows than there are": gram_with(part=range(1, 4)),
    "rows before the first": gram_with(part=range(-1, 2)),
    "every other row": gram_with(part=range(0, 3, 2)),
    "float64 to be scaled": lambda: ANYTHING.scaled_squares(np.zeros(3), 1.0),
    "words of 64 bits": lambda: loops.keep_bits(np.zeros(3, np.uint64), 1),
    "a mask of 33 bits": lambda: loops.keep_bits(u32(3), 1 << 32),
    "three rows of limbs": lambda: loops.limb_products(np.zeros((3, 4))),
    "limbs of integers": lambda: ANYTHING.limb_products(np.zeros((2, 4), np.int64)),
    "too many columns of limbs": lambda: loops.limb_products(np.zeros((2, 2**19 + 1))),
    "residues by columns": lambda: loops.limbs(u32(4, 4).T, *np.zeros((3, 4, 4))),
    "one row, every other residue": lambda: loops.limbs(u32(1, 4)[:, ::2], *np.zeros((3, 1, 2))),
    "residues of 64 bits": lambda: loops.limbs(np.zeros((2, 2), np.uint64), *np.zeros((3, 2, 2))),
    "limbs of another shape": lambda: loops.limbs(u32(2, 2), *np.zeros((3, 2, 3))),
    "an unknown type": lambda: ANYTHING.widen(u16(3), "float8", f32(3)),
    "another unknown type": lambda: ANYTHING.widen(u16(3), "bf16", f32(3)),
    "int8 in 16 bits": lambda: loops.widen(u16(3), "int8", f32(3)),
    "float16 in bytes": lambda: loops.widen(np.zeros(6, np.uint8), "float16", f32(3)),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_wrong_argument_is_an_error_and_no_crash(bad):
    with pytest.raises(LocalProtocolError):
        BAD[bad]()


def test_good_arguments_of_the_same_table_pass():
    share_with()()
    share_with(q=None)()
    integers_with()()
    integers_with(q=None)()
    witness_with()()
    gram_with()()
    gram_with(part=range(3, 3))()
    gram_with(rows=[], gram=np.zeros((0, 0), np.int64), part=range(0))()
    loops.squares(readonly(f32(3)))
    loops.keep_bits(u32(3), (1 << 32) - 1)
    loops.keep_bits(u32(3), 0)
    loops.limbs(u32(4, 2)[:, :1], *np.zeros((3, 4, 1)))
    loops.limbs(u32(1, 4).T[::2], *np.zeros((3, 2, 1)))
