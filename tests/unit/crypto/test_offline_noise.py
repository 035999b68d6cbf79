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


def opened(offline, sealed, agreed):
    """All rows (n, d), as an attempt opens them."""
    spent = offline.spend()
    out = np.empty((ROWS, agreed.dimension))
    for index, tile in enumerate(sealed):
        for group in layout(agreed).groups():
            buffer = np.empty((len(group), agreed.tiling.size(index)))
            spent.open_into(index, group, tile, buffer)
            out[group.start : group.stop, agreed.tiling.part(index)] = buffer
    return out


def layout(agreed):
    return SealedGroups(agreed.tiling, ROWS, 8)


def made(seed=1, **changes):
    agreed = terms(**changes)
    offline = OfflineNoise(agreed, ROWS, entropy(seed))
    return offline, list(offline.make()), agreed


@pytest.mark.parametrize(("d", "tile"), [(7, 3), (100, 32), (100, 100), (100, 1_000), (2_000, 64)])
def test_law4_all_distances_are_equal(d, tile):
    offline, sealed, agreed = made(d=d, tile=tile)
    rows = opened(offline, sealed, agreed)
    constant = 2 * d * agreed.sigma**2
    apart = naive(rows)[np.triu_indices(ROWS, 1)]
    np.testing.assert_allclose(apart, constant, rtol=1e-9)


def test_the_noise_is_on_the_grid():
    rows = opened(*made())
    step = gaussian.grid_step(terms().sigma)
    assert np.array_equal(np.rint(rows / step) * step, rows)


@pytest.mark.parametrize("changes", [{}, {"d": 100_000, "tile": 40_000}])
def test_tiles_are_sealed_by_groups_of_rows(changes):
    _, sealed, agreed = made(**changes)
    groups = len(list(layout(agreed).groups()))
    assert [len(tile) for tile in sealed] == [
        ROWS * 8 * agreed.tiling.size(index) + 16 * groups for index in range(agreed.tiling.count)
    ]


def test_a_cohort_may_end_within_a_group():
    offline, sealed, agreed = made(d=100_000, tile=40_000)
    assert list(layout(agreed).groups()) == [range(3), range(3, 6), range(6, 7)]
    spent = offline.spend()
    whole, part = np.empty((3, 40_000)), np.empty((2, 40_000))
    spent.open_into(1, range(3, 6), sealed[1], whole)
    spent.open_into(1, range(3, 5), sealed[1], part)
    assert np.array_equal(part, whole[:2])


def test_the_host_sees_nothing_of_it():
    offline, sealed, agreed = made()
    rows = opened(offline, sealed, agreed)
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
    one, sealed_one, agreed = made(1)
    two, sealed_two, _ = made(2)
    with pytest.raises(OpenError, match="noise"):
        two.spend().open_into(0, range(ROWS), sealed_one[0], np.empty((ROWS, 32)))
    rows = opened(one, sealed_one, agreed)
    assert sealed_one[0] != sealed_two[0]
    assert np.unique(rows).size == rows.size


def test_one_source_gives_fresh_noise_every_time():
    source, agreed = entropy(), terms()
    sets = [OfflineNoise(agreed, ROWS, source) for _ in range(2)]
    rows = [opened(each, list(each.make()), agreed) for each in sets]
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
    offline, sealed, agreed = made()
    assert len(seeds) == 3
    first, last = (next(iter(seeds[draw]())) for draw in (0, 2))
    assert not np.isclose(first, last).any()
    apart = naive(opened(offline, sealed, agreed))[np.triu_indices(ROWS, 1)]
    np.testing.assert_allclose(apart, 2 * 100 * agreed.sigma**2, rtol=1e-9)


def test_the_key_does_not_print():
    offline, _, _ = made()
    assert repr(offline) == "OfflineNoise(7 rows, spent=False, <secret>)"
    assert repr(offline.spend()) == "SpentNoise(7 rows, <secret>)"
