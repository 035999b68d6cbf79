"""A secret random stream: AES-256 keystream, and the uniform and normal values read from it.

    keystream(key, s) = AES-256-CTR(key, IV = s || 2) over zeros,  s 12 bytes, the counter 4
                      = AES-256-GCM(key, nonce = s) over zeros, without its tag

One key gives 2^96 streams of 2^32 - 2 blocks that never overlap. Everything is a function of
(key, s) and of what was read before: the same calls give the same values, on every machine. Words
are little-endian.

A key belongs to streams alone. Sealing under it as well would show what they hold.
"""

from functools import cache
from time import perf_counter
from typing import TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from ostraka.arrays import AnyArray, Float64, UInt32
from ostraka.core import loops
from ostraka.errors import ConfigError, LocalProtocolError

KEY_BYTES = 32
FIRST_BLOCK = (2).to_bytes(4, "big")  # of the keystream within GCM (NIST SP 800-38D)

Shape: TypeAlias = int | tuple[int, ...]

_NONCE_BYTES = 12
_STREAM_BYTES = 16 * (2**32 - 2)  # Behind them the counter would run into the next nonce.
_LONG = 1 << 17  # bytes, for which a new context pays
_TRIES = 5

# Zeros in, keystream out. Measured for 64 KiB, in multiples of one AES-GCM pass: CTR 0.55 and GCM
# over zeros 1.0 on a processor with narrow AES, CTR 1.2 and GCM 0.9 on one with wide AES, ChaCha20
# 1.2, os.urandom 11. A new nonce for CTR costs 0.4 us, and a new context, which GCM needs, 4 us.
# Longer requests are cut to this length, so that the zeros stay in the cache.
_ZEROS = memoryview(bytes(1 << 16))

# Box-Muller takes this many pairs of words at a time, so that its temporaries stay there too.
_PAIRS = 1 << 11


class SecretStream:
    """The keystream of (key, stream), read from its start. One thread at a time may use it."""

    def __init__(self, key: bytes, *, stream: int = 0) -> None:
        if len(key) != KEY_BYTES:
            raise ConfigError(f"a stream needs a key of {KEY_BYTES} bytes; got {len(key)}")
        self._aes = AES(key)
        self._counter = Cipher(self._aes, CTR(bytes(_NONCE_BYTES) + FIRST_BLOCK)).encryptor()
        self.seek(stream)

    def __repr__(self) -> str:
        return f"SecretStream(<secret>, stream={self._stream})"

    def seek(self, stream: int) -> None:
        """Goes to the start of another stream under the same key."""
        if not 0 <= stream < 1 << 8 * _NONCE_BYTES:
            raise ConfigError(f"a stream number lies in 0 ... 2^96 - 1; got {stream}")
        self._stream = stream
        self._cipher: CipherContext | None = None  # until the first bytes are asked for
        self._left = _STREAM_BYTES

    def fill(self, out: AnyArray) -> None:
        """Overwrites a contiguous array of any type with the next bytes of the stream.

        Raises LocalProtocolError if the stream has fewer; then nothing of it is used up.
        """
        raw = _flat(out).data.cast("B") if out.size else _ZEROS[:0]
        if len(raw) > self._left:
            raise LocalProtocolError(
                f"stream {self._stream} has {self._left} bytes left; seek another for {len(raw)}"
            )
        self._left -= len(raw)
        cipher = self._cipher or self._start(len(raw))
        for start in range(0, len(raw), len(_ZEROS)):
            part = raw[start : start + len(_ZEROS)]
            cipher.update_into(_ZEROS[: len(part)], part)

    def _start(self, size: int) -> CipherContext:
        """Makes what turns zeros into the stream. size: of what is read first."""
        nonce = self._stream.to_bytes(_NONCE_BYTES, "big")
        if size >= _LONG and gcm_is_faster():
            self._cipher = _gcm(self._aes, nonce)
        else:
            self._counter.reset_nonce(nonce + FIRST_BLOCK)
            self._cipher = self._counter
        return self._cipher

    def bytes(self, n: int) -> bytes:
        """Returns the next n bytes: bytes(a) + bytes(b) == bytes(a + b)."""
        out = np.empty(n, np.uint8)
        self.fill(out)
        return out.tobytes()

    def uniform(self, shape: Shape, modulus: int) -> UInt32:
        """Returns independent residues, each exactly uniform over 0 ... modulus - 1."""
        out = np.empty(shape, np.uint32)
        self.uniform_into(out, modulus)
        return out

    def uniform_into(self, out: UInt32, modulus: int) -> None:
        """Overwrites `out` with the next acceptable 32-bit words of the stream, in their order.

        No word is skipped or read twice: a draw of a + b values is a draw of a, then one of b.
        """
        rest = _flat(out)
        while rest.size:
            self.fill(rest)
            rest = rest[accept(rest, modulus) :]

    def normal(self, shape: Shape) -> Float64:
        """Returns independent standard normals, by Box-Muller."""
        out = np.empty(shape, np.float64)
        self.normal_into(out)
        return out

    def normal_into(self, out: Float64) -> None:
        """Overwrites `out` with standard normals. An odd draw drops the second of its last pair."""
        flat = _flat(out)
        for start in range(0, flat.size, 2 * _PAIRS):
            part = flat[start : start + 2 * _PAIRS]
            words = np.empty((-(-part.size // 2), 2), np.uint64)
            self.fill(words)
            part[:] = box_muller(words).reshape(-1)[: part.size]


def accept(words: AnyArray, modulus: int) -> int:
    """Samples residues by exact rejection, in place, and returns how many `words` starts with.

    words: (n,) raw words of an unsigned type. Each keeps the fewest low bits that can hold
    modulus - 1; those then below the modulus move to the front in their order, the others are
    rejected. Every residue is the image of equally many words, so uniform words give uniform
    residues. Modulo 2^31 - 1 one word in 2^31 is rejected: the first test nearly always suffices.
    """
    bits, width = (modulus - 1).bit_length(), 8 * words.itemsize
    if modulus < 1 or bits > width:
        raise ConfigError(f"words of {width} bits cannot be drawn modulo {modulus}")
    if _greatest(words, (1 << bits) - 1) < modulus:
        return words.size
    kept = words[words < modulus]
    words[: kept.size] = kept
    return kept.size


def _greatest(words: AnyArray, mask: int) -> int:
    """Keeps the bits of `mask` in all words, and returns the greatest of them, or 0."""
    if words.dtype == np.uint32:
        return loops.keep_bits(words, mask)
    np.bitwise_and(words, words.dtype.type(mask), out=words)
    return int(np.maximum.reduce(words, initial=0))


def box_muller(words: AnyArray) -> Float64:
    """Makes two independent standard normals from each pair of words. words: (n, 2) uint64.

    r cos a and r sin a with r = sqrt(-2 ln u), a = 2 pi v, and u, v multiples of 2^-53 in (0, 1]:
    the logarithm never meets zero, and no normal exceeds sqrt(106 ln 2) < 8.6.
    """
    # Signed integers of 53 bits convert to float64 exactly, and faster than unsigned ones.
    uniforms = ((words >> np.uint64(11)).view(np.int64) + 1) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniforms[:, 0]))
    angle = (2.0 * np.pi) * uniforms[:, 1]
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)


@cache
def gcm_is_faster() -> bool:
    """Tells whether this machine's GCM is faster than its counter mode: it has more to do, but the
    library may use wider instructions for it. Measured at the first call, in about a millisecond.
    """
    aes, nonce = AES(bytes(KEY_BYTES)), bytes(_NONCE_BYTES)
    counter = Cipher(aes, CTR(nonce + FIRST_BLOCK)).encryptor()
    return _seconds(_gcm(aes, nonce)) < _seconds(counter)


def _gcm(aes: AES, nonce: bytes) -> CipherContext:
    """Returns the counter mode within GCM. What GCM authenticates with is never asked for."""
    return Cipher(aes, GCM(nonce)).encryptor()


def _seconds(cipher: CipherContext) -> float:
    """Returns the least time for as many bytes as are made at a time."""
    out, times = bytearray(len(_ZEROS)), []
    for _ in range(_TRIES):
        start = perf_counter()
        cipher.update_into(_ZEROS, out)
        times.append(perf_counter() - start)
    return min(times)


def _flat(out: AnyArray) -> AnyArray:
    """Returns the same memory as one row. A copy would be filled and lost, so none is made."""
    if not out.flags.c_contiguous:
        raise LocalProtocolError("a stream writes to contiguous arrays only")
    return out.reshape(-1)
