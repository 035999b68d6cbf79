"""The secret sketch: what its secrets are, and that a row is folded as law 12 says."""

import gc
import operator
from functools import partial

import numpy as np
import pytest

from ostraka.arrays import Spares
from ostraka.config import Manifest, Terms, Tiling
from ostraka.core import sketch
from ostraka.protocol.enclave.arrival import Arrivals
from ostraka.protocol.enclave.folding import Folds, scale_of
from ostraka.protocol.round import enrol

N, M = 5, 4096


@pytest.fixture(autouse=True)
def memory_was_used_before(monkeypatch):
    """Rounds use the memory of others, which holds whatever these have left there."""
    take = Spares.take

    def taken(spares, length):
        vector = take(spares, length)
        vector.fill(np.nan)
        return vector

    monkeypatch.setattr(Spares, "take", taken)


@pytest.mark.parametrize("tile", [1_000, M, 2 * M, 3 * M + 5])
def test_every_tile_has_signs_and_as_many_shifts_as_blocks(tile):
    tiling = Tiling(10 * M + 1, tile)
    folds = Folds(tiling, M, np.random.default_rng(0).bytes)
    seen = set()
    for index in range(tiling.count):
        bits, shifts = folds.tiles[index].bits, folds.tiles[index].shifts
        assert 8 * len(bits) >= tiling.size(index)
        assert len(shifts) == sketch.blocks(tiling.size(index), M)
        assert (shifts < M).all()
        seen.add(bits.tobytes())
    assert len(seen) == tiling.count


def test_law12_signs_and_shifts_are_a_function_of_the_enclave_s_entropy():
    """The sketch has no other secret than the bytes that the enclave drew for it."""
    tiling = Tiling(3 * M, M)
    one, same, other = (Folds(tiling, M, partial(operator.mul, key)) for key in (b"a", b"a", b"b"))
    for index in range(tiling.count):
        for part in map(operator.attrgetter, ("bits", "shifts")):
            drawn = part(one.tiles[index])
            np.testing.assert_array_equal(drawn, part(same.tiles[index]))
            assert not np.array_equal(drawn, part(other.tiles[index]))


def test_the_secrets_do_not_print():
    assert repr(Folds(Tiling(M, M), M, np.random.default_rng(0).bytes)) == "Folds(<secret>)"


@pytest.mark.parametrize("norm", [0.0, 2.0**-149, 1e-30, 1e-3, 1.0, 1e9, 1e20, 3e41])
def test_a_row_s_scale_brings_its_squares_into_the_range_of_float32(norm):
    scale = scale_of(norm)
    assert scale == 1 or not 2.0**-40 <= norm <= 2.0**40
    assert norm * scale == 0 or 2.0**-41 <= norm * scale <= 2.0**40
    assert np.float32(scale) == pytest.approx(scale, rel=1e-6)


def folded(tile, size=1.0, d=5 * M + 77):
    """Rows, and what a round has folded them to with the secrets that it drew."""
    terms = Terms(
        Manifest.flat(d), f=1, masking="none", rule="multi-krum", pre=(), sketch=M, tile=tile
    )
    parties = enrol(terms, clients=N)
    local = parties.federation
    offer = local.open()
    rows = (size * np.random.default_rng(0).normal(size=(N, d))).astype(np.float32)
    for client, update in zip(parties.clients, rows, strict=True):
        local.take(parties.seal(client, offer, update))
    return rows, folds_of(local), local.close()


def folds_of(local):
    (part,) = local.intake._parts
    assert isinstance(part, Arrivals)
    return part.folds


@pytest.mark.parametrize("size", [1.0, 2.0**100, 2.0**-100])
@pytest.mark.parametrize("tile", [1_000, M, 2 * M, 3 * M + 5])
def test_law12_rows_are_folded_as_they_arrive(tile, size):
    rows, folds, cohort = folded(tile, size)
    tiling = cohort.terms.tiling
    for row, member in zip(rows.astype(np.float64), cohort.rows, strict=True):
        expected = np.zeros(M)
        for index in range(tiling.count):
            bits, shifts = folds.tiles[index].bits, folds.tiles[index].shifts
            values = row[tiling.part(index)] * (1 - 2.0 * np.unpackbits(bits)[: tiling.size(index)])
            for k, value in enumerate(values):
                expected[(k % M + shifts[k // M]) % M] += value
        got = member.sketch / np.float64(scale_of(member.norm))
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_every_opening_of_a_round_has_secrets_of_its_own():
    """What one opening was folded with says nothing of the next, even of the same number."""
    terms = Terms(Manifest.flat(M), f=1, masking="none", sketch=M, rule="multi-krum", pre=())
    local = enrol(terms, clients=N).federation
    seen = set()
    for _ in range(3):
        local.open()
        folds = folds_of(local)
        assert folds is not None
        seen.add(folds.tiles[0].bits.tobytes())
    assert len(seen) == 3


def test_memory_of_sketches_is_free_when_the_round_is(monkeypatch):
    """And not when Python finds out: the next round would take more, which nobody has counted."""
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(Spares, "take", remembering(Spares.take, taken))
    terms = Terms(Manifest.flat(M), f=1, masking="none", sketch=M, rule="multi-krum", pre=())
    parties = enrol(terms, clients=N)
    local = parties.federation
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            offer = local.open()
            local.take(parties.seal(parties.clients[0], offer, np.ones(M, np.float32)))
    finally:
        gc.enable()
    assert len({each for length, each in taken if length == N * M}) <= 2


def test_a_round_takes_no_memory_for_vectors_after_it_has_opened(monkeypatch):
    terms = Terms(Manifest.flat(M), f=1, masking="none", sketch=M, rule="multi-krum", pre=())
    parties = enrol(terms, clients=N)
    local = parties.federation
    offer = local.open()
    taken: list[int] = []
    monkeypatch.setattr("ostraka.arrays._new_space", taken.append)
    for client in parties.clients:
        local.take(parties.seal(client, offer, np.ones(M, np.float32)))
    local.finish()
    assert not taken


def remembering(take, taken):
    def remembered(spares, length):
        vector = take(spares, length)
        taken.append((length, vector.ctypes.data))
        return vector

    return remembered
