import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostraka.core import field
from ostraka.core.field import P
from ostraka.core.loops import twin

EXTREMES = [0, 1, 2, 2**15, 2**16 - 1, 2**16, 2**30, (P - 1) // 2, (P + 1) // 2, P - 2, P - 1]
MODULI = [1, 2, 3, 5, 7, 31, 127]
residues = st.one_of(st.sampled_from(EXTREMES), st.integers(0, P - 1))


def u32(values):
    return np.array(values, np.uint32)


def all_pairs(values):
    a, b = np.meshgrid(u32(values), u32(values))
    return a.reshape(-1).copy(), b.reshape(-1).copy()


def matrices(rows, columns, seed):
    """Random residues with every extreme among them."""
    block = np.random.default_rng(seed).integers(0, P, (rows, columns)).astype(np.uint32)
    block.reshape(-1)[: len(EXTREMES)] = EXTREMES[: block.size]
    return block


def exact_product(a, b):
    return (a.astype(object) @ b.astype(object) % P).astype(np.uint32)


@pytest.mark.parametrize("modulus", [*MODULI, P])
def test_add_of_every_pair(modulus):
    values = range(modulus) if modulus < P else EXTREMES
    a, b = all_pairs(values)
    total = field.add(a, b, np.empty_like(a), np.empty_like(a), modulus)
    np.testing.assert_array_equal(total, (a.astype(int) + b) % modulus)


def test_add_works_in_place():
    a, b = all_pairs(EXTREMES)
    scratch = np.empty_like(a)
    expected = field.add(a, b, np.empty_like(a), scratch)
    for where in (0, 1):
        operands = [a.copy(), b.copy()]
        field.add(operands[0], operands[1], operands[where], scratch)
        np.testing.assert_array_equal(operands[where], expected)


@pytest.mark.parametrize("modulus", [*MODULI, P])
def test_law8_both_shares_of_every_residue_under_every_mask(modulus):
    """The loops' own sum and difference, by their twin."""
    q, mask = all_pairs(range(modulus) if modulus < P else EXTREMES)
    shares = np.empty((2, *q.shape), np.uint32)
    twin._shares(q, mask[None], shares, np.empty_like(q), np.uint32(modulus))
    np.testing.assert_array_equal(shares[0], (q.astype(int) + mask) % modulus)
    np.testing.assert_array_equal(shares[1], (q.astype(int) - mask) % modulus)


@pytest.mark.parametrize("modulus", [3, 5, 7, 31, 127, P])
def test_law8_the_loops_multiply_by_every_small_factor(modulus):
    a = np.arange(modulus, dtype=np.uint32) if modulus < P else u32(EXTREMES)
    for factor in range(1, 40):
        product = twin._times(a, factor, np.empty_like(a), np.uint32(modulus))
        np.testing.assert_array_equal(product, a.astype(object) * factor % modulus)


@pytest.mark.parametrize("modulus", MODULI)
def test_signed_is_the_inverse_of_reduce(modulus):
    every = np.arange(modulus, dtype=np.uint32)
    values = field.signed(every, modulus)
    np.testing.assert_array_equal(field.reduce(values, modulus), every)
    assert np.abs(values).max() <= modulus // 2


def test_signed_and_reduce_at_the_ends():
    assert field.signed(u32([0, 1, (P - 1) // 2, (P + 1) // 2, P - 1])).tolist() == [
        0,
        1,
        (P - 1) // 2,
        -(P - 1) // 2,
        -1,
    ]
    ends = [-(2**62), -P - 1, -P, -1, 0, P - 1, P, 2**62]
    assert field.reduce(np.array(ends)).tolist() == [x % P for x in ends]


@given(values=st.lists(st.integers(2**31 - 2**53, 2**53 - 2**31), min_size=1, max_size=20))
def test_balance_is_exact_and_small(values):
    # Ties and their neighbours are where a rounded quotient goes wrong.
    values += [P * k // 2 + e for k in (1, 2**21 - 1, -(2**21) + 1) for e in (-1, 0, 1)]
    balanced = np.array(values, np.float64)
    field.balance(balanced)
    assert [int(x) % P for x in balanced] == [x % P for x in values]
    assert np.abs(balanced).max() <= P / 2 + 1


@settings(deadline=None)
@given(rows=st.lists(st.lists(residues, min_size=3, max_size=3), min_size=1, max_size=5))
def test_gram_against_python_integers(rows):
    block = u32(rows)
    np.testing.assert_array_equal(field.gram(block), exact_product(block, block.T))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 5000), (7, 4097), (33, 100)])
def test_gram_of_random_blocks(rows, columns):
    block = matrices(rows, columns, seed=rows)
    np.testing.assert_array_equal(field.gram(block), exact_product(block, block.T))


def test_gram_takes_any_layout():
    whole = matrices(20, 90, seed=1)
    for block in (whole[:, 3:50], whole[::2], whole[:, ::-1], whole[:, ::3], whole.T):
        np.testing.assert_array_equal(field.gram(block), exact_product(block, block.T))


def test_gram_of_the_largest_residues_in_more_columns_than_one_sum_holds(monkeypatch):
    block = np.full((2, 3000), P - 1, np.uint32)
    assert (field.gram(block) == 3000).all()  # (-1)^2 in each of 3000 columns
    columns = field._EXACT_TERMS + 5
    assert (field.gram(np.full((2, columns), P - 1, np.uint32)) == columns).all()
    # All 16 low bits and all 15 high ones: the largest limbs there are below p.
    largest = P - 2**16
    worst = np.full((1, field._EXACT_TERMS), largest, np.uint32)
    assert int(field.gram(worst)[0, 0]) == field._EXACT_TERMS * largest**2 % P
    monkeypatch.setattr(field, "_EXACT_TERMS", 7)
    monkeypatch.setattr(field, "_PANEL", 3)
    block = matrices(4, 50, seed=1)
    np.testing.assert_array_equal(field.gram(block), exact_product(block, block.T))


def test_the_stated_number_of_terms_is_exact_and_not_far_below_what_float64_holds():
    largest = (2**15 - 1 + 2**16 - 1) ** 2
    assert field._EXACT_TERMS * largest < 2**53 < 16 * field._EXACT_TERMS * largest


def test_add_gram_accumulates():
    block = matrices(5, 300, seed=2)
    total = np.zeros((5, 5), np.uint32)
    for start in range(0, 300, 70):
        field.add_gram(total, block[:, start : start + 70])
    np.testing.assert_array_equal(total, field.gram(block))


@pytest.mark.parametrize("columns", [0, 1, 5000, 20_000])
def test_the_gram_of_two_rows_is_that_of_their_residues(columns):
    rng = np.random.default_rng(columns)
    block = rng.integers(2**31 - 2**53, 2**53 - 2**31, (2, columns))
    total = field.gram(matrices(2, 10, seed=4))
    expected = total.copy()
    field.add_gram(expected, field.reduce(block))
    field.add_gram_of_two(total, block.astype(np.float64))
    np.testing.assert_array_equal(total, expected)


def test_the_gram_of_two_rows_may_have_more_columns_than_one_sum_holds(monkeypatch):
    monkeypatch.setattr(field, "_EXACT_TERMS", 7)
    block = matrices(2, 50, seed=5)
    total = np.zeros((2, 2), np.uint32)
    field.add_gram_of_two(total, block.astype(np.float64))
    np.testing.assert_array_equal(total, field.gram(block))


def test_matmul_against_python_integers():
    a, b = matrices(4, 30, seed=5), matrices(30, 6, seed=6)
    np.testing.assert_array_equal(field.matmul(a, b), exact_product(a, b))
    ones = np.full((2, 1000), P - 1, np.uint32)
    assert (field.matmul(ones, ones.T) == 1000).all()


@pytest.mark.parametrize(("rows", "columns"), [(3, 1), (4, 9), (10, 7)])
def test_the_gram_of_many_rows_is_made_some_rows_and_columns_at_a_time(monkeypatch, rows, columns):
    block, start = matrices(rows, columns, rows), matrices(rows, rows, 7)
    start = np.triu(start) + np.triu(start, 1).T
    expected = ((start.astype(object) + exact_product(block, block.T)) % P).astype(np.uint32)
    for name, value in {"_MANY_ROWS": 2, "_JOINED": 3, "_LIMB_VALUES": 4 * rows}.items():
        monkeypatch.setattr(field, name, value)
    field.add_gram(start, block)
    np.testing.assert_array_equal(start, expected)


def test_a_product_is_made_some_rows_at_a_time(monkeypatch):
    a, b = matrices(2, 9, 1), matrices(9, 5, 2)
    monkeypatch.setattr(field, "_LIMB_VALUES", 10)
    np.testing.assert_array_equal(field.matmul(a, b), exact_product(a, b))


def test_signed_in_place_is_signed():
    values = matrices(300, 5, 3)
    expected = field.signed(values)
    found = field.signed_in_place(values)
    np.testing.assert_array_equal(found, expected)
    assert np.shares_memory(found, values)
