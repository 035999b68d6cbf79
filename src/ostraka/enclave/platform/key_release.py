"""A sealing key from a key broker, for platforms that derive none: TDX and Nitro.

A command of the operator's carries the request to the broker and the answer back.
"""

import base64
import hashlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, ClassVar, cast

from ostraka.crypto.aead import KEY_BYTES
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.identity import check_signature
from ostraka.enclave.platform.interface import EvidenceProvider, sealing_key
from ostraka.encoding import Signature, pack
from ostraka.errors import OpenError, PlatformError
from ostraka.messages import Evidence

KEY_RELEASE = "ostraka/key-release/v1"

_KEY_LABEL = b"ostraka/sealing-key/key-release/v1"
_SECONDS = 60.0
_LARGEST_ANSWER = 1 << 16


def ask(command: Sequence[str], request: bytes, *, seconds: float, largest: int) -> bytes:
    """Run a command, and return what it writes to stdout. Raises PlatformError.

    The command gets no shell, and its stderr is ours, so that an operator sees what it says.
    """
    deadline = time.monotonic() + seconds
    try:
        with _started(command, request) as process:
            answer = _read(cast(IO[bytes], process.stdout), deadline, largest)
            code = process.wait(_left(deadline))
    except (subprocess.TimeoutExpired, TimeoutError):
        raise PlatformError(f"{command[0]!r} did not end within {seconds:g} s") from None
    except OSError as error:
        raise PlatformError(f"cannot run {command[0]!r}: {error.strerror}") from error
    if code != 0:
        raise PlatformError(f"{command[0]!r} failed with exit code {code}")
    return answer


@contextmanager
def _started(command: Sequence[str], request: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command during the block, and kill it at the end, with what it started itself."""
    with _readable(request) as question:
        process = subprocess.Popen(  # noqa: S603 (the operator's own command, and no shell)
            command, stdin=question, stdout=subprocess.PIPE, start_new_session=True
        )
    with process:
        try:
            yield process
        finally:
            # It was not waited for, so its process number is still its own.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _readable(request: bytes) -> Iterator[IO[bytes]]:
    """A file in memory with the request: a pipe would block us if the command does not read."""
    with os.fdopen(os.memfd_create("ostraka-request"), "r+b") as question:
        question.write(request)
        question.seek(0)
        yield question


def _read(answers: IO[bytes], deadline: float, largest: int) -> bytes:
    answer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(answers, selectors.EVENT_READ)
        while len(answer) <= largest:
            if not selector.select(_left(deadline)):
                raise TimeoutError
            part = os.read(answers.fileno(), largest + 1 - len(answer))
            if not part:
                return answer
            answer += part
    raise PlatformError(f"the command's answer is longer than {largest} bytes")


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


@dataclass(frozen=True)
class ReleasedKey:
    """What a broker signs: this sealed key is my answer to this public key."""

    LABEL: ClassVar[bytes] = b"ostraka/released-key/v1"

    public_key: bytes
    sealed_key: bytes
    signature: Signature


def report_data_for(public_key: bytes) -> bytes:
    """Return what a request's evidence is about: SHA-512 of the version and the public key."""
    return hashlib.sha512(pack(KEY_RELEASE.encode(), public_key)).digest()


class KeyRelease:
    """Gets the key from a broker. broker: its Ed25519 public key, from a measured place."""

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
        """Ask for the sealing key. Raises PlatformError."""
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
    """Return the sealed key and the signature. The error does not show what was read."""
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
