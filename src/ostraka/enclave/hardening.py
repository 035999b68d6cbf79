"""Makes an ordinary process harder to read and to misuse.

It is still no enclave. Root, and anybody who controls the kernel or the machine, can read all of
its memory; other users, crash dumps, and code that has taken the process over find less. That is
enough to try things out, but not for anything that must stay secret.
"""

import ctypes
import errno
import gc
import os
import resource
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from ostraka.errors import ConfigError

ROOT_CAN_READ = "root can still read this process: it is hardened, and it is no enclave"

Syscall: TypeAlias = Callable[..., int]
"""syscall(number, *arguments): its result, or OSError."""

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = (1 << bit for bit in range(4))
_TRUNCATE = 1 << 14
_TO_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
# What each version of Landlock added to the rights over files. Devices keep their ioctls, which
# attestation needs.
_ADDED = {1: (1 << 13) - 1, 2: 1 << 13, 3: _TRUNCATE}

# Programs, libraries, settings, and what the system says of itself.
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/opt", "/proc", "/sys", "/run")
_PACKAGE = Path(__file__).parents[1]
_DEVICES = ("/dev",)
# The kernel makes a report of the machine for a process that makes a folder here.
_REPORTS = ("/sys/kernel/config/tsm/report",)


def harden(*, read: Sequence[Path] = (), write: Sequence[Path] = ()) -> list[str]:
    """Give up what this process does not need. Return what was done, and what this system lacks.

    read, write: if given, only these folders and the system's own stay open, for this thread and
    for those that it starts from now on; so call this early. The network stays open.
    """
    done = [
        _tried("no core dumps", _no_core_dumps),
        _tried("no other process of this user may trace it", lambda: _prctl(_PR_SET_DUMPABLE, 0)),
        _tried("no new privileges", lambda: _prctl(_PR_SET_NO_NEW_PRIVS, 1)),
    ]
    if read or write:
        folders = ", ".join(str(path) for path in (*read, *write))
        what = f"no files but the system's and {folders}{_threads_before()}"
        done.append(_tried(what, lambda: restrict_files(read=read, write=write)))
    return [*done, ROOT_CAN_READ]


def restrict_files(
    *, read: Sequence[Path], write: Sequence[Path], syscall: Syscall | None = None
) -> None:
    """Close all other files, by Landlock. The process must have given up new privileges before.

    Raises OSError where the kernel has no Landlock, and ConfigError for a path that is absent.
    """
    call = syscall or _syscall
    version = call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    rights = sum(added for since, added in _ADDED.items() if since <= version)
    with _ruleset(call, rights) as allow:
        for path in _present([*_SYSTEM, *_python()]):
            allow(path, _TO_READ)
        for path in _present(_DEVICES):
            allow(path, _OF_A_FILE | _READ_DIR)
        for path in (*read, *write, *_present(_REPORTS)):
            allow(path, _TO_READ if path in read else rights)


@contextmanager
def _ruleset(call: Syscall, rights: int) -> Iterator[Callable[[Path, int], None]]:
    """Yield allow(path, rights). Everything that it did not allow is forbidden at the end."""
    handled = struct.pack("=Q", rights)
    ruleset = call(_CREATE_RULESET, handled, len(handled), 0)

    def allow(path: Path, what: int) -> None:
        with _located(path) as place:
            # The kernel refuses rights that only folders have.
            of_kind = rights if stat.S_ISDIR(os.fstat(place).st_mode) else rights & _OF_A_FILE
            rule = struct.pack("=Qi", what & of_kind, place)
            call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)

    try:
        yield allow
        call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


@contextmanager
def _located(path: Path) -> Iterator[int]:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as absent:
        raise ConfigError(f"{path}: {absent.strerror}") from None
    try:
        yield place
    finally:
        os.close(place)


def _present(paths: Sequence[str]) -> list[Path]:
    return [Path(path) for path in dict.fromkeys(paths) if path and Path(path).exists()]


def _python() -> list[str]:
    """Return the folders from which modules may still be loaded.

    The first place of the search path is left out, and the folder that the process started in
    wherever it stands: what is written there later is not ours.
    """
    searched = sys.path if sys.flags.safe_path else sys.path[1:]
    searched = [place for place in searched if place not in ("", str(Path.cwd()))]
    return [*searched, sys.prefix, sys.base_prefix, str(_PACKAGE)]


def _threads_before() -> str:
    tasks = Path("/proc/self/task")
    others = len(list(tasks.iterdir())) - 1 if tasks.is_dir() else 0
    return f" (not for the threads that were there before: {others})" if others else ""


def _no_core_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prctl(option: int, value: int) -> None:
    _checked(_libc().prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3))


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return _checked(_libc().syscall(ctypes.c_long(number), *words))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _tried(what: str, act: Callable[[], None]) -> str:
    try:
        act()
    except (OSError, ValueError) as failed:
        number = failed.errno if isinstance(failed, OSError) else None
        why = errno.errorcode.get(number or 0, "refused")
        return f"NOT AVAILABLE HERE ({why}): {what}"
    return what


# Of glibc's malloc.h: the number of arenas, and the size from which a block is taken from the
# system, and given back, by itself.
_ARENA_MAX, _ARENAS = -8, 2
_MMAP_THRESHOLD, _LARGE = -3, 2**21


def keep_little() -> None:
    """Keep less free memory in the process. Call it before threads start. It needs glibc."""
    with suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, _ARENAS)
        library.mallopt(_MMAP_THRESHOLD, _LARGE)


def give_back() -> None:
    """Give free memory back to the system. This takes milliseconds, so it is done rarely."""
    gc.collect()
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
