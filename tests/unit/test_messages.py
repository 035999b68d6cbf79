import hashlib
import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ostraka import merkle, messages
from ostraka.arrays import freeze
from ostraka.encoding import pack
from ostraka.messages import (
    first_model,
    joined_digest,
    note_digest,
    vector_digest,
    vector_leaves,
)

LEAF = 16_384


def vector(d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=d).astype("<f4")


def by_hand(values: np.ndarray) -> bytes:
    """The name as docs/protocol.md has it."""

    def node(parts: list[bytes]) -> bytes:
        if len(parts) == 1:
            return hashlib.sha256(b"\0" + parts[0]).digest()
        left = 1 << (len(parts) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + node(parts[:left]) + node(parts[left:])).digest()

    raw = values.tobytes()
    parts = [raw[at : at + 4 * LEAF] for at in range(0, len(raw), 4 * LEAF)]
    named = pack(b"ostraka/vector/v2", len(values).to_bytes(8, "big"), node(parts))
    return hashlib.sha256(named).digest()


@pytest.mark.parametrize(
    "d", [1, 7, LEAF - 1, LEAF, LEAF + 1, 2 * LEAF, 3 * LEAF - 5, 5 * LEAF + 9, 17 * LEAF + 1]
)
def test_a_vector_is_named_by_its_length_and_the_root_over_its_parts(d):
    values = vector(d)
    assert vector_digest(values) == by_hand(values)


def test_a_part_can_be_checked_without_the_others():
    values = vector(4 * LEAF + 3)
    leaves = [merkle.leaf(values[at : at + LEAF].data) for at in range(0, len(values), LEAF)]
    path = merkle.path_to(leaves, leaves[2])
    assert path is not None
    assert merkle.is_under(merkle.root(leaves), merkle.leaf(values[2 * LEAF : 3 * LEAF].data), path)
    named = pack(b"ostraka/vector/v2", len(values).to_bytes(8, "big"), merkle.root(leaves))
    assert vector_digest(values) == hashlib.sha256(named).digest()


def test_every_value_its_place_and_their_number_are_bound():
    values = vector(2 * LEAF + 3)
    others = [values[:-1], np.append(values, np.float32(0)), np.roll(values, LEAF), values[::-1]]
    for at in (0, LEAF - 1, LEAF, 2 * LEAF, 2 * LEAF + 2):
        changed = values.copy()
        changed.view(np.uint32)[at] ^= 1
        others.append(changed)
    names = {vector_digest(np.ascontiguousarray(each)) for each in (values, *others)}
    assert len(names) == 1 + len(others)


def test_threads_change_no_name():
    values = vector(27 * LEAF + 1)  # Several threads have more than one part each.
    with ThreadPoolExecutor(3) as pool:
        assert vector_digest(values, pool.map) == by_hand(values)


@pytest.fixture
def hashed(monkeypatch):
    """Collects the vectors that are really hashed."""
    done, real = [], messages.vector_leaves

    def counted(values, run):
        done.append(values)
        return real(values, run)

    monkeypatch.setattr(messages, "vector_leaves", counted)
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


def test_leaves_of_slices_are_those_of_the_whole():
    """Shards make their own, and the lead joins them without a value."""
    values = vector(5 * LEAF + 9)
    for cut in ([0], [0, 1], [0, 2, 3], [0, 1, 2, 3, 4, 5]):
        edges = [LEAF * each for each in cut] + [len(values)]
        slices = [values[a:b].copy() for a, b in itertools.pairwise(edges)]
        leaves = [leaf for each in slices for leaf in vector_leaves(each)]
        assert joined_digest(len(values), leaves) == by_hand(values)


@pytest.mark.parametrize("d", [1, LEAF - 1, LEAF, 2 * LEAF, 3 * LEAF + 5])
def test_the_first_model_is_zeros_without_their_being_made(d):
    federation: Any = SimpleNamespace(initial=b"", terms=SimpleNamespace(dimension=d))
    assert first_model(federation) == by_hand(np.zeros(d, "<f4"))
    given: Any = SimpleNamespace(initial=b"i" * 32, terms=federation.terms)
    assert first_model(given) == b"i" * 32


def test_a_name_is_noted_of_frozen_vectors_only(hashed):
    values, name = vector(9), b"n" * 32
    note_digest(values, name)
    assert vector_digest(values) == by_hand(values)
    freeze(values)
    note_digest(values, name)
    assert vector_digest(values) == name
    assert len(hashed) == 1
