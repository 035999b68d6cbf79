from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.config import MAX_DIMENSION, MAX_PIECE_VALUES
from ostraka.crypto import channel
from ostraka.crypto.channel import PendingChannel, accept_offer
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, digest
from ostraka.errors import OpenError
from ostraka.messages import ChannelOffer

ENCLAVE, WORKER, OTHER = (Identity(bytes([seed]) * 32) for seed in (1, 2, 3))
SHARE = np.arange(6.0)


def pending(attempt=b"a", key=None, worker=WORKER, **changes):
    key = key or HybridKey()
    offer = ChannelOffer(
        federation=b"c" * 32,
        round_id=b"r" * 32,
        attempt_id=attempt * 32,
        worker=worker.public,
        point=0,
        masking="gaussian",
        rows=7,
        columns=50,
        tile=16,
        key=key.public,
        signature=UNSIGNED,
    )
    return PendingChannel(replace(offer, **changes), ENCLAVE, key, worker.public)


def accept(offer, identity=WORKER, **changes):
    return accept_offer(offer, **{"receipt_key": ENCLAVE.public, "identity": identity, **changes})


def connected(**changes):
    """Both ends: the enclave's and the worker's."""
    half = pending(**changes)
    accepted, worker = accept(half.offer, entropy=bytes)
    return half.finish(accepted), worker


def sealed_share(channel, index=1, row=2):
    out = bytearray(SHARE.nbytes + 16)
    channel.seal_share(index, row, SHARE, out)
    return bytes(out)


def test_shares_go_one_way_and_the_answer_comes_back():
    enclave, worker = connected()
    out = np.empty(6)
    worker.shares.open(1, 2, sealed_share(enclave), out)
    assert np.array_equal(out, SHARE)
    assert enclave.open_answer(worker.seal_answer(b"answer")) == b"answer"


def test_a_share_opens_in_its_own_place_only():
    enclave, worker = connected()
    for index, row in ((2, 1), (0, 2), (1, 0)):
        out = np.full(6, 7.0)
        with pytest.raises(OpenError, match="share"):
            worker.shares.open(index, row, sealed_share(enclave), out)
        assert not out.any()


def test_a_seed_may_go_in_place_of_shares():
    enclave, worker = connected()
    sealed = enclave.seal_seed(b"seed")
    assert worker.open_seed(sealed) == b"seed"
    for other in (b"", sealed[:-1], bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(OpenError, match="seed"):
            worker.open_seed(other)
    with pytest.raises(OpenError):
        worker.open_seed(sealed_share(enclave))


def test_no_share_has_the_nonce_of_a_seed(monkeypatch):
    """Both go under one key, and a nonce that serves twice shows the sum of what it hid."""
    used: list[bytes] = []
    monkeypatch.setattr(channel, "AESGCM", lambda key: Recording(key, used))
    enclave, _ = connected()
    enclave.seal_seed(b"seed")
    (seed,) = used
    # A tile has one column at least, so no tile has a number as high as the seed's.
    assert int.from_bytes(seed[:6], "big") > MAX_DIMENSION
    for index in (0, 1, MAX_DIMENSION):
        for first in (0, 1, MAX_PIECE_VALUES):
            sealed_share(enclave, index, first)
    assert len(set(used)) == len(used) == 10


class Recording:
    """AES-GCM that keeps the nonces that it sealed under."""

    def __init__(self, key: bytes, used: list[bytes]) -> None:
        self._cipher, self._used = AESGCM(key), used

    def encrypt(self, nonce: bytes, *rest: Any) -> bytes:
        self._used.append(nonce)
        return self._cipher.encrypt(nonce, *rest)

    def encrypt_into(self, nonce: bytes, *rest: Any) -> int:
        self._used.append(nonce)
        return self._cipher.encrypt_into(nonce, *rest)


def test_an_altered_answer_does_not_open():
    enclave, worker = connected()
    answer = worker.seal_answer(b"answer")
    for other in (b"", answer[:-1], answer + b"\0", bytes([answer[0] ^ 1]) + answer[1:]):
        with pytest.raises(OpenError, match="answer"):
            enclave.open_answer(other)


def test_each_direction_has_a_key_of_its_own():
    """A share that comes back is no answer, though an index and a row of zero make its nonce."""
    enclave, worker = connected()
    share = bytearray(6 * 8 + 16)
    enclave.seal_share(0, 0, SHARE, share)
    with pytest.raises(OpenError):
        enclave.open_answer(bytes(share))
    with pytest.raises(OpenError):
        worker.shares.open(0, 0, worker.seal_answer(SHARE.tobytes()), np.empty(6))
    assert bytes(share) != worker.seal_answer(SHARE.tobytes())


def test_each_attempt_has_keys_of_its_own():
    """Even with the same secret and the same ephemeral key, by an enclave without randomness."""
    key = HybridKey()
    ends = [connected(attempt=attempt, key=key) for attempt in (b"a", b"b", b"a")]
    shares = {sealed_share(enclave) for enclave, _ in ends}
    answers = {worker.seal_answer(b"answer") for _, worker in ends}
    assert len(shares) == 3, (
        "the accept is part of the transcript, and HPKE's output in it is fresh"
    )
    assert len(answers) == 3
    with pytest.raises(OpenError):
        ends[1][1].shares.open(1, 2, sealed_share(ends[0][0]), np.empty(6))


def test_a_worker_refuses_an_offer_for_another_worker():
    with pytest.raises(OpenError, match="ChannelOffer"):
        accept(pending(worker=OTHER).offer)


def test_a_worker_refuses_the_offer_of_another_enclave():
    with pytest.raises(OpenError, match="ChannelOffer"):
        accept(pending().offer, receipt_key=OTHER.public)
    with pytest.raises(OpenError, match="ChannelOffer"):
        accept(OTHER.sign(pending().offer))


@pytest.mark.parametrize(
    "change",
    [
        {"federation": b"C" * 32},
        {"round_id": b"R" * 32},
        {"attempt_id": b"A" * 32},
        {"point": 1},
        {"masking": "none"},
        {"rows": 8},
        {"columns": 51},
        {"tile": 17},
        {"key": HybridKey().public},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_worker_refuses_an_altered_offer(change):
    with pytest.raises(OpenError):
        accept(replace(pending().offer, **change))


def test_the_enclave_refuses_the_accept_of_another_worker():
    half = pending()
    accepted, _ = accept(half.offer)
    with pytest.raises(OpenError, match="ChannelAccept"):
        half.finish(OTHER.sign(accepted))
    with pytest.raises(OpenError, match="ChannelAccept"):
        half.finish(replace(accepted, signature=UNSIGNED))
    half.finish(accepted)


def test_the_enclave_refuses_an_accept_for_another_offer():
    key = HybridKey()
    one, two = pending(b"a", key), pending(b"b", key)
    accepted, _ = accept(two.offer)
    with pytest.raises(OpenError):
        one.finish(accepted)
    # Nor may a worker relabel it: the secret is sealed for the offer that it answers.
    with pytest.raises(OpenError):
        one.finish(WORKER.sign(replace(accepted, offer=accept(one.offer)[0].offer)))


def test_an_accept_names_the_offer_that_it_answers():
    """The worker's signature vouches for the offer only by this digest, so no other one passes."""
    half = pending()
    accepted, _ = accept(half.offer)
    for other in (bytes(32), digest(pending(b"b").offer), digest(replace(half.offer, rows=8))):
        with pytest.raises(OpenError, match="ChannelAccept"):
            half.finish(WORKER.sign(replace(accepted, offer=other)))
    half.finish(accepted)


def test_the_enclave_refuses_a_secret_that_does_not_open():
    half = pending()
    accepted, _ = accept(half.offer)
    for sealed in (b"", accepted.sealed_secret[:-1], bytes(len(accepted.sealed_secret))):
        with pytest.raises(OpenError):
            half.finish(WORKER.sign(replace(accepted, sealed_secret=sealed)))


def test_a_worker_refuses_an_impossible_key():
    with pytest.raises(OpenError):
        accept(ENCLAVE.sign(replace(pending().offer, key=b"\xff" * 1216)))


def test_keys_do_not_print():
    enclave, worker = connected()
    assert repr(enclave) == repr(worker) == "Channel(<secret>)"
    assert repr(pending()) == f"PendingChannel(worker={WORKER.public.hex()[:16]}, <secret>)"
