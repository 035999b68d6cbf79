"""Sealed updates: a fresh key per upload, one AES-256-GCM seal per tile.

    header  = signed(federation, round, round key, client, upload, manifest, d, tile size and count,
                     HPKE(key, stated norm))
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
from ostraka.crypto import hpke
from ostraka.crypto.aead import KEY_BYTES, as_bytes, nonce
from ostraka.crypto.hpke import Entropy, HybridKey
from ostraka.crypto.identity import Identity
from ostraka.encoding import UNSIGNED, encode
from ostraka.errors import ConfigError, OpenError
from ostraka.messages import RoundOffer, UpdateHeader, UpdateTile

_ID_BYTES = 32
_FIRST_BLOCK, _BLOCK_BYTES = 2, 16
_SECRET = struct.Struct(">32sd")  # the AES key and the stated norm


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

    def open_part(self, index: int, start: int, ciphertext: Buffer, out: AnyArray) -> None:
        """Opens a part of tile `index`, from byte `start` on, without its tag.

        start: a multiple of a block's 16 bytes. What it opens must then be compared with a mark of
        what `open_into` has found to be authentic. This is the counter mode within GCM, whose first
        block of keystream is number 2 (NIST SP 800-38D). Raises OpenError if a part is too short.
        """
        if len(ciphertext) != out.nbytes:
            raise OpenError("tile")
        block = _FIRST_BLOCK + start // _BLOCK_BYTES
        counter = CTR(nonce(index) + block.to_bytes(4, "big"))
        Cipher(self._keystream, counter).decryptor().update_into(ciphertext, as_bytes(out))


def seal(  # one upload, from the update to the bytes that leave the client
    update: Float32,
    *,
    offer: RoundOffer,
    terms: Terms,
    client: str,
    identity: Identity,
    entropy: Entropy = os.urandom,
) -> SealedUpdate:
    """Seals an update (d,) to the round that `offer` opened."""
    if update.shape != (terms.dimension,) or update.dtype != np.dtype("<f4"):
        raise ConfigError(
            f"an update is ({terms.dimension},) float32, little-endian; "
            f"got {update.shape} {update.dtype}"
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
    secret = _SECRET.pack(key, stated_norm(update))
    header = replace(blank, sealed_key=hpke.seal(offer.key, secret, info=context(blank)))
    cipher, bound = AESGCM(key), tile_context(blank)
    tiles = tuple(
        UpdateTile(
            blank.upload_id,
            index,
            cipher.encrypt(nonce(index), update[terms.tiling.part(index)].tobytes(), bound),
        )
        for index in range(terms.tiling.count)
    )
    return SealedUpdate(identity.sign(header), tiles)


def open_header(header: UpdateHeader, key: HybridKey) -> tuple[TileOpener, float]:
    """Returns the opener of this upload's tiles, and its stated norm. Raises OpenError."""
    bound = context(header)
    secret = key.open(header.sealed_key, info=bound)
    if len(secret) != _SECRET.size:
        raise OpenError("sealed key")
    tile_key, norm = _SECRET.unpack(secret)
    return TileOpener(tile_key, hashlib.sha256(bound).digest()), norm


def stated_norm(update: Float32) -> float:
    """Returns the Euclidean norm, accumulated in float64."""
    # The enclave rejects what is not finite. Here it must not even cause a warning.
    with np.errstate(all="ignore"):
        wide = update.astype(np.float64)
        return float(np.sqrt(wide @ wide))


def context(header: UpdateHeader) -> bytes:
    """Returns what an upload's seals are bound to: the signed fields without the HPKE output."""
    return encode(header, sealed_key=b"", signature=UNSIGNED)


def tile_context(header: UpdateHeader) -> bytes:
    return hashlib.sha256(context(header)).digest()
