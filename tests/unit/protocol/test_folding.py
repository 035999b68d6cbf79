"""The first pass over a sketch: how much of the spool it holds at a time, and its secrets."""

import operator
from functools import partial

import numpy as np
import pytest

from ostraka.config import MAX_TILE_VALUES, Manifest, Terms
from ostraka.core import sketch
from ostraka.crypto.updates import TileOpener
from ostraka.protocol.enclave import Inside, Lanes
from ostraka.protocol.enclave.folding import Folding
from ostraka.protocol.enclave.rows import RowReader
from ostraka.protocol.round import enrol

N, M, BATCH = 5, 4096, 16 * 4096  # values of a row that are folded before they are added


def collected(tile, d=3 * BATCH + 1):
    """A cohort, and the federation that stores what its clients sent."""
    terms = Terms(
        Manifest.flat(d), f=1, masking="none", rule="multi-krum", pre=(), sketch=M, tile=tile
    )
    parties = enrol(terms, clients=N)
    local = parties.federation
    offer = local.open()
    rows = np.random.default_rng(0).normal(size=(N, d)).astype(np.float32)
    for client, update in zip(parties.clients, rows, strict=True):
        local.take(parties.seal(client, offer, update))
    return local.close(), local


def counted(tiles, taken):
    for tile in tiles:
        taken.append(tile)
        yield tile


@pytest.mark.parametrize("tile", [M, BATCH // 2, BATCH, 2 * BATCH])
def test_a_few_tiles_are_held_at_a_time_and_at_least_one(monkeypatch, tile):
    assert BATCH < MAX_TILE_VALUES
    cohort, spool = collected(tile)
    taken: list[object] = []
    ahead = []
    real = TileOpener.open_into

    def open_into(self, index, ciphertext, out):
        ahead.append(len(taken) - index)
        real(self, index, ciphertext, out)

    monkeypatch.setattr(TileOpener, "open_into", open_into)
    Inside(cohort).measure(counted(spool.tiles(cohort), taken))
    assert len(taken) == cohort.terms.tiling.count
    assert max(ahead) == max(1, BATCH // tile)


def test_law12_every_attempt_draws_signs_and_shifts_of_its_own(monkeypatch):
    """What one attempt was folded with says nothing of the next attempt with the same rows."""
    cohort, spool = collected(BATCH)
    signs, shifts, real = set(), set(), sketch.fold

    def fold(values, its_signs, its_shifts, out):
        signs.add(its_signs.tobytes())
        shifts.add(its_shifts.tobytes())
        real(values, its_signs, its_shifts, out)

    monkeypatch.setattr(sketch, "fold", fold)
    attempts = 3
    for _ in range(attempts):
        Folding(RowReader(cohort, Lanes())).fold(spool.tiles(cohort))
    # The last tile is one value: one sign and one shift, which attempts may well have in common.
    assert len(signs) >= attempts * 3
    assert len(shifts) >= attempts * 3


def test_law12_signs_and_shifts_are_a_function_of_the_enclave_s_entropy():
    """The sketch has no other secret than the bytes that the enclave drew for it."""
    cohort, spool = collected(BATCH)
    folded = []
    for key in (b"a", b"a", b"b"):
        reader = RowReader(cohort, Lanes())
        reader.entropy = partial(operator.mul, key)
        folding = Folding(reader)
        folding.fold(spool.tiles(cohort))
        folded.append(folding.rows)
    np.testing.assert_array_equal(folded[0], folded[1])
    assert not np.array_equal(folded[0], folded[2])
