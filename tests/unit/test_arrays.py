"""Memory that is lent to vectors, again and again."""

import ctypes

import numpy as np
import pytest

from ostraka.arrays import Spares, freeze, is_frozen
from ostraka.messages import vector_digest

LENGTH = 5000

VIEWS = {
    "a slice": lambda vector: vector[1:],
    "a slice of a slice": lambda vector: vector[1:][1:],
    "other values": lambda vector: vector.view(np.uint8)[7:],
    "another shape": lambda vector: vector.reshape(2, -1)[1],
    "a buffer": memoryview,
    "a part of a buffer": lambda vector: vector.data.cast("B")[4:],
    "an array of a buffer": lambda vector: np.asarray(memoryview(vector)[3:]),
    "a pointer": (ctypes.c_char * 4).from_buffer,
}


def place(vector):
    return vector.ctypes.data


def test_memory_is_lent_again_once_nobody_holds_it():
    spares = Spares()
    first = spares.take(LENGTH)
    before = place(first)
    del first
    assert place(spares.take(LENGTH)) == before


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_memory_is_not_lent_while_anybody_sees_it(view):
    spares = Spares()
    first = spares.take(LENGTH)
    before, held = place(first), view(first)
    del first
    second = spares.take(LENGTH)
    assert place(second) != before
    del held
    assert place(spares.take(LENGTH)) == before


def test_two_vectors_have_memory_of_their_own():
    spares = Spares()
    spares.prepare([LENGTH] * 2)
    one, other = spares.take(LENGTH), spares.take(LENGTH)
    one.fill(1)
    other.fill(2)
    assert (one == 1).all()
    assert not np.shares_memory(one, other)


def test_all_that_was_prepared_is_at_hand():
    spares = Spares()
    lengths = [LENGTH, LENGTH - 1, LENGTH, LENGTH - 1]
    spares.prepare(lengths)
    ready = {id(space) for space in spares._free}
    held = [spares.take(length) for length in lengths]
    assert len(ready) == len(held)
    assert not spares._free


def test_the_smallest_memory_that_fits_is_taken():
    spares = Spares()
    long, short = spares.take(3 * LENGTH), spares.take(LENGTH)
    places = place(long), place(short)
    del long, short
    again = spares.take(LENGTH - 1)
    assert (place(again), len(again)) == (places[1], LENGTH - 1)
    assert place(spares.take(LENGTH)) not in places  # The long one is left to long ones.
    assert place(spares.take(2 * LENGTH)) == places[0]


def test_a_vector_may_be_empty():
    assert Spares().take(0).shape == (0,)


def test_what_is_not_used_is_given_up():
    spares = Spares()
    held = [spares.take(LENGTH) for _ in range(9)]
    del held
    spares.prepare([LENGTH])
    assert len(spares._free) <= 4


def test_a_frozen_vector_stays_frozen_and_its_memory_is_writeable_again():
    spares = Spares()
    vector = spares.take(LENGTH)
    vector.fill(1)
    assert not is_frozen(vector)
    freeze(vector)
    assert is_frozen(vector)
    before, name = place(vector), vector_digest(vector)
    del vector
    again = spares.take(LENGTH)
    assert place(again) == before
    again.fill(2)
    freeze(again)
    assert vector_digest(again) != name, "the digest of what was in this memory before"


def test_memory_that_others_may_write_to_is_not_frozen():
    view = np.frombuffer(memoryview(bytearray(40)).toreadonly(), np.float32)
    assert not is_frozen(view)
