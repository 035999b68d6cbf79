"""Sealed updates: a fresh key per upload, one AES-256-GCM seal per tile.

    header  = signed(federation, round, round key, client, upload, manifest, d, tile size and count,
                     HPKE(key, stated norm, step))
    tile_i  = AES-256-GCM(key, nonce = i, additional data = SHA-256(header without HPKE, signature))

A key seals one upload and is gone when `seal` returns: a resumed upload sends the stored bytes, and
changed content is a new upload under a new key. Reusing a key would show the XOR of two updates.
"""

import hashlib
import os
import struct
from dataclasses import dataclass, replace

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from ostraka.arrays import AnyArray, Buffer, Float32
from ostraka.config import Terms
from ostraka.core.uploads import Encoded
from ostraka.crypto import hpke
from ostraka.crypto.aead import KEY_BYTES, TAG_BYTES, as_bytes, nonce
from ostraka.crypto.hpke import Entropy, HybridKey
from ostraka.crypto.identity import Identity
from ostraka.crypto.stream import SecretStream
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import ConfigError, OpenError
from ostraka.messages import RoundOffer, UpdateHeader, UpdateTile

_ID_BYTES = 32
_FIRST_BLOCK = (2).to_bytes(4, "big")
_SECRET = struct.Struct(">32sdd")  # the AES key, the stated norm and the step


@dataclass(frozen=True)
class SealedUpdate:
    """An upload: ciphertext only, which may be sent more than once."""

    header: UpdateHeader
    tiles: tuple[UpdateTile, ...]


class TileOpener:
    """Opens the tiles of one upload, inside the enclave."""

    def __init__(self, key: bytes, context: bytes) -> None:
        self._cipher = AESGCM(key)
        self._keystream = AES(key)
        self._context = context

    def __repr__(self) -> str:
        return "TileOpener(<secret>)"

    def open_into(self, index: int, ciphertext: Buffer, out: AnyArray) -> None:
        """Opens tile `index` into a reused buffer. Raises OpenError and then leaves zeros there."""
        try:
            # This does not call `aead.open_into`, because tiles are opened by the million.
            self._cipher.decrypt_into(nonce(index), ciphertext, self._context, as_bytes(out))
        except (InvalidTag, ValueError):
            out.fill(0)
            raise OpenError("tile") from None

    def unchecked(self) -> "UncheckedOpener":
        return UncheckedOpener(self._keystream)


class UncheckedOpener:
    """Opens the same tiles without their tags, at half of the cost. For one thread only.

    What it opens must then be compared with its fingerprint (`Fingerprints.same`), which is as
    strong a tag, of what `TileOpener` has found to be authentic. This is the counter mode within
    GCM, whose first block of keystream is number 2 (NIST SP 800-38D).
    """

    def __init__(self, keystream: AES) -> None:
        # A new decryptor for every tile would cost a seventh of opening it.
        self._decryptor = Cipher(keystream, CTR(nonce(0) + _FIRST_BLOCK)).decryptor()

    def __repr__(self) -> str:
        return "UncheckedOpener(<secret>)"

    def open_into(self, index: int, ciphertext: Buffer, out: AnyArray) -> None:
        """Opens tile `index`. Raises OpenError if its length is wrong."""
        if len(ciphertext) != out.nbytes + TAG_BYTES:
            raise OpenError("tile")
        self._decryptor.reset_nonce(nonce(index) + _FIRST_BLOCK)
        self._decryptor.update_into(memoryview(ciphertext)[: out.nbytes], as_bytes(out))


def rounded(update: Float32, terms: Terms, entropy: Entropy = os.urandom) -> Encoded:
    """Rounds an update (d,) to the format of the terms. Raises ConfigError if it does not fit."""
    if update.shape != (terms.dimension,) or update.dtype != np.dtype("<f4"):
        raise ConfigError(
            f"an update is ({terms.dimension},) float32, little-endian; "
            f"got {update.shape} {update.dtype}"
        )
    key = entropy(KEY_BYTES) if terms.format.integers else bytes(KEY_BYTES)  # else nothing is drawn
    return terms.format.encode(update, SecretStream(key).fill)


def seal(  # one upload, from the update to the bytes that leave the client
    update: Encoded,
    *,
    offer: RoundOffer,
    terms: Terms,
    client: str,
    identity: Identity,
    entropy: Entropy = os.urandom,
) -> SealedUpdate:
    """Seals an update of d values, in the format of the terms, to the round of this offer."""
    values = update.values
    if values.shape != (terms.dimension,) or values.dtype != terms.format.dtype:
        raise ConfigError(
            f"an upload has {terms.dimension} values of {terms.upload}; "
            f"got {values.shape} {values.dtype}"
        )
    blank = UpdateHeader(
        federation=offer.federation,
        round_id=offer.round_id,
        round_key=hpke.fingerprint(offer.key),
        client=client,
        upload_id=entropy(_ID_BYTES),
        manifest=terms.manifest.digest(),
        dimension=terms.dimension,
        tile=terms.tile,
        tiles=terms.tiling.count,
        sealed_key=b"",
        signature=UNSIGNED,
    )
    key = entropy(KEY_BYTES)
    secret = _SECRET.pack(key, update.norm, update.step)
    header = replace(blank, sealed_key=hpke.seal(offer.key, secret, info=context(blank)))
    cipher, bound = AESGCM(key), tile_context(blank)
    tiles = tuple(
        UpdateTile(
            blank.upload_id,
            index,
            cipher.encrypt(nonce(index), values[terms.tiling.part(index)].tobytes(), bound),
        )
        for index in range(terms.tiling.count)
    )
    return SealedUpdate(identity.sign(header), tiles)


def open_header(header: UpdateHeader, key: HybridKey) -> tuple[TileOpener, float, float]:
    """Returns the opener of this upload's tiles, its stated norm and its step. Raises OpenError."""
    secret = key.open(header.sealed_key, info=context(header))
    if len(secret) != _SECRET.size:
        raise OpenError("sealed key")
    tile_key, norm, step = _SECRET.unpack(secret)
    return TileOpener(tile_key, tile_context(header)), norm, step


def context(header: UpdateHeader) -> bytes:
    """Returns what an upload's seals are bound to: the signed fields without the HPKE output."""
    return encode(replace(header, sealed_key=b"", signature=UNSIGNED))


def tile_context(header: UpdateHeader) -> bytes:
    return hashlib.sha256(context(header)).digest()
