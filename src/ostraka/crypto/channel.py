"""The enclave's channel to one worker, for one attempt.

    enclave -> worker   ChannelOffer    an ephemeral hybrid key, signed by the enclave
    worker -> enclave   ChannelAccept   HPKE(secret) to that key, signed by the worker
    both                key = HKDF-SHA256(secret, label, offer, accept, direction)

Both signatures cover the whole transcript, so each side knows the other, the round, the attempt and
the share that it is for. The ephemeral key and the secret are gone when the attempt ends: recorded
traffic does not open later, not even with the identity key of either side. Classical Diffie-Hellman
alone would undo the clients' post-quantum seal, since every share passes here.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ostraka.arrays import AnyArray, Buffer
from ostraka.crypto import hpke
from ostraka.crypto.aead import nonce, open_into, pair_nonce, seal_into
from ostraka.crypto.hpke import Entropy, HybridKey
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, digest, encode, pack
from ostraka.errors import OpenError
from ostraka.messages import ChannelAccept, ChannelOffer

_SECRET_BYTES = 32
_TO_WORKER = b"ostraka/channel/v1/to-worker"
_TO_ENCLAVE = b"ostraka/channel/v1/to-enclave"
_SEED_NONCE = pair_nonce(2**48 - 1, 0)


class ShareOpener:
    """Opens the shares of one attempt, at the worker or in other processes that have its key."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._cipher = AESGCM(key)

    def __repr__(self) -> str:
        return "ShareOpener(<secret>)"

    def open(self, index: int, first: int, sealed: Buffer, out: AnyArray) -> None:
        """Opens what `Channel.seal_share` sealed. Raises OpenError."""
        open_into(self._cipher, pair_nonce(index, first), sealed, out, what="share")


class Channel:
    """Two AES-256-GCM keys, one for each direction: for the shares, and for the one answer.

    shares: opens shares, at the worker.
    """

    def __init__(self, secret: bytes, transcript: bytes) -> None:
        key = _derive(secret, _TO_WORKER, transcript)
        self.shares = ShareOpener(key)
        self._to_worker = AESGCM(key)
        self._to_enclave = AESGCM(_derive(secret, _TO_ENCLAVE, transcript))

    def __repr__(self) -> str:
        return "Channel(<secret>)"

    def seal_share(self, index: int, first: int, share: AnyArray, out: Buffer) -> None:
        """Seals a group of rows of tile `index`, once, into `out`, which is 16 bytes longer."""
        seal_into(self._to_worker, pair_nonce(index, first), share, out)

    def seal_seed(self, seed: bytes) -> bytes:
        """Seals a mask's seed. No tile has the number that its nonce takes."""
        return self._to_worker.encrypt(_SEED_NONCE, seed, None)

    def open_seed(self, sealed: bytes) -> bytes:
        """Opens what `seal_seed` sealed, at the worker. Raises OpenError."""
        return _open(self._to_worker, _SEED_NONCE, sealed, "seed")

    def seal_answer(self, answer: bytes) -> bytes:
        """Seals the worker's one answer. The key serves one attempt, so one nonce is enough."""
        return self._to_enclave.encrypt(nonce(0), answer, None)

    def open_answer(self, sealed: Buffer) -> bytes:
        """Opens what `seal_answer` sealed, at the enclave. Raises OpenError."""
        return _open(self._to_enclave, nonce(0), sealed, "answer")


class PendingChannel:
    """The enclave's half of the handshake, which waits for the worker's half."""

    def __init__(
        self, blank: ChannelOffer, identity: Identity, key: HybridKey, worker: bytes
    ) -> None:
        self.offer = identity.sign(blank)
        self._key = key
        self._worker = worker

    def __repr__(self) -> str:
        return f"PendingChannel(worker={self._worker.hex()[:16]}, <secret>)"

    def finish(self, accept: ChannelAccept) -> Channel:
        """Returns the channel. Raises OpenError unless the pinned worker accepted this offer."""
        check_signature(accept, self._worker)
        if accept.offer != digest(self.offer):
            raise OpenError("ChannelAccept")
        secret = self._key.open(accept.sealed_secret, info=encode(self.offer))
        return Channel(secret, _transcript(self.offer, accept))


def accept_offer(
    offer: ChannelOffer, *, receipt_key: bytes, identity: Identity, entropy: Entropy = os.urandom
) -> tuple[ChannelAccept, Channel]:
    """Does the worker's half of the handshake. Raises OpenError if the offer is not for it."""
    check_signature(offer, receipt_key)
    if offer.worker != identity.public:
        raise OpenError("ChannelOffer")
    secret = entropy(_SECRET_BYTES)
    sealed = hpke.seal(offer.key, secret, info=encode(offer))
    accept = identity.sign(ChannelAccept(digest(offer), sealed, UNSIGNED))
    return accept, Channel(secret, _transcript(offer, accept))


def _open(cipher: AESGCM, nonce: bytes, sealed: Buffer, what: str) -> bytes:
    try:
        return cipher.decrypt(nonce, sealed, None)
    except (InvalidTag, ValueError):
        raise OpenError(what) from None


def _transcript(offer: ChannelOffer, accept: ChannelAccept) -> bytes:
    return pack(encode(offer), encode(accept))


def _derive(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=pack(label, transcript)).derive(secret)
