"""Sealed updates: a fresh key per upload, one AES-256-GCM seal per tile.

    header  = signed(federation, round, round key, client, upload, manifest, d, tile size and count,
                     HPKE(key, stated norm, step, report))
    key_s   = HKDF-SHA256(key, label, bound, the first and the number of the tiles of shard s)
    tile_i  = AES-256-GCM(key_s, nonce = i, additional data = bound)
    bound   = SHA-256(header without HPKE, signature)

An enclave without shards is the only one, and has all tiles. A shard is given the key of its own
tiles, and no other.

A key seals one upload. A resumed upload sends the same bytes, and changed content is a new upload
under a new key: reusing a key would show the XOR of two updates. `Sealing` holds the update
and its key, and seals each tile when it is sent: GCM gives the same bytes for the same values, and
the tag that is kept of each tile tells whether they are the same. `SealedUpdate` holds the bytes.
"""

import hashlib
import os
import struct
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ostraka.arrays import AnyArray, Buffer, Float32
from ostraka.config import Span, Terms, Tiling, spans_from
from ostraka.core.metrics import Values
from ostraka.core.uploads import Encoded
from ostraka.crypto import hpke
from ostraka.crypto.aead import KEY_BYTES, NONCE_BYTES, TAG_BYTES, as_bytes, nonce
from ostraka.crypto.hpke import Entropy, HybridKey
from ostraka.crypto.identity import Identity
from ostraka.crypto.stream import SecretStream
from ostraka.encoding import UNSIGNED, encode, pack
from ostraka.errors import ConfigError, LocalProtocolError, OpenError
from ostraka.messages import RoundOffer, UpdateHeader, UpdateTile

_ID_BYTES = 32
_FIRST_BLOCK, _BLOCK_BYTES = 2, 16
_RANGE = b"ostraka/upload-range/v1"
_SECRET = struct.Struct(">32sdd")  # the AES key, the stated norm and the step; then the report


@dataclass(frozen=True)
class SealedUpdate:
    """An upload: ciphertext only, which may be sent more than once."""

    header: UpdateHeader
    tiles: tuple[UpdateTile, ...]

    @property
    def count(self) -> int:
        return len(self.tiles)

    @property
    def largest(self) -> int:
        return max((len(tile.ciphertext) for tile in self.tiles), default=0)

    def put(self, index: int, out: memoryview) -> int:
        sealed = self.tiles[index].ciphertext
        out[: len(sealed)] = sealed
        return len(sealed)


class Sealing:
    """An upload whose tiles are sealed one at a time, as they are sent. One thread for each shard.

    It reads the values (d,) where they are, which must not change until the upload is complete.
    """

    def __init__(
        self, header: UpdateHeader, values: AnyArray, key: "UploadKey", spans: tuple[Span, ...]
    ) -> None:
        self.header = header
        self.spans = spans
        self._raw = np.ascontiguousarray(values).data.cast("B")
        self._value_bytes = values.itemsize
        self._ciphers = [AESGCM(key.of(span)) for span in spans]
        self._first = [span.first for span in spans]
        self._bound = key.bound
        self._tiling = Tiling(len(values), spans[0].tile)
        self._tags: dict[int, bytes] = {}

    def __repr__(self) -> str:
        return f"Sealing({self.count} tiles, <secret>)"

    @property
    def count(self) -> int:
        return self._tiling.count

    @property
    def largest(self) -> int:
        return self._value_bytes * self._tiling.size(0) + TAG_BYTES

    def put(self, index: int, out: memoryview) -> int:
        """Seals tile `index`. Raises LocalProtocolError if it was another one the last time."""
        part, each = self._tiling.part(index), self._value_bytes
        values = self._raw[each * part.start : each * part.stop]
        size = len(values) + TAG_BYTES
        cipher = self._ciphers[bisect_right(self._first, index) - 1]
        cipher.encrypt_into(nonce(index), values, self._bound, out[:size])
        tag = bytes(out[size - TAG_BYTES : size])
        if not compare_digest(tag, self._tags.setdefault(index, tag)):
            out[:size] = bytes(size)  # Two seals of one key and nonce must not both be seen.
            raise LocalProtocolError(
                "the update was changed while it was being sent: submit an array that nothing else "
                "writes to"
            )
        return size

    def whole(self) -> SealedUpdate:
        """Returns all tiles, for who carries them as messages."""
        memory = memoryview(bytearray(self.largest))
        sealed = (bytes(memory[: self.put(index, memory)]) for index in range(self.count))
        tiles = tuple(UpdateTile(self.header.upload_id, *each) for each in enumerate(sealed))
        return SealedUpdate(self.header, tiles)


class Sealed(Protocol):
    """What is sent of an upload: its header, and then its tiles in order."""

    @property
    def header(self) -> UpdateHeader: ...

    @property
    def count(self) -> int: ...

    @property
    def largest(self) -> int:
        """The bytes of the largest sealed tile."""
        ...

    def put(self, index: int, out: memoryview) -> int:
        """Writes a sealed tile, the same bytes each time. Returns how many."""
        ...


@dataclass(frozen=True)
class UploadKey:
    """What the header of one upload seals: the keys of all its tiles follow from it."""

    key: bytes = field(repr=False)
    bound: bytes

    def of(self, span: Span) -> bytes:
        """The key of one shard's tiles. It tells nothing of the others."""
        tiles = span.first.to_bytes(8, "big"), span.tiling.count.to_bytes(8, "big")
        info = pack(_RANGE, self.bound, *tiles)
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(self.key)


class TileOpener:
    """Opens the tiles of one upload, inside the enclave. first: the number of its tile 0."""

    def __init__(self, key: bytes, context: bytes, first: int = 0) -> None:
        self._cipher = AESGCM(key)
        self._keystream = AES(key)
        self._context = context
        self._first = first

    def __repr__(self) -> str:
        return "TileOpener(<secret>)"

    def open_into(self, index: int, ciphertext: Buffer, out: AnyArray) -> None:
        """Opens tile `index` into an array. Raises OpenError and then leaves zeros there."""
        self.open_bytes(index, ciphertext, out.data.cast("B"))

    def open_bytes(self, index: int, ciphertext: Buffer, out: memoryview) -> None:
        """The same into bytes, which are reused."""
        try:
            # This does not call `aead.open_into`, because tiles are opened by the million.
            number = (self._first + index).to_bytes(NONCE_BYTES, "big")
            self._cipher.decrypt_into(number, ciphertext, self._context, out)
        except (InvalidTag, ValueError):
            out[:] = bytes(len(out))
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
        counter = CTR(nonce(self._first + index) + block.to_bytes(4, "big"))
        Cipher(self._keystream, counter).decryptor().update_into(ciphertext, as_bytes(out))


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
    metrics: Values | None = None,
    entropy: Entropy = os.urandom,
) -> Sealing:
    """Seals a fresh key for an update, in the format of the terms, to the round of this offer.

    metrics: what this client reports, by name. It changes no size. Raises ConfigError.
    """
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
    report = terms.asked.write(metrics)
    key = entropy(KEY_BYTES)
    secret = _SECRET.pack(key, update.norm, update.step) + report
    header = replace(blank, sealed_key=hpke.seal(offer.key, secret, info=context(blank)))
    upload_key = UploadKey(key, tile_context(header))
    return Sealing(
        identity.sign(header), values, upload_key, spans_from(terms.tiling, offer.shards)
    )


@dataclass(frozen=True)
class Opened:
    """What the enclave finds in a header: the key, the stated norm, the step and the report."""

    key: UploadKey = field(repr=False)
    norm: float = field(repr=False)
    step: float = field(repr=False)
    report: bytes = field(repr=False)


def open_header(header: UpdateHeader, key: HybridKey, report: int = 0) -> Opened:
    """Opens what a header seals. report: the bytes of a report under these terms. Raises OpenError.

    Nothing of it was checked against the terms.
    """
    bound = context(header)
    secret = key.open(header.sealed_key, info=bound)
    if len(secret) != _SECRET.size + report:
        raise OpenError("sealed key")
    upload_key, norm, step = _SECRET.unpack_from(secret)
    opened = UploadKey(upload_key, hashlib.sha256(bound).digest())
    return Opened(opened, norm, step, secret[_SECRET.size :])


def context(header: UpdateHeader) -> bytes:
    """Returns what an upload's seals are bound to: the signed fields without the HPKE output."""
    return encode(header, sealed_key=b"", signature=UNSIGNED)


def tile_context(header: UpdateHeader) -> bytes:
    return hashlib.sha256(context(header)).digest()
