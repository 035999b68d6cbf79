import numpy as np
import pytest

from ostraka.config import Manifest, Terms, Tiling
from ostraka.core import field
from ostraka.crypto.offline import OfflineMask, mask_stream, mask_tile
from ostraka.crypto.stream import SecretStream
from ostraka.errors import LocalProtocolError

SEED = bytes(range(32))
# Tiles of 2^15 values make groups of four rows; the second tile is short.
COLUMNS = Tiling((1 << 15) + 50, 1 << 15)


def mask(rows, seed=SEED):
    tiles = [mask_tile(seed, rows, COLUMNS, index) for index in range(COLUMNS.count)]
    return np.concatenate(tiles, axis=1)


def offline(workers, rows=6):
    terms = Terms(Manifest.flat(COLUMNS.length), f=1, workers=workers, tile=COLUMNS.tile)
    return OfflineMask(terms, rows, entropy=lambda count: SEED[:count])


def test_a_mask_is_residues_of_its_seed():
    whole = mask(6)
    assert whole.shape == (6, COLUMNS.length)
    assert whole.max() < field.P
    assert np.array_equal(whole, mask(6))
    assert not np.array_equal(whole, mask(6, bytes(32)))
    assert len({row.tobytes() for row in whole[:, -50:]}) == 6


@pytest.mark.parametrize("rows", range(1, 10))
def test_a_smaller_cohort_has_the_first_rows_of_the_same_mask(rows):
    """Also where it ends within a group."""
    assert np.array_equal(mask(rows), mask(10)[:rows])


def test_every_tile_of_every_group_has_a_stream_of_its_own():
    streams = {mask_stream(index, range(first, 99)) for index in range(9) for first in range(9)}
    assert len(streams) == 81
    stream = SecretStream(SEED, stream=mask_stream(1, range(4, 6)))
    assert np.array_equal(stream.uniform((2, 50), field.P), mask(6)[4:, -50:])


@pytest.mark.parametrize("workers", [2, 4, 6])
def test_with_an_even_number_of_workers_the_gram_matrix_is_made_here(workers):
    prepared = offline(workers)
    assert list(prepared.make()) == [b"", b""], "a tile at a time, and the host has nothing to keep"
    spent = prepared.spend()
    assert spent.seed == SEED
    assert np.array_equal(spent.gram, field.gram(mask(6)))


@pytest.mark.parametrize("workers", [3, 5, 7])
def test_with_an_odd_number_of_workers_the_last_one_makes_it(workers):
    prepared = offline(workers)
    assert list(prepared.make()) == []
    assert prepared.spend().gram is None


def test_a_mask_serves_once_and_not_before_it_is_made():
    prepared = offline(2)
    with pytest.raises(LocalProtocolError, match="not made"):
        prepared.spend()
    making = prepared.make()
    next(making)
    with pytest.raises(LocalProtocolError, match="not made"):
        prepared.spend()
    assert list(making) == [b""]
    prepared.spend()
    with pytest.raises(LocalProtocolError, match="spent"):
        prepared.spend()


def test_secrets_do_not_print():
    prepared = offline(3)
    for each in (prepared, prepared.spend()):
        assert "<secret>" in repr(each)
        assert SEED.hex() not in repr(each)
