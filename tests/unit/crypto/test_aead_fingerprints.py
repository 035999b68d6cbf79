import numpy as np
import pytest

from ostraka.crypto.aead import Fingerprints
from ostraka.errors import LocalProtocolError

TILE = np.arange(200, dtype=np.uint8)
TAGS = bytes(32)  # of two tiles


def kept():
    fingerprints = Fingerprints(bytes)
    fingerprints.keep(2, 3, TILE, TAGS)
    return fingerprints


def test_the_same_bytes_are_the_same():
    assert kept().same(2, 3, TILE, TAGS)
    assert kept().same(2, 3, TILE.view(np.float32), TAGS)


def test_every_bit_counts():
    fingerprints = kept()
    for bit in range(8 * len(TILE)):
        other = TILE.copy()
        other[bit // 8] ^= 1 << bit % 8
        assert not fingerprints.same(2, 3, other, TAGS)


def test_the_tags_count():
    fingerprints = kept()
    for tags in (bytes(31) + b"\1", b"\1" + bytes(31), bytes(16), bytes(48), b""):
        assert not fingerprints.same(2, 3, TILE, tags)


@pytest.mark.parametrize(
    "other", [TILE[:0], TILE[:-1], np.append(TILE, np.uint8(0)), TILE[::-1].copy()]
)
def test_other_bytes_are_not_the_same(other):
    assert not kept().same(2, 3, other, TAGS)


def test_a_fingerprint_is_of_its_own_place():
    fingerprints = kept()
    for row, index in ((3, 2), (0, 3), (2, 0)):
        fingerprints.keep(row, index, TILE[:9], TAGS)
        assert not fingerprints.same(row, index, TILE, TAGS)
    assert len(set(fingerprints._kept.values())) == 4


def test_the_same_bytes_in_two_places_have_two_fingerprints():
    """So that one does not show that two rows are alike."""
    fingerprints = kept()
    for row, index in ((3, 2), (2, 4), (4, 3)):
        fingerprints.keep(row, index, TILE, TAGS)
    assert len(set(fingerprints._kept.values())) == 4


def test_every_key_gives_other_fingerprints():
    one, two = Fingerprints(), Fingerprints()
    one.keep(0, 0, TILE, TAGS)
    two.keep(0, 0, TILE, TAGS)
    assert one._kept != two._kept


def test_a_place_is_read_once_in_the_first_pass():
    fingerprints = kept()
    with pytest.raises(LocalProtocolError, match="place 3 of row 2"):
        fingerprints.keep(2, 3, TILE, TAGS)
    assert fingerprints.same(2, 3, TILE, TAGS)


def test_the_key_does_not_print():
    assert repr(kept()) == "Fingerprints(1 places, <secret>)"
