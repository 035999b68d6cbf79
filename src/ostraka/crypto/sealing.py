"""State that the enclave leaves on the host's disk, sealed under a key from the TEE.

    blob = mark || salt || segments of AES-256-GCM, 1 MiB each, the last one shorter
    key  = HKDF-SHA256(TEE's key, salt, label, enclave's code id, purpose, length of the segments)

The salt is fresh for every blob, so each key seals one blob, and a segment's number is its nonce.
The length is part of the key: no segment opens of a blob that was cut or extended. The host can
still bring back an older blob of the same purpose; that is detected above this module.
"""

import os
from collections.abc import Iterator

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ostraka.arrays import Buffer
from ostraka.crypto.aead import KEY_BYTES, TAG_BYTES, nonce
from ostraka.crypto.hpke import Entropy
from ostraka.encoding import pack
from ostraka.errors import LocalProtocolError, OpenError

CODE_ID_BYTES = 32

MARK_OF_0_1 = b"ostraka/sealed/v1\n"

_LABEL = b"ostraka/sealed-state/v2"
_MARK = b"ostraka/sealed/v2\n"
_SALT_BYTES = 32
_HEADER_BYTES = len(_MARK) + _SALT_BYTES
_SEGMENT = 1 << 20


class Sealer:
    """Seals blobs that only the same code can open, and only for the same purpose.

    key: from the platform, the same at every start of the same code. code_id: names that code
    (`Claims.code_id`).
    """

    def __init__(self, key: bytes, code_id: bytes, entropy: Entropy = os.urandom) -> None:
        if len(key) != KEY_BYTES or len(code_id) != CODE_ID_BYTES:
            raise LocalProtocolError(
                f"a sealer takes a key of {KEY_BYTES} bytes and a code id of {CODE_ID_BYTES}; "
                f"got {len(key)} and {len(code_id)}"
            )
        self._key = key
        self._entropy = entropy
        self.code_id = code_id

    def __repr__(self) -> str:
        return f"Sealer(code_id={self.code_id.hex()[:16]}, <secret>)"

    def seal(self, purpose: str, plaintext: Buffer) -> bytes:
        return b"".join(self.pieces(purpose, plaintext))

    def pieces(self, purpose: str, plaintext: Buffer) -> Iterator[bytes]:
        """Yields the blob in pieces, for a writer that does not want to hold all of it."""
        view = memoryview(plaintext).cast("B")
        starts = range(0, max(len(view), 1), _SEGMENT)  # an empty blob has one segment, too
        salt = self._entropy(_SALT_BYTES)
        cipher = self._cipher(salt, purpose, len(view) + TAG_BYTES * len(starts))
        yield _MARK + salt
        for index, start in enumerate(starts):
            yield cipher.encrypt(nonce(index), view[start : start + _SEGMENT], None)

    def open(self, purpose: str, sealed: Buffer) -> bytes:
        """Opens what was sealed for this purpose. Raises the same OpenError for every cause."""
        view = memoryview(sealed).cast("B")
        header, body = bytes(view[:_HEADER_BYTES]), view[_HEADER_BYTES:]
        cipher = self._cipher(header[len(_MARK) :], purpose, len(body))
        starts = range(0, max(len(body), 1), _SEGMENT + TAG_BYTES)
        try:
            if not header.startswith(_MARK):
                raise InvalidTag
            return b"".join(
                cipher.decrypt(nonce(index), body[start : start + _SEGMENT + TAG_BYTES], None)
                for index, start in enumerate(starts)
            )
        except (InvalidTag, ValueError):
            raise OpenError(f"sealed {purpose}") from None

    def _cipher(self, salt: bytes, purpose: str, length: int) -> AESGCM:
        """Returns the cipher for one blob, whose salt is drawn when it is sealed."""
        info = pack(_LABEL, self.code_id, purpose.encode(), length.to_bytes(8, "big"))
        return AESGCM(HKDF(SHA256(), KEY_BYTES, salt=salt, info=info).derive(self._key))
