"""Where attackers learn of others' updates.

The strongest attacks of the literature know what honest clients send. In a real federation nobody
but the enclave does; here the lab tells them, through files, so that clients of all processes can
read and write there.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ostraka import files
from ostraka.arrays import Float32

_POLL_S = 0.05
_KEPT = 2  # rounds: one that is opened again may be read again


@dataclass(frozen=True)
class Board:
    """Updates of the last rounds, by client."""

    folder: Path

    def tell(self, client: int, number: int, update: Float32) -> None:
        path = self._path(client, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, [np.ascontiguousarray(update, "<f4").data])
        self._path(client, number - _KEPT).unlink(missing_ok=True)

    def leave(self, client: int) -> None:
        """This client sends nothing any more: nobody is to wait for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._gone(client).touch()

    def forget(self) -> None:
        """Whoever left may come back."""
        for gone in self.folder.glob("*.gone"):
            gone.unlink()

    def read(self, clients: Sequence[int], number: int) -> Float32:
        """The updates (m, d) of these clients in this round. Waits for all that have not left."""
        rows = []
        for client in clients:
            path = self._path(client, number)
            while not path.exists() and not self._gone(client).exists():
                time.sleep(_POLL_S)
            if path.exists():
                rows.append(np.fromfile(path, "<f4"))
        return np.stack(rows) if rows else np.empty((0, 0), np.float32)

    def _path(self, client: int, number: int) -> Path:
        return self.folder / f"round-{number}" / f"{client}.f32"

    def _gone(self, client: int) -> Path:
        return self.folder / f"{client}.gone"
