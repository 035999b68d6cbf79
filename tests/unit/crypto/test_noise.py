import numpy as np
import pytest

from ostraka.config import Manifest, Terms
from ostraka.core import gaussian
from ostraka.core.gram import naive
from ostraka.crypto.masks import Noise
from ostraka.crypto.stream import SecretStream

ROWS = 7


def terms(d=100, tile=32):
    return Terms(Manifest.flat(d), f=1, masking="gaussian", tile=tile)


def entropy(seed=1):
    return SecretStream(bytes([seed]) * 32).bytes


def tiles(noise, agreed):
    return [noise.tile(index) for index in range(agreed.tiling.count)]


def made(seed=1, **changes):
    """All rows (n, d)."""
    agreed = terms(**changes)
    return np.concatenate(
        tiles(Noise(agreed.sigma, agreed.tiling, ROWS, entropy(seed)), agreed), axis=1
    )


@pytest.mark.parametrize(("d", "tile"), [(7, 3), (100, 32), (100, 100), (100, 1_000), (2_000, 64)])
def test_law4_all_distances_are_equal(d, tile):
    apart = naive(made(d=d, tile=tile))[np.triu_indices(ROWS, 1)]
    np.testing.assert_allclose(apart, 2 * d * terms(d, tile).sigma ** 2, rtol=1e-9)


def test_the_noise_is_on_the_grid():
    rows, step = made(), gaussian.grid_step(terms().sigma)
    assert np.array_equal(np.rint(rows / step) * step, rows)


def test_no_value_serves_twice():
    rows = made()
    assert np.unique(rows).size == rows.size


def test_one_source_gives_fresh_noise_every_time():
    source, agreed = entropy(), terms()
    one, two = (Noise(agreed.sigma, agreed.tiling, ROWS, source).tile(0) for _ in range(2))
    assert not np.isclose(one, two).any()


def test_a_tile_can_be_made_again():
    agreed = terms()
    noise = Noise(agreed.sigma, agreed.tiling, ROWS, entropy())
    first = tiles(noise, agreed)
    for index in (2, 0, 3):
        assert np.array_equal(noise.tile(index), first[index])


def test_rows_that_are_nearly_dependent_are_drawn_again(monkeypatch):
    draws = []
    real = gaussian.transform

    def transform(blocks, *, sigma):
        draws.append(next(iter(blocks())))
        if len(draws) < 3:
            raise gaussian.IllConditioned("drawn again")
        return real(blocks, sigma=sigma)

    monkeypatch.setattr(gaussian, "transform", transform)
    apart = naive(made())[np.triu_indices(ROWS, 1)]
    assert len(draws) == 3
    assert not np.isclose(draws[0], draws[2]).any()
    np.testing.assert_allclose(apart, 2 * 100 * terms().sigma ** 2, rtol=1e-9)


def test_the_seed_does_not_print():
    assert repr(Noise(terms().sigma, terms().tiling, ROWS, entropy())) == "Noise(7 rows, <secret>)"
