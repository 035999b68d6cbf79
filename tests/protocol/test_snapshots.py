"""A host that copies the enclave's process, and one worker that colludes with it.

This file is also the program that does it: it forks an enclave in the middle of a round, lets the
two go on with different rows, and compares what the worker is shown by each.
"""

import json
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ostraka.config import Manifest, Terms
from ostraka.core import field
from ostraka.protocol.enclave import Memory
from ostraka.protocol.round import enrol

SCHEMES: dict[str, dict[str, Any]] = {
    "exact masks and two workers": {},
    "exact masks and three workers": {"workers": 3},
    "exact masks on a sketch": {"sketch": 4096, "rule": "multi-krum", "pre": ()},
    "gaussian noise": {"masking": "gaussian"},
}
CLIENTS, DIMENSION, TILE = 6, 6000, 2048
VICTIM, STAND_IN = 4, 5
ROWS = np.random.default_rng(0).normal(size=(CLIENTS, DIMENSION)).astype(np.float32)
ROWS[STAND_IN] = 0


@pytest.mark.parametrize("when", ["before the cohort is fixed", "during the first pass"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_copies_of_an_enclave_show_a_worker_no_more_than_one_does(scheme, when):
    """Shares are equal to the bit, or as far apart as two masks are."""
    done = subprocess.run(
        [sys.executable, __file__, scheme, when], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["compared"] > 0
    assert told["nearest"] > 0.1, told
    assert told["cosine"] < 0.5, told


class Watched:
    """The worker that colludes. It keeps its shares, by attempt and tile: (n, b) each."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.attempts: list[list[np.ndarray]] = []

    def accept(self, offer: Any) -> tuple["Watched", Any]:
        self._computing, accept = self._worker.accept(offer)
        self.add_seed, self.answer = self._computing.add_seed, self._computing.answer
        self._offer = offer
        self.attempts.append([])
        return self, accept

    def add(self, tile: Any) -> None:
        self._computing.add(tile)
        rows, width = self._offer.rows, self._offer.tile
        width = min(width, self._offer.columns - tile.index * width)
        block = self._computing._block.reshape(-1)[: rows * width]
        self.attempts[-1].append(block.reshape(rows, width).copy())


class Fork:
    """Splits this process in two, and joins what they found."""

    copied = done = False

    def split(self) -> None:
        self._read, self._write = os.pipe()
        self.done, self.copied = True, os.fork() == 0

    def join(self, found: Any) -> tuple[Any, Any]:
        """The original's and the copy's; the copy does not return."""
        if self.copied:
            with os.fdopen(self._write, "wb") as file:
                pickle.dump(found, file)
            os._exit(0)
        os.close(self._write)
        with os.fdopen(self._read, "rb") as file:
            return found, pickle.load(file)


def compare(one: list[list[np.ndarray]], two: list[list[np.ndarray]]) -> dict[str, float]:
    """What the two show together, over all pairs of attempts.

    nearest: how near two different shares of a row come, in units of a share. cosine: of the
    difference of the victim's shares with its update, at most.
    """
    nearest, cosine, compared = np.inf, 0.0, 0
    pairs = ((mine, theirs) for mine in one for theirs in two)
    for index, a, b in (
        (index, *tile) for pair in pairs for index, tile in enumerate(zip(*pair, strict=False))
    ):
        apart = a.astype(np.float64) - b
        if a.dtype == np.uint32:
            apart = (apart + field.P // 2) % field.P - field.P // 2
        if not apart.any():
            continue
        sizes = np.median(np.abs(apart), axis=1) / np.median(np.abs(a.astype(np.float64)))
        nearest, compared = min(nearest, float(sizes.min())), compared + 1
        truth = ROWS[VICTIM, index * TILE : index * TILE + a.shape[1]].astype(np.float64)
        shown = apart[VICTIM, : len(truth)]
        if shown.any():
            angle = shown @ truth / (np.linalg.norm(shown) * np.linalg.norm(truth))
            cosine = max(cosine, abs(float(angle)))
    return {"nearest": nearest, "cosine": cosine, "compared": compared}


def main(scheme: str, when: str) -> None:
    terms = Terms(Manifest.flat(DIMENSION), f=1, tile=TILE, **SCHEMES[scheme])
    parties = enrol(terms, clients=CLIENTS)
    local, fork = parties.federation, Fork()
    name, worker = next(iter(local.workers.items()))
    local.workers[name] = watched = Watched(worker)
    early = when.startswith("before")
    local.memory = Memory(0)
    honest = local._spool.read

    def read(row: int, index: int, start: int, size: int) -> Any:
        """In its first pass the host copies the process, and then spoils a tile for the copy."""
        if not fork.done:
            fork.split()
        spoils = fork.copied and not early and (row, index) == (VICTIM, 1)
        return bytes(size) if spoils else honest(row, index, start, size)

    local._spool.read = read  # type: ignore[method-assign]
    offer = local.open()
    uploads = [
        parties.seal(client, offer, row) for client, row in zip(parties.clients, ROWS, strict=True)
    ]
    for row in range(VICTIM):
        local.take(uploads[row])
    if early:
        # One goes on with the victim, and the other with a client that sends zeros in its place.
        fork.split()
        local.take(uploads[STAND_IN if fork.copied else VICTIM])
    else:
        local.take(uploads[VICTIM])
    cohort = local.close()
    if not fork.done and terms.sketch:  # It was folded on arrival, and the spool is not read.
        fork.split()
    local.host(cohort).measure(cohort)
    json.dump(compare(*fork.join(watched.attempts)), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
