"""The first pass over a sketch: how much of the spool it holds at a time."""

import numpy as np
import pytest

from ostraka.config import MAX_TILE_VALUES, Manifest, RoundConfig
from ostraka.crypto.updates import TileOpener
from ostraka.roles.enclave import Lanes
from ostraka.round import Spool, enrol

N, M, BATCH = 5, 4096, 16 * 4096  # values of a row that are folded before they are added


def counted(tiles, taken):
    for tile in tiles:
        taken.append(tile)
        yield tile


@pytest.mark.parametrize("tile", [M, BATCH // 2, BATCH, 2 * BATCH])
def test_a_few_tiles_are_held_at_a_time_and_at_least_one(monkeypatch, tile):
    assert BATCH < MAX_TILE_VALUES
    d = 3 * BATCH + 1
    parties = enrol(
        RoundConfig(Manifest.flat(d), f=1, masking="none", sketch=M, tile=tile), clients=N
    )
    collecting, spool = parties.enclave.open_round(), Spool(parties.rules)
    rows = np.random.default_rng(0).normal(size=(N, d)).astype(np.float32)
    for client, update in zip(parties.clients, rows, strict=True):
        spool.collect(collecting, parties.seal(client, collecting.offer, update))
    cohort = collecting.close()
    taken: list[object] = []
    ahead = []
    real = TileOpener.open_into

    def open_into(self, index, ciphertext, out):
        ahead.append(len(taken) - index)
        real(self, index, ciphertext, out)

    monkeypatch.setattr(TileOpener, "open_into", open_into)
    cohort.inside(Lanes()).measure(counted(spool.tiles(cohort), taken))
    assert len(taken) == parties.rules.tiling.count
    assert max(ahead) == max(1, BATCH // tile)
