"""The formats of uploads: how values are rounded, how far they are off, and what is refused."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from ostraka.core import exact, uploads
from ostraka.core.uploads import FORMATS, INT8, MAX_INTEGERS, MAX_STEP, MIN_STEP
from ostraka.crypto.stream import SecretStream
from ostraka.errors import ConfigError, LocalProtocolError, Rejection

HALVES = ["bfloat16", "float16"]
SHORT = [*HALVES, "int8"]
LARGEST = float(np.finfo(np.float32).max)

lengths = array_shapes(max_dims=1, max_side=40)
float32s = arrays("<f4", lengths, elements=st.floats(width=32, allow_nan=False))
finite = arrays("<f4", lengths, elements=st.floats(-LARGEST, LARGEST, width=32))
halves = st.floats(-65504, 65504, width=16)
moderate = arrays("<f4", lengths, elements=st.floats(-(2.0**60), 2.0**60, width=32))


def fill(seed=1):
    return SecretStream(bytes([seed]) * 32).fill


def encode(name, update, seed=1):
    return FORMATS[name].encode(np.asarray(update, "<f4"), fill(seed))


def unused(out):
    raise AssertionError("this format draws nothing")


# Round trips.


@given(float32s)
def test_float32_goes_as_it_is(update):
    encoded = FORMATS["float32"].encode(update, unused)
    assert encoded.values is update
    assert encoded.widened().tobytes() == update.tobytes()


def neighbours(name, value):
    """The two values of a format around a finite one, as fractions; by brute force on its bits."""
    raw = np.arange(2**16, dtype=np.uint16)
    wide = np.empty(2**16, np.float32)
    with np.errstate(invalid="ignore"):
        FORMATS[name].widen(raw if name == "bfloat16" else raw.view("<f2"), 0.0, wide)
    table = np.unique(wide[np.isfinite(wide)])
    at = np.searchsorted(table, value)
    return list(table[max(0, at - 1) : at + 1].tolist())


@pytest.mark.parametrize("name", HALVES)
@given(value=st.floats(-60000, 60000, width=32))
def test_halves_are_the_nearest_values_and_even_in_a_tie(name, value):
    encoded = FORMATS[name].encode(np.array([value], "<f4"), unused)
    sent = float(encoded.widened()[0])
    near = neighbours(name, value)
    distances = [abs(Fraction(each) - Fraction(value)) for each in near]
    assert abs(Fraction(sent) - Fraction(value)) == min(distances)
    if len(set(distances)) < len(near):
        assert int(encoded.values.view(np.uint16)[0]) % 2 == 0


@pytest.mark.parametrize("name", HALVES)
def test_ties_go_to_even(name):
    bits = {"bfloat16": 8, "float16": 11}[name]
    unit = 2.0 ** (1 - bits)
    sent = encode(name, [1 + unit / 2, 1 + 3 * unit / 2, -1 - unit / 2, 1 + unit / 2 + 2.0**-23])
    assert sent.widened().tolist() == [1, 1 + 2 * unit, -1, 1 + unit]


@pytest.mark.parametrize("name", HALVES)
def test_every_value_of_a_half_comes_back_to_the_bit(name):
    raw = np.arange(2**16, dtype=np.uint16).view(FORMATS[name].dtype)
    wide = np.empty(2**16, np.float32)
    FORMATS[name].widen(raw, 0.0, wide)
    good = np.isfinite(wide)
    again = FORMATS[name].encode(wide[good], unused)
    assert again.values.tobytes() == raw[good].tobytes()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_states_a_norm_that_is_not(name, bad):
    """The enclave rejects it, and the client is told so, as with float32."""
    update = np.array([1, bad, 3], "<f4")
    update.view(np.uint32)[1] |= 1 if np.isnan(bad) else 0  # Also a NaN of low bits only.
    encoded = FORMATS[name].encode(update, fill())
    assert not math.isfinite(encoded.norm)
    assert FORMATS[name].header_flaw(encoded.norm, encoded.step, 3) is Rejection.BAD_NORM
    if name != "int8":
        assert not np.isfinite(encoded.widened()[1])


def test_a_signalling_nan_of_low_bits_stays_a_nan_in_bfloat16():
    update = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000], np.uint32).view("<f4")
    assert np.isnan(FORMATS["bfloat16"].encode(update, unused).widened()).all()


@pytest.mark.parametrize("name", FORMATS)
@given(update=moderate)
def test_what_is_encoded_passes_its_own_checks(name, update):
    if name == "float16":
        update = np.clip(update, -65504, 65504)
    form, d = FORMATS[name], update.size
    encoded = form.encode(update, fill())
    wide = encoded.widened()
    assert encoded.values.dtype == form.dtype
    assert encoded.values.nbytes == d * form.dtype.itemsize
    assert form.header_flaw(encoded.norm, encoded.step, d) is None
    assert form.tile_flaw(encoded.values) is None
    assert encoded.norm == pytest.approx(uploads.norm(wide), rel=1e-12)
    if not form.integers:
        assert form.encode(wide, unused).widened().tobytes() == wide.tobytes()


# Ranges.


BEYOND = {
    "just beyond float16": ("float16", 65520.0, r"6.55e\+04, and float16 ends at 65504.*bfloat16"),
    "far beyond float16": ("float16", -1e30, r"1e\+30, and float16 ends at 65504.*'bfloat16'"),
    "above bfloat16": (
        "bfloat16",
        LARGEST,
        r"3.4e\+38, and bfloat16 ends at 3.3895e\+38.*'float32'",
    ),
    "above int8's steps": ("int8", 2.0**120, r"norm of 1.33e\+36, and int8 ends.*'bfloat16'"),
}


@pytest.mark.parametrize(("name", "value", "said"), BEYOND.values(), ids=BEYOND)
def test_a_value_beyond_the_range_is_refused_with_advice(name, value, said):
    with pytest.raises(ConfigError, match=said):
        encode(name, [0.5, value, 1.0])
    assert encode(name, [0.5, 1.0]).norm > 0


@pytest.mark.parametrize("name", SHORT)
def test_the_largest_value_that_is_promised_fits(name):
    largest = np.nextafter(np.float32(FORMATS[name].largest), np.float32(0))
    for update in ([largest], [-largest, largest, 0]):
        encoded = encode(name, update)
        assert FORMATS[name].header_flaw(encoded.norm, encoded.step, len(update)) is None


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_and_the_smallest_values(name):
    encoded = encode(name, np.zeros(5))
    assert (encoded.norm, encoded.step) == (0, 0)
    assert not encoded.widened().any()
    tiny = encode(name, [2.0**-149, -(2.0**-149), 0])
    assert FORMATS[name].header_flaw(tiny.norm, tiny.step, 3) is None


# Integers.


@given(moderate, st.integers(0, 255))
def test_law19_integers_are_in_range_and_their_multiples_are_exact(update, seed):
    encoded = encode("int8", update, seed)
    q, step = encoded.values.astype(np.int64), encoded.step
    square = int(q @ q)
    assert abs(q).max() <= 127
    assert square <= exact.MAX_SQUARE
    assert (step == 0) == (square == 0)
    assert encoded.widened().tolist() == [float(Fraction(step) * int(each)) for each in q]
    assert INT8.stated_square(encoded.norm, step) == square
    # A value is rounded to one of the two integers around it.
    assert all(
        abs(Fraction(float(x)) - Fraction(step) * int(k)) < (Fraction(step) or 1)
        for x, k in zip(update, q, strict=True)
    )


def test_law19_the_step_is_as_small_as_the_largest_value_allows():
    assert encode("int8", [1.0, -0.25, 127.0]).step == 1
    assert encode("int8", [1.0, -0.25, -127.0]).values[2] == -127
    above = float(np.nextafter(np.float32(127), np.float32(128)))
    step = encode("int8", [1.0, -0.25, above]).step
    assert above / 127 < step < 1 + 2.0**-14


def test_law19_a_long_row_uses_the_norm_that_is_allowed():
    """At 3.5 million values the bound on |q|^2 decides: the root mean square of q is 17."""
    update = np.random.default_rng(0).normal(size=3_500_000).astype(np.float32)
    encoded = encode("int8", update)
    square = INT8.square(encoded.values)
    assert 0.99 * exact.MAX_SQUARE < square <= exact.MAX_SQUARE
    error = np.linalg.norm(encoded.widened() - update) / np.linalg.norm(update)
    assert 0.02 < error < 0.026
    assert encoded.values.nbytes <= 0.27 * update.nbytes


def test_the_stated_error_is_the_one_that_is_measured():
    """sqrt(d / 6) / 2^15 of the norm, on rows as coarse as those of longer updates."""
    update = np.random.default_rng(0).normal(size=100_000)
    for d in (3_500_000, 20_000_000, MAX_INTEGERS):
        step = math.sqrt(d) / 2**15
        words = np.empty(update.size, np.uint32)
        fill()(words)
        moved = step * np.floor(update / step + words * 2.0**-32) - update
        error = np.linalg.norm(moved) / np.linalg.norm(update)
        assert error == pytest.approx(math.sqrt(d / 6) / 2**15, rel=0.02)
    assert error < 1 / 8


@pytest.mark.parametrize(
    ("name", "width", "size", "part"),
    [("bfloat16", 2, 10**5, 2e-3), ("float16", 2, 10**5, 2e-4), ("int8", 1, 3_500_000, 2e-2)],
)
def test_rounding_moves_normal_values_by_what_is_documented(name, width, size, part):
    """As docs/operations.md has it: the first digit of the error, as a part of the norm."""
    update = np.random.default_rng(0).normal(size=size).astype(np.float32)
    encoded = encode(name, update)
    moved = np.linalg.norm(encoded.widened() - update) / np.linalg.norm(update)
    assert moved == pytest.approx(part, rel=0.25)
    assert encoded.values.nbytes == width * size


def test_rounding_is_unbiased():
    """A mean over 4,096 draws is within seven deviations of its value, for 64 values at once.

    The stream is fixed, so that this either always holds or never does.
    """
    update = np.random.default_rng(3).uniform(-1, 1, size=64).astype(np.float32)
    stream = SecretStream(bytes(32))
    draws = np.array([INT8.encode(update, stream.fill).widened() for _ in range(4096)], float)
    step = INT8.encode(update, stream.fill).step
    assert (abs(draws.mean(axis=0) - update) <= 7 * step / 2 / math.sqrt(4096)).all()
    fraction = update / step - np.floor(update / step)
    variance = step**2 * fraction * (1 - fraction)
    assert draws.var(axis=0) == pytest.approx(variance, rel=0.25, abs=1e-3 * step**2)


def test_every_draw_is_used_once():
    """A block that reused the words of the one before would round alike."""
    update = np.full(3 * 2**16, 0.5, "<f4")
    update[0] = 127
    q = encode("int8", update).values.reshape(3, -1)
    assert 0.45 < (q[1] != q[2]).mean() < 0.55
    assert not np.array_equal(q[0, 1:], q[1, 1:])


def test_random_bytes_that_are_not_random_are_noticed():
    update = np.full(4_000_000, 1.0, "<f4")
    with pytest.raises(LocalProtocolError, match="not random"):
        INT8.encode(update, lambda out: out.fill(0xFFFFFFFF))


@given(mantissa=st.floats(1, 2, exclude_max=True, width=16), exponent=st.integers(-100, 99))
@example(mantissa=1.0, exponent=-100)
@example(mantissa=1.5, exponent=99)
def test_a_step_of_few_bits_is_accepted_and_one_of_more_is_not(mantissa, exponent):
    step = math.ldexp(mantissa, exponent)
    assert INT8.header_flaw(3 * step, step, 9) is None
    longer = step * (1 + 2.0**-20)
    assert INT8.header_flaw(3 * longer, longer, 9) is Rejection.BAD_STEP


STEP = 0.25
FLAWS = {
    "a step below the smallest": (3 * MIN_STEP / 2, MIN_STEP / 2, Rejection.BAD_STEP),
    "a step above the largest": (6 * MAX_STEP, 2 * MAX_STEP, Rejection.BAD_STEP),
    "a negative step": (3 * STEP, -STEP, Rejection.BAD_STEP),
    "a step that is no number": (3 * STEP, math.nan, Rejection.BAD_STEP),
    "an infinite step": (3 * STEP, math.inf, Rejection.BAD_STEP),
    "no step, and a norm": (3 * STEP, 0.0, Rejection.BAD_STEP),
    "a step, and no norm": (0.0, STEP, Rejection.BAD_NORM),
    "a negative norm": (-3 * STEP, STEP, Rejection.BAD_NORM),
    "a norm that is no number": (math.nan, STEP, Rejection.BAD_NORM),
    "an infinite norm": (math.inf, STEP, Rejection.BAD_NORM),
    "a norm that no integers have": (3.0001 * STEP, STEP, Rejection.BAD_NORM),
    "a norm below one step": (0.4 * STEP, STEP, Rejection.BAD_NORM),
    "a norm beyond nine values": (math.sqrt(9 * 127**2 + 1) * STEP, STEP, Rejection.BAD_NORM),
}


@pytest.mark.parametrize(("norm", "step", "flaw"), FLAWS.values(), ids=FLAWS)
def test_a_header_that_cannot_be_true_is_refused(norm, step, flaw):
    assert flaw.provable
    assert INT8.header_flaw(norm, step, 9) is flaw


@pytest.mark.parametrize("name", FORMATS)
@given(norm=st.floats(), step=st.floats(), d=st.integers(1, 10**8))
@example(norm=1e308, step=MIN_STEP, d=9)
@example(norm=5e-324, step=MAX_STEP, d=9)
@example(norm=1e200, step=1.0, d=9)
def test_no_numbers_whatever_are_a_crash(name, norm, step, d):
    """They are a client's own."""
    flaw = FORMATS[name].header_flaw(norm, step, d)
    if flaw is None and name == "int8":
        assert 0 <= INT8.stated_square(norm, step) <= exact.MAX_SQUARE


def test_a_norm_may_be_rounded_in_another_order():
    norm = STEP * math.sqrt(123_457)
    for factor in (1 - 2.0**-42, 1 + 2.0**-42):
        assert INT8.header_flaw(norm * factor, STEP, 1000) is None
        assert INT8.stated_square(norm * factor, STEP) == 123_457
    assert INT8.header_flaw(norm * (1 + 2.0**-38), STEP, 1000) is Rejection.BAD_NORM


def test_a_norm_beyond_the_field_is_refused():
    longest = math.sqrt(exact.MAX_SQUARE)
    assert INT8.header_flaw(longest * STEP, STEP, 10**6) is None
    beyond = math.sqrt(exact.MAX_SQUARE + 1)
    assert INT8.header_flaw(beyond * STEP, STEP, 10**6) is Rejection.BAD_NORM


@pytest.mark.parametrize("name", ["float32", *HALVES])
def test_floats_have_no_step(name):
    assert FORMATS[name].header_flaw(1.0, 0.0, 9) is None
    assert FORMATS[name].header_flaw(1.0, 0.5, 9) is Rejection.BAD_STEP
    assert FORMATS[name].header_flaw(1.0, math.nan, 9) is Rejection.BAD_STEP


def test_a_norm_beyond_float16_is_refused():
    assert FORMATS["float16"].header_flaw(65504.0 * 3, 0.0, 9) is None
    assert FORMATS["float16"].header_flaw(65504.0 * 3.1, 0.0, 9) is Rejection.BAD_NORM
    assert FORMATS["float16"].header_flaw(2.0**-25, 0.0, 9) is Rejection.BAD_NORM


@given(arrays(np.int8, lengths, elements=st.integers(-128, 127)))
def test_the_one_byte_that_is_no_value_is_found_and_squares_are_exact(q):
    flaw = Rejection.BAD_VALUE if -128 in q.tolist() else None
    assert INT8.tile_flaw(q) is flaw
    assert INT8.square(q) == sum(int(each) ** 2 for each in q)


def test_squares_are_exact_over_many_blocks():
    q = np.full(1_000_003, 127, np.int8)
    assert INT8.square(q) == 1_000_003 * 127**2


# Names and lengths.


@pytest.mark.parametrize(
    ("name", "meant"), [("int", "int8"), ("bf16", "bfloat16"), ("float", "float32"), ("fp32", "")]
)
def test_an_unknown_format_is_refused_with_what_may_be_meant(name, meant):
    with pytest.raises(ConfigError, match="one of float32, bfloat16, float16, int8") as refused:
        uploads.find(name)
    assert (f"did you mean {meant}?" in str(refused.value)) or not meant


def test_int8_ends_where_rounding_takes_an_eighth():
    INT8.require_dimension(MAX_INTEGERS)
    with pytest.raises(
        ConfigError, match=r"at most 100000000 values; got 1000000000.*39%.*bfloat16"
    ):
        INT8.require_dimension(10**9)
    FORMATS["bfloat16"].require_dimension(2**40)
