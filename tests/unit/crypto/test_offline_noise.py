import numpy as np
import pytest

from ostraka.config import Manifest, Terms
from ostraka.core import gaussian
from ostraka.core.gram import naive
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.offline import OfflineNoise
from ostraka.crypto.stream import SecretStream
from ostraka.errors import LocalProtocolError, OpenError

ROWS = 7


def terms(d=100, tile=32):
    return Terms(Manifest.flat(d), f=1, masking="gaussian", tile=tile)


def entropy(seed=1):
    return SecretStream(bytes([seed]) * 32).bytes


def opened(offline, sealed, config):
    """All rows (n, d), as an attempt opens them."""
    spent = offline.spend()
    out = np.empty((ROWS, config.dimension))
    for index, tile in enumerate(sealed):
        for group in layout(config).groups():
            buffer = np.empty((len(group), config.tiling.size(index)))
            spent.open_into(index, group, tile, buffer)
            out[group.start : group.stop, config.tiling.part(index)] = buffer
    return out


def layout(config):
    return SealedGroups(config.tiling, ROWS, 8)


def made(seed=1, **changes):
    config = terms(**changes)
    offline = OfflineNoise(config, ROWS, entropy(seed))
    return offline, list(offline.make()), config


@pytest.mark.parametrize(("d", "tile"), [(7, 3), (100, 32), (100, 100), (100, 1_000), (2_000, 64)])
def test_law4_all_distances_are_equal(d, tile):
    offline, sealed, config = made(d=d, tile=tile)
    rows = opened(offline, sealed, config)
    constant = 2 * d * config.sigma**2
    apart = naive(rows)[np.triu_indices(ROWS, 1)]
    np.testing.assert_allclose(apart, constant, rtol=1e-9)


def test_the_noise_is_on_the_grid():
    rows = opened(*made())
    step = gaussian.grid_step(terms().sigma)
    assert np.array_equal(np.rint(rows / step) * step, rows)


@pytest.mark.parametrize("changes", [{}, {"d": 100_000, "tile": 40_000}])
def test_tiles_are_sealed_by_groups_of_rows(changes):
    _, sealed, config = made(**changes)
    groups = len(list(layout(config).groups()))
    assert [len(tile) for tile in sealed] == [
        ROWS * 8 * config.tiling.size(index) + 16 * groups for index in range(config.tiling.count)
    ]


def test_a_cohort_may_end_within_a_group():
    offline, sealed, config = made(d=100_000, tile=40_000)
    assert list(layout(config).groups()) == [range(3), range(3, 6), range(6, 7)]
    spent = offline.spend()
    whole, part = np.empty((3, 40_000)), np.empty((2, 40_000))
    spent.open_into(1, range(3, 6), sealed[1], whole)
    spent.open_into(1, range(3, 5), sealed[1], part)
    assert np.array_equal(part, whole[:2])


def test_the_host_sees_nothing_of_it():
    offline, sealed, config = made()
    rows = opened(offline, sealed, config)
    blob = b"".join(sealed)
    assert not any(value.tobytes() in blob for value in rows.ravel())


def test_noise_is_made_once_and_spent_once():
    offline, _, _ = made()
    with pytest.raises(LocalProtocolError, match="made before"):
        list(offline.make())
    offline.spend()
    with pytest.raises(LocalProtocolError, match="spent"):
        offline.spend()


def test_two_sets_are_different_and_do_not_open_each_other():
    one, sealed_one, config = made(1)
    two, sealed_two, _ = made(2)
    with pytest.raises(OpenError, match="noise"):
        two.spend().open_into(0, range(ROWS), sealed_one[0], np.empty((ROWS, 32)))
    rows = opened(one, sealed_one, config)
    assert sealed_one[0] != sealed_two[0]
    assert np.unique(rows).size == rows.size


def test_one_source_gives_fresh_noise_every_time():
    source, config = entropy(), terms()
    sets = [OfflineNoise(config, ROWS, source) for _ in range(2)]
    rows = [opened(each, list(each.make()), config) for each in sets]
    assert not np.isclose(rows[0], rows[1]).any()


def test_the_same_entropy_gives_the_same_noise():
    assert made(1)[1] == made(1)[1]
    assert made(1)[1] != made(2)[1]


def flip(data, at=0):
    raw = bytearray(data)
    raw[at] ^= 1
    return bytes(raw)


SIZE = 3 * 40_000 * 8 + 16  # of a sealed group of three rows

MISPLACED = {
    "an altered row": lambda tiles: (0, range(3), flip(tiles[0])),
    "an altered tag of the last group": lambda tiles: (0, range(6, 7), flip(tiles[0], -1)),
    "another tile": lambda tiles: (0, range(3), tiles[1]),
    "another group": lambda tiles: (0, range(3), tiles[0][SIZE:]),
    "part of a group, altered in the rest": lambda tiles: (0, range(2), flip(tiles[0], SIZE - 20)),
    "a tile cut short": lambda tiles: (0, range(6, 7), tiles[0][:-1]),
    "no tile": lambda tiles: (0, range(3), b""),
    "the short last tile": lambda tiles: (0, range(3), tiles[2]),
}


@pytest.fixture(scope="module")
def spent_and_sealed():
    offline, sealed, _ = made(d=100_000, tile=40_000)
    return offline.spend(), sealed


@pytest.mark.parametrize("what", MISPLACED)
def test_noise_that_the_host_altered_does_not_open(spent_and_sealed, what):
    spent, sealed = spent_and_sealed
    index, group, tile = MISPLACED[what](sealed)
    with pytest.raises(OpenError, match="noise"):
        spent.open_into(index, group, tile, np.empty((len(group), 40_000)))


def test_rows_that_are_nearly_dependent_are_drawn_again(monkeypatch):
    seeds = []
    real = gaussian.transform

    def transform(blocks, *, sigma):
        seeds.append(blocks)
        if len(seeds) < 3:
            raise gaussian.IllConditioned("drawn again")
        return real(blocks, sigma=sigma)

    monkeypatch.setattr(gaussian, "transform", transform)
    offline, sealed, config = made()
    assert len(seeds) == 3
    first, last = (next(iter(seeds[draw]())) for draw in (0, 2))
    assert not np.isclose(first, last).any()
    apart = naive(opened(offline, sealed, config))[np.triu_indices(ROWS, 1)]
    np.testing.assert_allclose(apart, 2 * 100 * config.sigma**2, rtol=1e-9)


def test_the_key_does_not_print():
    offline, _, _ = made()
    assert repr(offline) == "OfflineNoise(7 rows, spent=False, <secret>)"
    assert repr(offline.spend()) == "SpentNoise(7 rows, <secret>)"
