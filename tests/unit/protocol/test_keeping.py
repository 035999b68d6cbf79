"""Rows in memory and in the spool: the same values, within the budget, in a random order."""

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.config import MAX_PIECE_VALUES, Federation, Manifest, Member, Terms
from ostraka.core.uploads import FORMATS
from ostraka.crypto.aead import nonce
from ostraka.crypto.updates import TileOpener
from ostraka.errors import OpenError, StorageFull
from ostraka.protocol.enclave.keeping import Keeping, Memory
from ostraka.protocol.local import InMemory

D, TILE, ROWS = 100, 32, 6
KEY, BOUND = b"k" * 32, b"b" * 32
SIZE = 4 * D


def federation(d=D, tile=TILE, rows=ROWS):
    clients = tuple(Member(f"client-{i}", i.to_bytes(32, "big")) for i in range(1, rows + 1))
    terms = Terms(Manifest.flat(d), f=1, masking="none", tile=tile)
    return Federation(terms, clients, (), b"a" * 32, b"i" * 32)


def keep(kept, opener, values, tiling):
    """What arrives of one row: every tile is opened where it is to be, and kept."""
    for index in range(tiling.count):
        raw = values[tiling.part(index)].tobytes()
        sealed = AESGCM(KEY).encrypt(nonce(index), raw, BOUND)
        opener.open_bytes(index, sealed, kept.room(index))
        kept.keep(index, sealed)


def kept_rows(budget, agreed=None, spool=None):
    """All rows of a round, and what they are."""
    agreed = agreed or federation()
    keeping = Keeping(agreed, Memory(budget), spool or InMemory(), np.random.default_rng(0).bytes)
    rng, opener = np.random.default_rng(1), TileOpener(KEY, BOUND)
    rows = []
    for row in range(len(agreed.clients)):
        kept = keeping.place(row, opener)
        values = rng.normal(size=agreed.terms.dimension).astype(np.float32)
        keep(kept, opener, values, agreed.terms.tiling)
        rows.append((kept, values))
    return agreed, rows


def read(kept, pieces):
    out = np.empty(pieces.tile, np.float32)
    return np.concatenate([kept.read(index, out).copy() for index in range(pieces.count)])


@pytest.mark.parametrize("budget", [0, SIZE - 1, SIZE, 3 * SIZE + 1, ROWS * SIZE, 2**40])
def test_as_many_rows_as_the_budget_holds_are_in_memory_and_all_are_the_same(budget):
    agreed, rows = kept_rows(budget)
    resident = [kept.resident for kept, _ in rows]
    fit = min(ROWS, budget // SIZE)
    assert resident == [True] * fit + [False] * (ROWS - fit)
    for kept, values in rows:
        np.testing.assert_array_equal(read(kept, agreed.pieces), values)


@pytest.mark.parametrize("upload", FORMATS)
def test_a_row_of_any_format_reads_the_same_from_memory_and_from_the_spool(upload):
    agreed = federation()
    agreed = replace(agreed, terms=replace(agreed.terms, upload=upload))
    size, step = D * FORMATS[upload].dtype.itemsize, 0.25
    keeping = Keeping(agreed, Memory(size), InMemory(), np.random.default_rng(0).bytes)
    opener = TileOpener(KEY, BOUND)
    sealed = np.random.default_rng(1).integers(-9, 9, size=D).astype(np.float32)
    if upload == "bfloat16":
        raw = (sealed.view("<u4") >> 16).astype("<u2")
    else:
        raw = sealed.astype(FORMATS[upload].dtype)
    meant = sealed * step if upload == "int8" else sealed
    rows = [keeping.place(row, opener, step) for row in range(2)]
    assert [row.resident for row in rows] == [True, False]
    for row in rows:
        keep(row, opener, raw, agreed.terms.tiling)
        np.testing.assert_array_equal(read(row, agreed.pieces), meant)
        if agreed.terms.format.integers:
            integers = row.integers(0, np.empty(agreed.pieces.tile, np.float32))
            assert integers.dtype == np.int8
            np.testing.assert_array_equal(integers, sealed[agreed.pieces.part(0)])


def test_tiles_of_many_clients_are_read_in_pieces():
    rows = 129
    tile = 2 * (MAX_PIECE_VALUES // 128)
    agreed = federation(d=tile + 1_000, tile=tile, rows=rows)
    assert agreed.pieces.tile == tile // 4
    _, (resident, spooled, *_) = kept_rows(4 * (tile + 1_000), agreed)
    assert resident[0].resident
    assert not spooled[0].resident
    for kept, values in (resident, spooled):
        np.testing.assert_array_equal(read(kept, agreed.pieces), values)


def test_a_spooled_piece_that_changes_does_not_open():
    spool = InMemory()
    _, rows = kept_rows(0, spool=spool)
    kept, out = rows[2][0], np.empty(TILE, np.float32)
    honest = spool._tiles[2, 1]
    for changed in (bytes([honest[0] ^ 1]) + honest[1:], honest[:20], b"", bytes(len(honest))):
        spool._tiles[2, 1] = changed
        with pytest.raises(OpenError):
            kept.read(1, out)
    spool._tiles[2, 1] = honest
    kept.read(1, out)


def test_another_upload_in_the_same_place_is_another_row():
    """The marks of one row are not those of the next, though they lie in one place."""
    spool, opener = InMemory(), TileOpener(KEY, BOUND)
    agreed = federation()
    keeping = Keeping(agreed, Memory(0), spool, np.random.default_rng(0).bytes)
    one, two = keeping.place(0, opener), keeping.place(0, opener)
    keep(one, opener, np.ones(D, np.float32), agreed.terms.tiling)
    keep(two, opener, np.zeros(D, np.float32), agreed.terms.tiling)
    out = np.empty(TILE, np.float32)
    assert not two.read(0, out).any()
    with pytest.raises(OpenError):
        one.read(0, out)


def test_a_place_that_was_freed_is_the_next_one():
    keeping = Keeping(federation(), Memory(SIZE), None, np.random.default_rng(0).bytes)
    opener = TileOpener(KEY, BOUND)
    for _ in range(3):
        place = keeping.place(0, opener)
        with pytest.raises(StorageFull):
            keeping.place(1, opener)
        place.free()


def test_the_room_that_was_free_for_longest_is_the_next():
    """Else whoever spoils an upload would know whose row lies where its own was."""
    keeping = Keeping(federation(), Memory(), InMemory(), np.random.default_rng(0).bytes)
    opener = TileOpener(KEY, BOUND)
    first, *others = (keeping.place(row, opener) for row in range(ROWS))
    at = np.frombuffer(first.room(0), np.uint8).ctypes.data
    others[0].free()
    first.free()
    assert np.frombuffer(keeping.place(0, opener).room(0), np.uint8).ctypes.data != at
    assert np.frombuffer(keeping.place(1, opener).room(0), np.uint8).ctypes.data == at


def addresses(memory, seed):
    rooms = memory.rooms(ROWS, SIZE, np.random.default_rng(seed).bytes)
    return [room.ctypes.data for room in rooms]


def test_places_are_the_same_memory_in_every_round_and_in_another_order():
    memory = Memory()
    orders = [addresses(memory, seed) for seed in range(20)]
    assert {tuple(sorted(each)) for each in orders} == {tuple(sorted(orders[0]))}
    assert len({tuple(each) for each in orders}) > 15
    assert addresses(memory, 3) == orders[3]


def test_more_rows_or_longer_ones_get_new_memory():
    memory, entropy = Memory(10 * SIZE), np.random.default_rng(0).bytes
    assert [len(memory.rooms(n, SIZE, entropy)) for n in (2, 6, 20, 3)] == [2, 6, 10, 3]
    assert [len(memory.rooms(20, size, entropy)) for size in (SIZE, 5 * SIZE, 11 * SIZE)] == [
        10,
        2,
        0,
    ]


def test_memory_that_the_system_does_not_give_sends_rows_to_the_spool():
    """No machine has 2^60 bytes."""
    assert Memory().rooms(4, 2**58, np.random.default_rng(0).bytes) == []


def test_what_holds_values_does_not_print_them():
    _, rows = kept_rows(SIZE)
    assert [repr(kept) for kept, _ in rows[:2]] == ["_Resident(<secret>)", "_Spooled(<secret>)"]


def test_pieces_need_not_divide_a_short_tile():
    agreed = federation(d=7, tile=3, rows=4)
    agreed = replace(agreed, terms=replace(agreed.terms, tile=3))
    for budget in (0, 2**20):
        _, rows = kept_rows(budget, agreed)
        for kept, values in rows:
            np.testing.assert_array_equal(read(kept, agreed.pieces), values)
