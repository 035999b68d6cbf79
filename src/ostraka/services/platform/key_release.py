"""A sealing key from outside, for platforms that derive none: TDX and Nitro.

A key broker, run by whoever may decide which code reads the state, hands the key to code that it
has verified. A command of the operator's carries one line each way, and reads nothing in them that
is secret:

  to the broker, on the command's stdin
    {"version": "ostraka/key-release/v1", "kind": "tdx", "document": B, "endorsements": [B, ...],
     "public_key": B}
  from the broker, on its stdout
    {"sealed_key": B, "signature": B}

where every B is base64. `document` and `endorsements` are evidence whose report data is
`report_data_for(public_key)`. The broker verifies the evidence, compares report data and
measurements, and answers with the same 32 bytes each time, sealed to the public key (`hpke.seal`,
info = the version), and with its Ed25519 signature over `ReleasedKey`. The public key is fresh each
time, so an old answer is of no use; and without the signature the host could bring a key of its own
choice, and read whatever is sealed under it from then on.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import check_signature
from ostraka.encoding import Signature, pack
from ostraka.errors import OpenError, PlatformError
from ostraka.messages import Evidence
from ostraka.services.platform.child import ask
from ostraka.services.platform.derive import sealing_key
from ostraka.services.platform.interface import EvidenceProvider

KEY_RELEASE = "ostraka/key-release/v1"

_KEY_LABEL = b"ostraka/sealing-key/key-release/v1"
_SECONDS = 60.0
_LARGEST_ANSWER = 1 << 16


@dataclass(frozen=True)
class ReleasedKey:
    """What a broker signs: this sealed key is my answer to this public key."""

    LABEL: ClassVar[bytes] = b"ostraka/released-key/v1"

    public_key: bytes
    sealed_key: bytes
    signature: Signature


def report_data_for(public_key: bytes) -> bytes:
    """What the evidence of a request is about: SHA-512 over the version and the public key."""
    return hashlib.sha512(pack(KEY_RELEASE.encode(), public_key)).digest()


class KeyRelease:
    """broker: the Ed25519 key that its answers are signed with, from a measured place."""

    name = "key release"

    def __init__(
        self,
        command: Sequence[str],
        provider: EvidenceProvider,
        *,
        broker: bytes,
        seconds: float = _SECONDS,
    ) -> None:
        self._command = tuple(command)
        self._provider = provider
        self._broker = broker
        self._seconds = seconds

    def key(self) -> bytes:
        """Raises PlatformError."""
        private = HybridKey()
        evidence = self._provider.evidence(report_data_for(private.public))
        request = _request(evidence, private.public)
        line = ask(self._command, request, seconds=self._seconds, largest=_LARGEST_ANSWER)
        secret = self._open(private, line)
        if len(secret) != KEY_BYTES:
            raise PlatformError(f"the released key has {len(secret)} bytes instead of {KEY_BYTES}")
        return sealing_key(secret, _KEY_LABEL)

    def _open(self, private: HybridKey, line: bytes) -> bytes:
        sealed, signature = _answer(line)
        try:
            check_signature(ReleasedKey(private.public, sealed, signature), self._broker)
        except OpenError:
            raise PlatformError("the released key is not signed by the pinned broker") from None
        try:
            return private.open(sealed, info=KEY_RELEASE.encode())
        except OpenError:
            raise PlatformError(
                "the released key is not sealed to the key of this request"
            ) from None


def _request(evidence: Evidence, public_key: bytes) -> bytes:
    fields = {
        "version": KEY_RELEASE,
        "kind": evidence.kind,
        "document": _text(evidence.document),
        "endorsements": [_text(each) for each in evidence.endorsements],
        "public_key": _text(public_key),
    }
    return json.dumps(fields).encode() + b"\n"


def _answer(line: bytes) -> tuple[bytes, bytes]:
    """The sealed key and the signature. What was read stays out of the error."""
    try:
        match json.loads(line):
            case {"sealed_key": str(sealed), "signature": str(signature)}:
                return _bytes(sealed), _bytes(signature)
    except (ValueError, RecursionError):
        pass
    raise PlatformError('the key broker\'s answer is not {"sealed_key": ..., "signature": ...}')


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
