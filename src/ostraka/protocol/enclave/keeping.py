"""Where a round's rows are kept from their arrival to the end of the round.

A row is *resident*: plaintext in the enclave's own memory, which is trusted. Or, where there is no
room for it, it is *spooled*: its ciphertext lies with the host, and is opened once more when a pass
needs it. Both give the same values.

A client in league with the host can make two tiles that open under one key, nonce and header, and
the host could show one on arrival and the other in a pass. Therefore a spooled row has a GMAC of
every piece as it was opened on arrival, under a key that never leaves the enclave.

Memory is allocated once and used again in every round: the first touch of a page costs several
times what opening a tile into it does. Some machines encrypt memory in a way that shows when one
place holds equal bytes at two times, so places are given out in a random order that is drawn anew
for each round.
"""

import mmap
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest
from threading import local
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import Buffer, Float32, UInt8
from ostraka.config import Federation
from ostraka.crypto.aead import KEY_BYTES, nonce
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.stream import SecretStream
from ostraka.crypto.updates import TileOpener
from ostraka.errors import LocalProtocolError, OpenError, StorageFull

VALUE_BYTES = 4


class Spool(Protocol):
    """Where the host keeps sealed tiles. row: a client's place in the roster."""

    def write(self, row: int, index: int, ciphertext: Buffer) -> None:
        """Keep a tile; a second one in its place replaces it. Raises StorageFull, StateError."""

    def read(self, row: int, index: int, start: int, size: int) -> Buffer:
        """Return `size` bytes of a tile, from byte `start` on. Raises StateError."""


class Kept(Protocol):
    """One row: takes in tiles as they are opened, and gives back pieces."""

    resident: bool

    def room(self, index: int) -> UInt8:
        """Where tile `index` is to be opened, as bytes. One thread at a time."""

    def keep(self, index: int, ciphertext: Buffer) -> None:
        """Keep the tile that was opened there. Raises StorageFull or StateError."""

    def read(self, index: int, out: Float32) -> Float32:
        """Piece `index`, in `out` or as a view of where it lies. Raises OpenError if it changed."""

    def free(self) -> None:
        """Give its room back."""


class Memory:
    """Room for resident rows. budget: how many bytes of the machine's memory they may take."""

    def __init__(self, budget: int = 2**62) -> None:
        self._budget = budget
        self._space: UInt8 = np.empty(0, np.uint8)

    def rooms(self, rows: int, size: int, entropy: Entropy) -> list[UInt8]:
        """Room for as many rows of `size` bytes as fit, in random order. It replaces what was
        given out before."""
        count = min(rows, self._budget // size)
        if count * size > len(self._space):
            self._space = np.empty(0, np.uint8)  # Before more is taken.
            self._space = _touched(count * size)
        count = min(count, len(self._space) // size)
        order = np.argsort(SecretStream(entropy(KEY_BYTES)).uniform(count, 2**31), kind="stable")
        return [self._space[place * size : (place + 1) * size] for place in order.tolist()]


def _touched(size: int) -> UInt8:
    """New memory that the system has really given, or none if it has too little."""
    try:
        space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError):
        return np.empty(0, np.uint8)
    with suppress(OSError):  # Advice that a system may not know.
        space.madvise(mmap.MADV_HUGEPAGE)
    with suppress(OSError):
        space.madvise(mmap.MADV_DONTDUMP)
    touched = np.frombuffer(space, np.uint8)
    touched[:: mmap.PAGESIZE] = 0
    return touched


class Keeping:
    """Gives each row of one round its place: in memory while there is room, then in the spool."""

    def __init__(
        self, federation: Federation, memory: Memory, spool: Spool | None, entropy: Entropy
    ) -> None:
        terms, rows = federation.terms, len(federation.clients)
        self.tiling, self.pieces = terms.tiling, federation.pieces
        self.entropy = entropy
        self._spool = spool
        self._rooms = memory.rooms(rows, terms.dimension * VALUE_BYTES, entropy)
        self._scratch = local()

    def place(self, row: int, opener: TileOpener) -> Kept:
        """A place for the row of the roster's client number `row`. Raises StorageFull."""
        if self._rooms:
            room = self._rooms.pop()
            return _Resident(room, self, lambda: self._rooms.append(room))
        if self._spool is None:
            raise StorageFull("there is no room for another update in memory, and no spool")
        return _Spooled(row, opener, self._spool, self)

    def scratch(self) -> UInt8:
        """Memory for one tile, of this thread's own."""
        if not hasattr(self._scratch, "tile"):
            self._scratch.tile = np.empty(self.tiling.size(0) * VALUE_BYTES, np.uint8)
        tile: UInt8 = self._scratch.tile
        return tile


class _Resident:
    """A row in the enclave's own memory. room: (d,) values, as bytes."""

    resident = True

    def __init__(self, room: UInt8, keeping: Keeping, give_back: Callable[[], None]) -> None:
        self._room = room
        self._values: Float32 = room.view("<f4")
        self._tiling, self._pieces = keeping.tiling, keeping.pieces
        self._give_back = give_back

    def __repr__(self) -> str:
        return "_Resident(<secret>)"

    def room(self, index: int) -> UInt8:
        part = self._tiling.part(index)
        return self._room[part.start * VALUE_BYTES : part.stop * VALUE_BYTES]

    def keep(self, index: int, ciphertext: Buffer) -> None:
        """It is where it belongs."""

    def read(self, index: int, out: Float32) -> Float32:
        return self._values[self._pieces.part(index)]

    def free(self) -> None:
        self._room = self._values = np.empty(0, np.uint8).view("<f4")
        self._give_back()
        self._give_back = _freed


def _freed() -> None:
    raise LocalProtocolError("this row was freed before")


class _Spooled:
    """A row whose ciphertext the host keeps."""

    resident = False

    def __init__(self, row: int, opener: TileOpener, spool: Spool, keeping: Keeping) -> None:
        self._row = row
        self._opener = opener
        self._spool = spool
        self._keeping = keeping
        self._tiling, self._pieces = keeping.tiling, keeping.pieces
        self._together = self._tiling.tile // self._pieces.tile
        self._cipher = AESGCM(keeping.entropy(KEY_BYTES))
        self._marks: dict[int, bytes] = {}  # GMACs, by piece

    def __repr__(self) -> str:
        return "_Spooled(<secret>)"

    def room(self, index: int) -> UInt8:
        return self._keeping.scratch()[: self._tiling.size(index) * VALUE_BYTES]

    def keep(self, index: int, ciphertext: Buffer) -> None:
        self._spool.write(self._row, index, ciphertext)
        opened, size = self.room(index), self._pieces.tile * VALUE_BYTES
        for number, start in enumerate(range(0, len(opened), size)):
            piece = index * self._together + number
            self._marks[piece] = self._mark(piece, opened[start : start + size])

    def read(self, index: int, out: Float32) -> Float32:
        tile, number = divmod(index, self._together)
        size = self._pieces.size(index)
        values = out[:size]
        start = number * self._pieces.tile * VALUE_BYTES
        sealed = self._spool.read(self._row, tile, start, size * VALUE_BYTES)
        self._opener.open_part(tile, start, sealed, values)
        if not compare_digest(self._marks[index], self._mark(index, values)):
            raise OpenError("tile")
        return values

    def free(self) -> None:
        """Its file is deleted with the round's."""

    def _mark(self, piece: int, values: UInt8 | Float32) -> bytes:
        # Marks never leave the enclave, so computing one twice under a nonce shows nothing.
        return self._cipher.encrypt(nonce(piece), b"", values.data.cast("B"))
