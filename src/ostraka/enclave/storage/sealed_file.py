"""One sealed file. It is sealed under its name, so no other file can take its place."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ostraka import files
from ostraka.arrays import Buffer
from ostraka.crypto.sealing import Sealer
from ostraka.errors import OpenError, StateError

DOES_NOT_OPEN = (
    "does not open under this enclave's key: it is damaged or misplaced, or was sealed by other "
    "code or on another machine. Bring back the whole folder as it was; the state of other code "
    "comes by `ostraka enclave migrate`"
)


@dataclass(frozen=True)
class SealedFile:
    """A file that only this enclave can read. Raises StateError, and OSError if the disk fails."""

    path: Path
    sealer: Sealer

    def exists(self) -> bool:
        return self.path.exists()

    def read(self) -> bytes:
        try:
            return self.sealer.open(self.path.name, self.path.read_bytes())
        except FileNotFoundError:
            raise StateError(
                self.path, "is missing: bring back the whole folder as it was"
            ) from None
        except OpenError:
            raise StateError(self.path, DOES_NOT_OPEN) from None

    def write(self, plaintext: Buffer) -> None:
        """Replace the content, durable on return."""
        files.write(self.path, self.sealer.pieces(self.path.name, plaintext))

    def discard(self) -> None:
        """Delete the file. If that fails, it stays, and does no harm."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
