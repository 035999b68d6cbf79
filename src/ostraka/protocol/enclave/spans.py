"""Consecutive tiles that are read as one: with many clients a tile is small, and calls are not."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ostraka.arrays import AnyArray, Buffer
from ostraka.config import Terms
from ostraka.crypto.aead import TAG_BYTES
from ostraka.errors import LocalProtocolError

_VALUE_BYTES = 4


@dataclass(frozen=True)
class Span:
    """tiles: of each, the ciphertext of every row. first: the number of the first one."""

    index: int
    first: int
    tile_bytes: int
    tiles: Sequence[Sequence[Buffer]]

    def open_row(
        self, row: int, open_into: Callable[[int, Buffer, AnyArray], None], out: AnyArray
    ) -> bytes:
        """Open the tiles of a row side by side into `out`, a view as bytes. Returns their tags."""
        tags = []
        for number, tile in enumerate(self.tiles):
            start, ciphertext = number * self.tile_bytes, tile[row]
            open_into(self.first + number, ciphertext, out[start : start + self.tile_bytes])
            tags.append(bytes(ciphertext[-TAG_BYTES:]))
        return b"".join(tags)


def spans(tiles: Iterable[Sequence[Buffer]], terms: Terms, rows: int) -> Iterator[Span]:
    """A whole pass. Raises LocalProtocolError for more tiles or rows than there are, or fewer."""
    source, count = iter(tiles), terms.tiling.count
    together = terms.spans.tile // terms.tile
    for index, first in enumerate(range(0, count, together)):
        batch = list(islice(source, min(together, count - first)))
        if len(batch) < min(together, count - first):
            raise LocalProtocolError(f"{first + len(batch)} of {count} tiles were given")
        if any(len(tile) != rows for tile in batch):
            raise LocalProtocolError(f"{rows} rows; got {[len(tile) for tile in batch]} tiles")
        yield Span(index, first, _VALUE_BYTES * terms.tile, batch)
    if next(source, None) is not None:
        raise LocalProtocolError(f"more than {count} tiles were given")
