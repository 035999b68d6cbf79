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

import ctypes
import mmap
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest
from threading import local
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.arrays import AnyArray, Buffer, Float32, Spares, UInt8
from ostraka.config import Federation, Span, Tiling
from ostraka.crypto.aead import KEY_BYTES, nonce
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.stream import SecretStream
from ostraka.crypto.updates import TileOpener
from ostraka.errors import LocalProtocolError, OpenError, StorageFull

_FLOAT32 = np.dtype("<f4")
_VECTORS = 2  # the aggregate and the model after it
_SKETCHES = 2  # of all rows, as they arrive and as they are measured


class Spool(Protocol):
    """Where the host keeps sealed tiles. row: a client's place in the roster."""

    def write(self, row: int, index: int, ciphertext: Buffer) -> None:
        """Keep a tile; a second one in its place replaces it. Raises StorageFull, StateError."""

    def read(self, row: int, index: int, start: int, size: int) -> Buffer:
        """Return `size` bytes of a tile, from byte `start` on. Raises StateError."""


class Kept(Protocol):
    """One row: takes in tiles as they are opened, and gives back pieces."""

    resident: bool

    def room(self, index: int) -> memoryview:
        """Where tile `index` is to be opened, as bytes. One thread at a time."""

    def keep(self, index: int, ciphertext: Buffer) -> None:
        """Keep the tile that was opened there. Raises StorageFull or StateError."""

    def read(self, index: int, out: Float32) -> Float32:
        """Piece `index`, in `out` or as a view of where it lies. Raises OpenError if it changed."""

    def integers(self, index: int, out: Float32) -> AnyArray:
        """The same of a row of integers, (b,) int8, in units of its step: in the memory of `out`,
        or where it lies."""

    def in_place(self) -> Float32 | None:
        """The whole row, (d,), if it lies in memory as float32."""

    def free(self) -> None:
        """Give its room back."""


class Memory:
    """Room for resident rows. budget: how many bytes of the machine's memory they may take.

    vectors: what a round has besides, whatever the budget is: its aggregate, its model, and less.
    """

    def __init__(self, budget: int = 2**62) -> None:
        self.vectors = Spares()
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
    # Systems limit what may be locked, and memory that is not locked may be written to a swap disk.
    ctypes.CDLL(None).mlock(ctypes.c_void_p(touched.ctypes.data), ctypes.c_size_t(size))
    return touched


class Keeping:
    """Gives each row of one round its place: in memory while there is room, then in the spool."""

    def __init__(
        self,
        federation: Federation,
        memory: Memory,
        spool: Spool | None,
        entropy: Entropy,
        span: Span | None = None,
    ) -> None:
        """span: which values of every row are kept here; all unless given."""
        terms, rows = federation.terms, len(federation.clients)
        length = (span or terms.span).length
        self.tiling = Tiling(length, terms.tile)
        self.pieces = Tiling(length, federation.pieces.tile)
        self.format, self.value_bytes = terms.format, terms.format.dtype.itemsize
        self.tile_bytes = terms.tile * self.value_bytes
        self.entropy = entropy
        self._spool = spool
        # The room that was free for longest is the next: a client that spoils its upload must not
        # choose whose row takes its place.
        self._rooms = deque(memory.rooms(rows, length * self.value_bytes, entropy))
        sketches = () if terms.sketch is None else (rows * terms.sketch,) * _SKETCHES
        memory.vectors.prepare((length,) * _VECTORS + sketches)
        self._scratch = local()

    def place(self, row: int, opener: TileOpener, step: float = 0.0) -> Kept:
        """A place for the row of the roster's client number `row`. Raises StorageFull.

        step: that integers are counted in.
        """
        if self._rooms:
            room = self._rooms.popleft()
            return _Resident(room, step, self, lambda: self._rooms.append(room))
        if self._spool is None:
            raise StorageFull("there is no room for another update in memory, and no spool")
        return _Spooled(row, step, opener, self._spool, self)

    def widened(self, raw: AnyArray, step: float, out: Float32 | None = None) -> Float32:
        """Values (b,) as float32: in `out`, in memory of this thread's own if there is none, or
        where they are if that is what they are."""
        if raw.dtype == _FLOAT32:
            return raw
        wide = self._own("wide", 4 * self.tiling.tile).view("<f4") if out is None else out
        self.format.widen(raw, step, wide[: len(raw)])
        return wide[: len(raw)]

    def tile(self) -> UInt8:
        """Memory for one tile as it was sealed, of this thread's own."""
        return self._own("tile", self.tile_bytes)

    def _own(self, name: str, size: int) -> UInt8:
        if not hasattr(self._scratch, name):
            setattr(self._scratch, name, np.empty(size, np.uint8))
        space: UInt8 = getattr(self._scratch, name)
        return space


class _Elsewhere:
    """A row whose values other shards keep."""

    resident = True

    def room(self, index: int) -> memoryview:
        raise LocalProtocolError(_ELSEWHERE)

    def keep(self, index: int, ciphertext: Buffer) -> None:
        raise LocalProtocolError(_ELSEWHERE)

    def read(self, index: int, out: Float32) -> Float32:
        raise LocalProtocolError(_ELSEWHERE)

    def integers(self, index: int, out: Float32) -> AnyArray:
        raise LocalProtocolError(_ELSEWHERE)

    def in_place(self) -> Float32 | None:
        raise LocalProtocolError(_ELSEWHERE)

    def free(self) -> None:
        """Nothing of it is here."""


_ELSEWHERE = "this row's values are with other shards"
ELSEWHERE: Kept = _Elsewhere()


class _Resident:
    """A row in the enclave's own memory. room: (d,) values, as bytes."""

    resident = True

    def __init__(
        self, room: UInt8, step: float, keeping: Keeping, give_back: Callable[[], None]
    ) -> None:
        self._room = room.data  # cut faster than an array is, for every tile that comes
        self._tile_bytes = keeping.tile_bytes
        self._values: AnyArray = room.view(keeping.format.dtype)
        self._step = step
        self._keeping = keeping
        self._give_back = give_back

    def __repr__(self) -> str:
        return "_Resident(<secret>)"

    def room(self, index: int) -> memoryview:
        size = self._tile_bytes
        return self._room[index * size : (index + 1) * size]

    def keep(self, index: int, ciphertext: Buffer) -> None:
        """It is where it belongs."""

    def read(self, index: int, out: Float32) -> Float32:
        return self._keeping.widened(self._raw(index), self._step, out)

    def integers(self, index: int, out: Float32) -> AnyArray:
        return self._raw(index)

    def in_place(self) -> Float32 | None:
        return self._values if self._values.dtype == _FLOAT32 else None

    def free(self) -> None:
        self._room, self._values = memoryview(b""), np.empty(0, np.uint8)
        self._give_back()
        self._give_back = _freed

    def _raw(self, index: int) -> AnyArray:
        return self._values[self._keeping.pieces.part(index)]


def _freed() -> None:
    raise LocalProtocolError("this row was freed before")


class _Spooled:
    """A row whose ciphertext the host keeps."""

    resident = False

    def __init__(
        self, row: int, step: float, opener: TileOpener, spool: Spool, keeping: Keeping
    ) -> None:
        self._row = row
        self._step = step
        self._opener = opener
        self._spool = spool
        self._keeping = keeping
        self._piece_bytes = keeping.pieces.tile * keeping.value_bytes
        self._together = keeping.tiling.tile // keeping.pieces.tile
        self._cipher = AESGCM(keeping.entropy(KEY_BYTES))
        self._marks: dict[int, bytes] = {}  # GMACs, by piece

    def __repr__(self) -> str:
        return "_Spooled(<secret>)"

    def room(self, index: int) -> memoryview:
        return self._opened(index).data

    def _opened(self, index: int) -> UInt8:
        return self._keeping.tile()[: self._keeping.tiling.size(index) * self._keeping.value_bytes]

    def keep(self, index: int, ciphertext: Buffer) -> None:
        self._spool.write(self._row, index, ciphertext)
        opened, size = self._opened(index), self._piece_bytes
        for number, start in enumerate(range(0, len(opened), size)):
            piece = index * self._together + number
            self._marks[piece] = self._mark(piece, opened[start : start + size])

    def read(self, index: int, out: Float32) -> Float32:
        size, dtype = self._keeping.pieces.size(index), self._keeping.format.dtype
        raw = out[:size] if dtype == _FLOAT32 else np.empty(size, dtype)
        self._open(index, raw)
        return self._keeping.widened(raw, self._step, out)

    def integers(self, index: int, out: Float32) -> AnyArray:
        raw = out.view(self._keeping.format.dtype)[: self._keeping.pieces.size(index)]
        self._open(index, raw)
        return raw

    def in_place(self) -> Float32 | None:
        return None

    def free(self) -> None:
        """Its file is deleted with the round's."""

    def _open(self, index: int, out: AnyArray) -> None:
        """Set `out` to piece `index` as it was sealed. Raises OpenError if it changed."""
        tile, number = divmod(index, self._together)
        start = number * self._piece_bytes
        sealed = self._spool.read(self._row, tile, start, out.nbytes)
        self._opener.open_part(tile, start, sealed, out)
        if not compare_digest(self._marks[index], self._mark(index, out)):
            raise OpenError("tile")

    def _mark(self, piece: int, values: AnyArray) -> bytes:
        # Marks never leave the enclave, so computing one twice under a nonce shows nothing.
        return self._cipher.encrypt(nonce(piece), b"", values.data.cast("B"))
