"""The enclave's models on disk, sealed with the optimiser's moments and the last aggregate."""

import hashlib
import re
import struct
from pathlib import Path

import numpy as np

from ostraka.core.optimiser import ServerState
from ostraka.crypto.sealing import Sealer
from ostraka.enclave.storage.sealed_file import SealedFile
from ostraka.errors import ConfigError, MalformedMessage, StateError

DEFAULT_KEEP = 3

_NAME = re.compile(r"model-([0-9]{8})\.sealed")
_HEADER = struct.Struct("<QII")  # the length of a vector, the number of moments, and of aggregates


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

    def load(self, number: int, digest: bytes) -> ServerState:
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


def to_bytes(state: ServerState) -> bytes:
    """Encode a state: a header, the moments, the model, and the last aggregate if there is one.

    In this order arrays are aligned.
    """
    lasts = () if state.last is None else (state.last,)
    header = _HEADER.pack(state.model.size, len(state.moments), len(lasts))
    moments = (np.ascontiguousarray(moment, "<f8").data for moment in state.moments)
    vectors = (np.ascontiguousarray(vector, "<f4").data for vector in (state.model, *lasts))
    return b"".join((header, *moments, *vectors))


def from_bytes(content: bytes) -> ServerState:
    """Decode a state into read-only views of the content. Raises MalformedMessage."""
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
