"""From a platform's secret to the key that seals state."""

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from ostraka.crypto.aead import KEY_BYTES


def sealing_key(secret: bytes, label: bytes) -> bytes:
    """HKDF, so that other users of the same platform secret learn nothing about this key.

    label: names the platform and the version. Without a version, keys could never be changed.
    """
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=label).derive(secret)
