import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ostraka import merkle, messages
from ostraka.arrays import freeze
from ostraka.encoding import pack
from ostraka.messages import vector_digest

TILE = 65_536


def vector(d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=d).astype("<f4")


def by_hand(values: np.ndarray) -> bytes:
    """The name as docs/protocol.md has it."""

    def node(tiles: list[bytes]) -> bytes:
        if len(tiles) == 1:
            return hashlib.sha256(b"\0" + tiles[0]).digest()
        left = 1 << (len(tiles) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + node(tiles[:left]) + node(tiles[left:])).digest()

    raw = values.tobytes()
    tiles = [raw[at : at + 4 * TILE] for at in range(0, len(raw), 4 * TILE)]
    named = pack(b"ostraka/vector/v1", len(values).to_bytes(8, "big"), node(tiles))
    return hashlib.sha256(named).digest()


@pytest.mark.parametrize(
    "d", [1, 7, TILE - 1, TILE, TILE + 1, 2 * TILE, 3 * TILE - 5, 5 * TILE + 9]
)
def test_a_vector_is_named_by_its_length_and_the_root_over_its_tiles(d):
    values = vector(d)
    assert vector_digest(values) == by_hand(values)


def test_a_tile_can_be_checked_without_the_others():
    values = vector(4 * TILE + 3)
    leaves = [merkle.leaf(values[at : at + TILE].data) for at in range(0, len(values), TILE)]
    path = merkle.path_to(leaves, leaves[2])
    assert path is not None
    assert merkle.is_under(merkle.root(leaves), merkle.leaf(values[2 * TILE : 3 * TILE].data), path)
    named = pack(b"ostraka/vector/v1", len(values).to_bytes(8, "big"), merkle.root(leaves))
    assert vector_digest(values) == hashlib.sha256(named).digest()


def test_every_value_its_place_and_their_number_are_bound():
    values = vector(2 * TILE + 3)
    others = [values[:-1], np.append(values, np.float32(0)), np.roll(values, TILE), values[::-1]]
    for at in (0, TILE - 1, TILE, 2 * TILE, 2 * TILE + 2):
        changed = values.copy()
        changed.view(np.uint32)[at] ^= 1
        others.append(changed)
    names = {vector_digest(np.ascontiguousarray(each)) for each in (values, *others)}
    assert len(names) == 1 + len(others)


def test_threads_change_no_name():
    values = vector(7 * TILE + 1)
    with ThreadPoolExecutor(3) as pool:
        assert vector_digest(values, pool.map) == by_hand(values)


@pytest.fixture
def hashed(monkeypatch):
    """Collects the vectors that are really hashed."""
    done, real = [], messages._vector_digest

    def counted(values, run):
        done.append(values)
        return real(values, run)

    monkeypatch.setattr(messages, "_vector_digest", counted)
    return done


def test_a_frozen_vector_is_hashed_once(hashed):
    one, two = vector(9, seed=1), vector(9, seed=2)
    freeze(one)
    freeze(two)
    names = [vector_digest(each) for each in (one, two, one, two)]
    assert names == [by_hand(one), by_hand(two)] * 2
    assert len(hashed) == 2
    loaded = np.frombuffer(one.tobytes(), "<f4")
    assert vector_digest(loaded) == vector_digest(loaded) == names[0]
    assert len(hashed) == 3


def test_what_can_be_written_to_is_hashed_each_time(hashed):
    values = vector(9)
    memory = bytearray(values.tobytes())
    view, shared = values[:], np.frombuffer(memoryview(memory).toreadonly(), "<f4")
    freeze(view)
    for each in (values, view, shared):
        before = vector_digest(each)
        values[3] += 1
        memory[:] = values.tobytes()
        assert vector_digest(each) == by_hand(values) != before
    assert len(hashed) == 6


def test_another_vector_in_the_place_of_one_that_is_gone_has_its_own_name():
    for seed in range(50):
        values = vector(9, seed)
        freeze(values)
        assert vector_digest(values) == by_hand(values)
        del values
