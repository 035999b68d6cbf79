"""How one tile of many rows is sealed: a group of rows at a time, one after another.

All of it goes to one reader, so sealing row by row would only cost calls. The nonce of a group is
(tile, first row).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ostraka.config import Tiling
from ostraka.crypto.aead import TAG_BYTES


@dataclass(frozen=True)
class SealedGroups:
    """Where each group of a sealed tile lies."""

    columns: Tiling
    rows: int
    value_bytes: int

    def size(self, index: int) -> int:
        """Bytes of a sealed tile."""
        return self._before(index, self.rows)

    def part(self, index: int, group: range) -> slice:
        """The bytes of one group in a sealed tile."""
        return slice(self._before(index, group.start), self._before(index, group.stop))

    def groups(self) -> Iterator[range]:
        for start in range(0, self.rows, self.columns.group):
            yield range(start, min(start + self.columns.group, self.rows))

    def _before(self, index: int, row: int) -> int:
        """Bytes of the groups that end by this row."""
        seals = -(-row // self.columns.group)
        return row * self.columns.size(index) * self.value_bytes + seals * TAG_BYTES
