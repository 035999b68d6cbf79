"""The enclave's models on disk, sealed with the optimiser's moments and the last aggregate.

The lead of shards has `Slices` in their place: what names the slices that its shards have sealed,
and the key that they are sealed under, so that any shard can open any of them.
"""

import hashlib
import hmac
import re
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np

from ostraka.core.optimiser import ServerState
from ostraka.crypto.sealing import Sealer
from ostraka.enclave.storage.sealed_file import SealedFile
from ostraka.encoding import Digest, Key, decode, encode, pack
from ostraka.errors import ConfigError, MalformedMessage, StateError

DEFAULT_KEEP = 3

_NAME = re.compile(r"model-([0-9]{8})\.sealed")
_SLICE = re.compile(r"slice-([0-9]{8})-([0-9]+)-([0-9a-f]{16})\.sealed")
_SHOWN = b"ostraka/slice-file/v1"
_HEADER = struct.Struct("<QII")  # the length of a vector, the number of moments, and of aggregates


@dataclass(frozen=True)
class SliceName:
    """A slice that a shard has sealed. start, length: in values. digest: of its content."""

    start: int
    length: int
    digest: Digest


@dataclass(frozen=True)
class Slices:
    """What the lead knows of the state after a round. slices: none before the first."""

    LABEL: ClassVar[bytes] = b"ostraka/slices/v1"

    key: Key = field(repr=False)
    slices: tuple[SliceName, ...] = ()


State: TypeAlias = ServerState | Slices


class SliceFiles:
    """The slices that one shard has, each in a file. They open under the lead's key, on any machine
    of the same code.
    """

    def __init__(self, folder: Path, code_id: bytes) -> None:
        self._folder = folder
        self._code_id = code_id

    def save(self, number: int, start: int, key: bytes, state: ServerState) -> SliceName:
        """Write a slice after a round, durable on return. Raises OSError."""
        content = to_bytes(state)
        name = SliceName(start, len(state.model), content_digest(content))
        self._file(number, name, key).write(content)
        return name

    def load(self, number: int, name: SliceName, key: bytes) -> ServerState:
        """Raises StateError, which says what is missing."""
        file = self._file(number, name, key)
        if not file.exists():
            raise StateError(
                file.path,
                f"is missing: it has the values {name.start} to {name.start + name.length} after "
                f"round {number}. Copy it from the machine of the shard that had them",
            )
        content = file.read()
        if content_digest(content) != name.digest:
            raise StateError(file.path, "is not the slice that its lead names")
        return _vectors(content)

    def prune(self, newest: int, keep: SliceName, key: bytes) -> None:
        """Delete what was before the round before the newest, and what was never confirmed.

        key: that the slice to keep is sealed under.
        """
        for path in self._folder.glob("slice-*.sealed"):
            match = _SLICE.fullmatch(path.name)
            if match is None:
                continue
            number = int(match[1])
            if number < newest - 1 or (number == newest and match[3] != _shown(keep, key)):
                with suppress(OSError):
                    path.unlink()

    def _file(self, number: int, name: SliceName, key: bytes) -> SealedFile:
        path = self._folder / f"slice-{number:08d}-{name.start}-{_shown(name, key)}.sealed"
        return SealedFile(path, Sealer(key, self._code_id))


def _shown(name: SliceName, key: bytes) -> str:
    """What tells a slice from others of its number and place, to those who know the key alone.

    A file's name is the host's to see before the outcome is held. The digest itself would show a
    null step, whose slices are those before it, and would let the host try its guesses.
    """
    return hmac.digest(key, pack(_SHOWN, name.digest), "sha256").hex()[:16]


class Models:
    """The states after the last rounds, one sealed file each. Round 0 is the first model."""

    def __init__(self, folder: Path, sealer: Sealer, *, keep: int = DEFAULT_KEEP) -> None:
        if keep < 1:
            raise ConfigError(f"at least one model must be kept; got {keep}")
        self._folder = folder
        self._sealer = sealer
        self._keep = keep

    def save(self, number: int, content: bytes) -> None:
        """Write the state after a round, durable on return. content: see `to_bytes`."""
        self._file(number).write(content)

    def load(self, number: int, digest: bytes) -> State:
        """Return the state after this round, which must have this digest. Raises StateError."""
        file = self._file(number)
        content = file.read()
        if content_digest(content) != digest:
            raise StateError(
                file.path,
                f"is not the state after round {number} that the ledger names: it is older or from "
                "another run. Bring back the whole folder as it was",
            )
        return from_bytes(content)

    def prune(self, newest: int) -> None:
        """Delete the older states, once the ledger names the newest."""
        for number in self.numbers():
            if number <= newest - self._keep:
                self._file(number).discard()

    def numbers(self) -> list[int]:
        matches = (_NAME.fullmatch(path.name) for path in self._folder.glob("model-*.sealed"))
        return sorted(int(match[1]) for match in matches if match)

    def _file(self, number: int) -> SealedFile:
        return SealedFile(self._folder / f"model-{number:08d}.sealed", self._sealer)


def to_bytes(state: State) -> bytes:
    """Encode a state: a header, the moments, the model, and the last aggregate if there is one.

    In this order arrays are aligned. Slices are a message.
    """
    if isinstance(state, Slices):
        return encode(state)
    lasts = () if state.last is None else (state.last,)
    header = _HEADER.pack(state.model.size, len(state.moments), len(lasts))
    moments = (np.ascontiguousarray(moment, "<f8").data for moment in state.moments)
    vectors = (np.ascontiguousarray(vector, "<f4").data for vector in (state.model, *lasts))
    return b"".join((header, *moments, *vectors))


def from_bytes(content: bytes) -> State:
    """Decode a state into read-only views of the content. Raises MalformedMessage."""
    if content.startswith(pack(Slices.LABEL)):
        return decode(Slices, content)
    return _vectors(content)


def _vectors(content: bytes) -> ServerState:
    if len(content) < _HEADER.size:
        raise MalformedMessage("a state has no header")
    d, count, lasts = _HEADER.unpack_from(content)
    if lasts > 1 or len(content) != _HEADER.size + d * (8 * count + 4 + 4 * lasts):
        raise MalformedMessage(
            f"{len(content)} bytes are no state of {d} values, {count} moments, {lasts} aggregates"
        )
    moments = np.frombuffer(content, "<f8", d * count, _HEADER.size).reshape(count, d)
    start = _HEADER.size + moments.nbytes
    model = np.frombuffer(content, "<f4", d, start)
    last = np.frombuffer(content, "<f4", d, start + model.nbytes) if lasts else None
    return ServerState(model, tuple(moments), last)


def content_digest(content: bytes) -> bytes:
    """Return the digest by which the ledger names a state."""
    return hashlib.sha256(content).digest()
