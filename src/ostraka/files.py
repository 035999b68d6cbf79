"""Files that are whole, locked or private: what every service does with a disk."""

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


@contextmanager
def explained(
    doing: str, advice: Mapping[int, str], *, advised: type[OstrakaError] = PlatformError
) -> Iterator[None]:
    """Turns an OSError into a PlatformError. advice: what to do, by error number.

    advised: the error to raise instead where there is advice.
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


_PARTIAL = ".partial"


def write(path: Path, pieces: Iterable[Buffer], *, mode: int = 0o600) -> None:
    """Make or replace a file. When this returns, it is on the disk under its name.

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


def make_folder(path: Path) -> None:
    """For its owner alone, its name durable. One that is there stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    sync_folder(path.parent)


def remove_partial(folder: Path) -> int:
    """Delete what writers left behind that died in the middle. Returns how many."""
    leftovers = list(folder.glob(f"*{_PARTIAL}"))
    for leftover in leftovers:
        leftover.unlink()
    return len(leftovers)


def sync_folder(folder: Path) -> None:
    """A new name in a folder survives a loss of power only after this."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _write_durably(path: Path, pieces: Iterable[Buffer], mode: int) -> None:
    path.unlink(missing_ok=True)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
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


_LOCK_NAME = "lock"
# What a system says that has no such locks, as some library operating systems inside an enclave do.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOLCK)


class FolderLock:
    """Held until it is closed, or until the process ends, however it ends.

    This is against accidents. A host that means it can copy the folder; clients see the fork.
    """

    def __init__(self, folder: Path) -> None:
        self.effective = True
        self._file: int | None = os.open(
            folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise StateError(
                folder, "another process uses this state: stop it first, or use another folder"
            ) from None
        except OSError as failed:
            if failed.errno not in _UNSUPPORTED:
                self.close()
                raise
            self.effective = False

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


LOCK_SUFFIX = ".lock"

_PAUSE_S = 0.05
# What a system says that has no such locks. There, its user has to run one process at a time.


@contextmanager
def locked(path: Path, *, seconds: float) -> Iterator[None]:
    """Waits so long for another process to let go. Raises TimeoutError, or another OSError."""
    beside = path.with_name(path.name + LOCK_SUFFIX)
    file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(file, until=time.monotonic() + seconds)
        yield
    finally:
        os.close(file)  # The lock ends with it, or with the process, however that ends.


def _wait_for(file: int, *, until: float) -> None:
    while not _taken(file):
        if time.monotonic() >= until:
            raise TimeoutError
        time.sleep(_PAUSE_S)


def _taken(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as failed:
        if failed.errno not in _UNSUPPORTED:
            raise
    return True


_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_LARGEST = 1 << 16

# Whoever named the file can do something about these. All else is a fault of the machine.
_ADVICE = {
    errno.EACCES: "run as the user that may use it",
    errno.EISDIR: "that is a folder: name a file",
    errno.ENOTDIR: "there is a file in the place of a folder",
}
_CREATING = _ADVICE | {
    errno.EEXIST: "it exists, and a secret is never written over: move it away first",
    errno.ENOENT: "make its folder first",
}
_READING = _ADVICE | {errno.ENOENT: "make it first"}


def create_private(path: Path, text: str) -> None:
    """Write a new file, readable by its owner from its first moment.

    Raises ConfigError if it cannot be under this name, and PlatformError.
    """
    with explained("creating a secret file", _CREATING, advised=ConfigError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())


def read_private(path: Path) -> str:
    """Text. Raises as `read_bytes` does."""
    try:
        return read_private_bytes(path).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None


def read_private_bytes(path: Path) -> bytes:
    """Raises ConfigError if it is not there, or if others can read it, too; and PlatformError."""
    reading = explained("reading a secret file", _READING, advised=ConfigError)
    with reading, path.open("rb") as opened:
        # Asked of the open file: whoever could swap the name could swap it after a look.
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
    """Raises ConfigError."""
    try:
        return path.read_text("utf-8")
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None


def read_policy(path: Path) -> Policy:
    """A client's policy, such as policy.toml. Raises ConfigError with the line at fault."""
    return policy_file.parse(read_text(path), str(path))


_SEED_BYTES = 32
_KEY_LABEL = "ostraka-ed25519-key-v1"
_KEY_LINE = re.compile(rf"{_KEY_LABEL} ([0-9a-f]{{{2 * _SEED_BYTES}}})")


def write_identity(path: Path, owner: str, entropy: Entropy = os.urandom) -> Identity:
    """A new identity, in a new file. Raises ConfigError if there is one.

    owner: whose key it is, for whoever finds the file.
    """
    seed = entropy(_SEED_BYTES)
    identity = Identity(seed)
    create_private(
        path,
        f"# Ostraka: the private key of {owner}. Whoever has it can act as {owner}: keep it here.\n"
        f"# Its public key, which may be known: {identity.public.hex()}\n"
        f"{_KEY_LABEL} {seed.hex()}\n",
    )
    return identity


def read_identity(path: Path) -> Identity:
    """The identity in a file. Raises ConfigError, also if others can read it."""
    lines = [line for line in read_private(path).splitlines() if not line.startswith("#")]
    match = _KEY_LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    if match is None:
        # Without a word of what is in it: that may be a secret all the same.
        raise ConfigError(f"{path} is no key file: it needs one line, {_KEY_LABEL} and hex digits")
    return Identity(bytes.fromhex(match[1]))
