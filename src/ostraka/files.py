"""Files on a disk: written whole, locked, private, or read as text.

A file that is written is there as a whole or not at all, even if the power fails or the process
dies; what is appended to one may be there in part, and its reader has to tell. A lock lets one
process at a time use a folder, or a file. The lock of a file is on another file beside it, which
stays, because the file itself may be replaced. A private file is refused if anyone but its owner
may use it. Identities are private files of one key each, which are never overwritten. An error of
the operating system says what an operator can do about it.
"""

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ostraka.arrays import Buffer
from ostraka.attestation import policy_file
from ostraka.attestation.policy import Policy
from ostraka.crypto.hpke import Entropy
from ostraka.crypto.identity import Identity
from ostraka.errors import ConfigError, OstrakaError, PlatformError, StateError

LOCK_SUFFIX = ".lock"

_PARTIAL = ".partial"
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # It follows no link.
_LOCK_NAME = "lock"
_PAUSE_S = 0.05
# The errors of systems without such locks, as some library operating systems in an enclave are.
# There, the user has to run one process at a time.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK)

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LARGEST = 1 << 16
# A caller that named another file can avoid these. All other errors are faults of the machine.
_ADVICE = {
    errno.EACCES: "run as the user that may use it",
    errno.EISDIR: "that is a folder: name a file",
    errno.ENOTDIR: "there is a file in the place of a folder",
}
_CREATING = _ADVICE | {
    errno.EEXIST: "it exists, and a secret is never overwritten: move it away first",
    errno.ENOENT: "make its folder first",
}
_READING = _ADVICE | {errno.ENOENT: "make it first"}

_SEED_BYTES = 32
_KEY_LABEL = "ostraka-ed25519-key-v1"
_KEY_LINE = re.compile(rf"{_KEY_LABEL} ([0-9a-f]{{{2 * _SEED_BYTES}}})")


@contextmanager
def explained(
    doing: str, advice: Mapping[int, str], *, advised: type[OstrakaError] = PlatformError
) -> Iterator[None]:
    """Turns an OSError into a PlatformError. advice: what to do, by error number.

    advised: the error to raise instead if there is advice.
    """
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        code = errno.errorcode.get(number, "no code")
        where = f" at {error.filename}" if error.filename else ""
        what = f"{doing}: {os.strerror(number)} ({code}){where}"
        if number in advice:
            raise advised(f"{what}: {advice[number]}") from error
        raise PlatformError(what) from error


def write(path: Path, pieces: Iterable[Buffer], *, mode: int = 0o600) -> None:
    """Makes or replaces a file. When this returns, it is on the disk under its name.

    Raises OSError. The name then stands for the old file or the new one, never for a part.
    """
    partial = path.with_name(path.name + _PARTIAL)
    try:
        _write_durably(partial, pieces, mode)
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append(path: Path, piece: Buffer, *, at: int) -> None:
    """Puts bytes into a file behind its first `at` bytes, in place of what is there.

    When this returns, they are on the disk. Raises OSError; a part of them may be there then. It
    takes a fraction of what `write` takes, which makes a file and a name for it.
    """
    opened = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(opened, at)
        os.lseek(opened, at, os.SEEK_SET)
        try:
            _write_all(opened, piece)
            os.fdatasync(opened)
        except OSError:
            with suppress(OSError):
                os.ftruncate(opened, at)  # What may not be on the disk must not be read.
            raise
    finally:
        os.close(opened)


def sync(path: Path) -> None:
    """Makes a file durable that is there, with its name. Raises OSError."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Makes a folder for its owner alone, durably. A folder that exists is not changed."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_folder(path.parent)


def remove_partial(folder: Path, prefix: str = "") -> int:
    """Deletes the parts left by writers that died. Returns how many there were.

    prefix: how their names begin, in a folder that others write to.
    """
    leftovers = [each for each in folder.glob(f"*{_PARTIAL}") if each.name.startswith(prefix)]
    for leftover in leftovers:
        leftover.unlink()
    return len(leftovers)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable. A new name may be lost with the power before this."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _write_durably(path: Path, pieces: Iterable[Buffer], mode: int) -> None:
    try:
        opened = os.open(path, _FRESH, mode)
    except FileExistsError:  # of a writer that died
        path.unlink(missing_ok=True)
        opened = os.open(path, _FRESH, mode)
    try:
        for piece in pieces:
            _write_all(opened, piece)
        os.fsync(opened)
    finally:
        os.close(opened)


def _write_all(opened: int, piece: Buffer) -> None:
    rest = memoryview(piece)
    while rest:
        rest = rest[os.write(opened, rest) :]


class FolderLock:
    """A lock on a folder, held until it is closed or the process ends. Raises StateError.

    It prevents accidents. A malicious host can copy the folder, and clients see the fork.
    effective: False if the system has no such locks.
    """

    def __init__(self, folder: Path) -> None:
        file = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file: int | None = file
        try:
            self.effective = _try_lock(file)
        except BlockingIOError:
            self.close()
            raise StateError(
                folder, "another process uses this state: stop it first, or use another folder"
            ) from None
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[None]:
    """Locks a file, and waits up to `seconds` for that. Raises TimeoutError or another OSError."""
    beside = path.with_name(path.name + LOCK_SUFFIX)
    file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(file, until=time.monotonic() + seconds)
        yield
    finally:
        os.close(file)  # The lock ends with it, or with the process.


def _wait_for(file: int, *, until: float) -> None:
    while True:
        try:
            _try_lock(file)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(_PAUSE_S)


def _try_lock(file: int) -> bool:
    """Locks a file, or returns False on a system without locks.

    Raises BlockingIOError if another process holds the lock, or another OSError.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as failed:
        if failed.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def create_private(path: Path, text: str) -> None:
    """Writes a new file that only its owner can read, from its first moment on.

    Raises ConfigError if it cannot have this name, and PlatformError.
    """
    with explained("creating a secret file", _CREATING, advised=ConfigError):
        file = os.open(path, _FRESH, 0o600)
        with os.fdopen(file, "w") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())


def read_private(path: Path) -> str:
    """Reads text. Raises as `read_private_bytes` does."""
    try:
        return read_private_bytes(path).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None


def read_private_bytes(path: Path) -> bytes:
    """Reads a file. Raises ConfigError if it is absent or others may use it; and PlatformError."""
    reading = explained("reading a secret file", _READING, advised=ConfigError)
    with reading, path.open("rb") as opened:
        # The open file is asked, because the name could be exchanged after a look at it.
        _require_private(path, os.fstat(opened.fileno()))
        return opened.read(_LARGEST)


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path} is not a file")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user (uid {status.st_uid})")
    if status.st_mode & _OTHERS:
        raise ConfigError(f"others may use {path}: chmod 600 it, and count its secret as known")


def read_text(path: Path) -> str:
    """Reads a text file that a person wrote. Raises ConfigError."""
    try:
        return path.read_text("utf-8")
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


def read_policy(path: Path) -> Policy:
    """Reads a client's policy, such as policy.toml. Raises ConfigError with the line at fault."""
    return policy_file.parse(read_text(path), str(path))


def write_identity(path: Path, owner: str, entropy: Entropy = os.urandom) -> Identity:
    """Makes a new identity in a new file. Raises ConfigError if the file exists.

    owner: whose key it is, for a person who reads the file.
    """
    seed = entropy(_SEED_BYTES)
    identity = Identity(seed)
    create_private(
        path,
        f"# Ostraka: the private key of {owner}. Anyone who has it can act as {owner}.\n"
        f"# Its public key, which is not secret: {identity.public.hex()}\n"
        f"{_KEY_LABEL} {seed.hex()}\n",
    )
    return identity


def read_identity(path: Path) -> Identity:
    """Reads the identity in a file. Raises ConfigError, also if others may use the file."""
    try:
        text = read_private(path)
    except ConfigError as refused:
        if not isinstance(refused.__cause__, FileNotFoundError):
            raise
        raise ConfigError(
            f"there is no key file {path}: `ostraka client enrol --name NAME --out {path}` makes "
            "one (for a worker or a witness: ostraka worker enrol, ostraka witness enrol), and the "
            "operator then adds the lines that it prints"
        ) from None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    match = _KEY_LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    if match is None:
        # The error does not show what is in the file, which may be a secret.
        raise ConfigError(f"{path} is no key file: it needs one line, {_KEY_LABEL} and hex digits")
    return Identity(bytes.fromhex(match[1]))
