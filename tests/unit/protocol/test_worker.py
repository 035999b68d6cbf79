from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ostraka.config import MAX_PIECE_VALUES, Tiling
from ostraka.core.gram import from_upper, naive
from ostraka.crypto.aead import SealedGroups
from ostraka.crypto.channel import PendingChannel
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, MalformedMessage, OpenError, RemoteProtocolError
from ostraka.messages import ChannelOffer, ShareTile
from ostraka.protocol.worker import Worker

ENCLAVE, ME, OTHER = (Identity(bytes([seed]) * 32) for seed in (1, 2, 3))
N, D, TILE = 4, 10, 4
ROWS = np.random.default_rng(0).normal(size=(N, D))


class Enclave:
    """The other end of one worker's channel."""

    def __init__(self, **changes):
        key = HybridKey()
        offer = ChannelOffer(
            federation=b"c" * 32,
            round_id=b"r" * 32,
            attempt_id=b"a" * 32,
            worker=ME.public,
            point=0,
            masking="gaussian",
            rows=N,
            columns=D,
            tile=TILE,
            key=key.public,
            signature=UNSIGNED,
        )
        self.pending = PendingChannel(replace(offer, **changes), ENCLAVE, key, ME.public)

    def connect(self):
        """The worker's end."""
        computing, accept = Worker(ME, receipt_key=ENCLAVE.public).accept(self.pending.offer)
        self.channel = self.pending.finish(accept)
        return computing

    def tile(self, index):
        part = np.ascontiguousarray(ROWS[:, index * TILE : (index + 1) * TILE])
        layout = SealedGroups(Tiling(D, TILE), N, 8)
        sealed = memoryview(bytearray(layout.size(index)))
        for group in layout.groups():
            values = part[group.start : group.stop]
            self.channel.seal_share(index, group.start, values, sealed[layout.part(index, group)])
        return ShareTile(b"a" * 32, index, bytes(sealed))

    def distances(self, answer):
        assert answer.attempt_id == b"a" * 32
        raw = self.channel.open_answer(answer.ciphertext)
        return from_upper(np.frombuffer(raw, "<f8"), N)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_law2_a_worker_measures_what_it_was_sent(order):
    enclave = Enclave()
    computing = enclave.connect()
    for index in order:
        computing.add(enclave.tile(index))
    np.testing.assert_allclose(enclave.distances(computing.answer()), naive(ROWS), rtol=1e-12)


def test_a_worker_serves_one_enclave():
    for signer in (ME, OTHER):
        with pytest.raises(OpenError):
            Worker(ME, receipt_key=ENCLAVE.public).accept(signer.sign(Enclave().pending.offer))


def test_a_worker_takes_offers_that_are_its_own():
    with pytest.raises(OpenError):
        Worker(ME, receipt_key=ENCLAVE.public).accept(Enclave(worker=OTHER.public).pending.offer)


BEYOND: dict[str, dict[str, Any]] = {
    "a masking of another release": {"masking": "none"},
    "no rows": {"rows": 0},
    "no columns": {"columns": 0},
    "no tile": {"tile": 0},
    "one tile too many": {"columns": 2**22 * TILE + 1},
    "one value too many at a time": {"rows": 1, "tile": MAX_PIECE_VALUES + 1},
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_worker_refuses_what_is_beyond_its_means(what):
    with pytest.raises(MalformedMessage):
        Enclave(**BEYOND[what]).connect()


def test_a_worker_takes_the_largest_tile():
    assert Enclave(rows=1, tile=MAX_PIECE_VALUES).connect() is not None


def test_a_bad_tile_changes_nothing():
    enclave = Enclave()
    computing = enclave.connect()
    good = enclave.tile(1)
    for bad in (
        replace(good, attempt_id=bytes(32)),
        replace(good, index=0),
        replace(good, index=3),
        replace(good, ciphertext=good.ciphertext[:-1]),
        replace(good, ciphertext=good.ciphertext[:-1] + bytes([good.ciphertext[-1] ^ 1])),
    ):
        with pytest.raises(RemoteProtocolError):
            computing.add(bad)
    for index in (0, 1, 2):
        computing.add(enclave.tile(index))
        with pytest.raises(RemoteProtocolError):
            computing.add(enclave.tile(index))
    np.testing.assert_allclose(enclave.distances(computing.answer()), naive(ROWS), rtol=1e-12)


def test_a_worker_answers_when_it_has_everything():
    enclave = Enclave()
    computing = enclave.connect()
    for index in (0, 2):
        computing.add(enclave.tile(index))
        with pytest.raises(LocalProtocolError, match="not arrived"):
            computing.answer()
    computing.add(enclave.tile(1))
    computing.answer()


def test_each_attempt_has_fresh_keys():
    """The same offer twice, as a host may replay it: two channels that do not open each other."""
    enclave = Enclave()
    enclave.connect()
    old = enclave.tile(0)
    computing = enclave.connect()
    with pytest.raises(OpenError):
        computing.add(old)
    computing.add(enclave.tile(0))
