import numpy as np
import pytest

from ostraka.config import Tiling
from ostraka.core import field
from ostraka.crypto.masks import mask_stream, mask_tile
from ostraka.crypto.stream import SecretStream

SEED = bytes(range(32))
# Tiles of 2^15 values make groups of four rows; the second tile is short.
COLUMNS = Tiling((1 << 15) + 50, 1 << 15)


def mask(rows, seed=SEED):
    tiles = [mask_tile(seed, rows, COLUMNS, index) for index in range(COLUMNS.count)]
    return np.concatenate(tiles, axis=1)


def test_a_mask_is_residues_of_its_seed():
    whole = mask(6)
    assert whole.shape == (6, COLUMNS.length)
    assert whole.max() < field.P
    assert np.array_equal(whole, mask(6))
    assert not np.array_equal(whole, mask(6, bytes(32)))
    assert len({row.tobytes() for row in whole[:, -50:]}) == 6


@pytest.mark.parametrize("rows", range(1, 10))
def test_a_cohort_may_end_within_a_group(rows):
    assert np.array_equal(mask(rows), mask(10)[:rows])


def test_every_tile_of_every_group_has_a_stream_of_its_own():
    streams = {mask_stream(index, range(first, 99)) for index in range(9) for first in range(9)}
    assert len(streams) == 81
    stream = SecretStream(SEED, stream=mask_stream(1, range(4, 6)))
    assert np.array_equal(stream.uniform((2, 50), field.P), mask(6)[4:, -50:])
