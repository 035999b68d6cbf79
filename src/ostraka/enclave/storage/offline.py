"""Masks for coming attempts, made in the background while clients train.

The secrets stay in the enclave's memory. What they seal, which may be gigabytes, goes to the host's
disk and is read back block by block by the one attempt that spends it. The keys do not outlive the
process, so a restart deletes the files unread.
"""

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import overload

from ostraka import logs
from ostraka.arrays import Buffer
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.enclave import hardening
from ostraka.enclave.storage.spool import SpoolFile
from ostraka.errors import LocalProtocolError, OstrakaError, StorageFull
from ostraka.protocol.enclave import Enclave

DEFAULT_DEPTH = 2

_RETRY_S = 60.0
_JOIN_S = 1.0
_LOG = logging.getLogger("ostraka.offline")


@dataclass(frozen=True)
class OfflineReady:
    """An event: masks for one more attempt are ready."""

    ready: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class OfflineFailed:
    """An event: no masks can be made ahead. The next attempt makes its own, and takes longer."""

    why: str


class SealedBlocks(Sequence[Buffer]):
    """Blocks of ciphertext in a file. Each is read into new memory when it is asked for.

    The file is deleted when this is closed or collected. Without blocks there is no file, and this
    is false, as an empty list is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._closed = False
        self._file: SpoolFile | None = None
        self._ends = [0]

    @property
    def bytes(self) -> int:
        """The number of bytes on disk."""
        return 0 if self._closed else self._ends[-1]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Buffer]: ...
    def __getitem__(self, index: int | slice) -> Buffer | Sequence[Buffer]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        block = range(len(self))[index]
        start, end = self._ends[block : block + 2]
        return self._opened().read(start, end - start)

    def append(self, block: Buffer) -> None:
        """Write one more block. Raises StorageFull or StateError."""
        self._opened().write(self._ends[-1], block)
        self._ends.append(self._ends[-1] + len(block))

    def close(self) -> None:
        """Delete the blocks."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _opened(self) -> SpoolFile:
        with self._lock:
            if self._closed:
                raise LocalProtocolError("these blocks were deleted")
            if self._file is None:
                self._file = SpoolFile(self._folder, "offline")
                weakref.finalize(self, self._file.close)
            return self._file


@dataclass(frozen=True)
class Spooled:
    """What was made offline for one attempt: secrets in memory, ciphertext on disk."""

    offline: OfflineNoise | OfflineMask
    sealed: SealedBlocks

    def close(self) -> None:
        """Delete the ciphertext. Without this call, it is deleted when the blocks are collected."""
        self.sealed.close()


class OfflinePool:
    """Keeps `depth` sets of masks ready; 0 for terms under which none are made ahead.

    limit: bytes of ciphertext that may lie on disk at a time.
    """

    def __init__(
        self,
        enclave: Enclave,
        folder: Path,
        *,
        depth: int = DEFAULT_DEPTH,
        limit: int | None = None,
    ) -> None:
        self._enclave = enclave
        self._folder = folder
        self._depth = depth
        self._limit = limit
        self._ready: deque[Spooled] = deque()
        self._blocks: weakref.WeakSet[SealedBlocks] = weakref.WeakSet()
        self._resting = False
        self._making = False
        self._waiting = 0
        self._stopped = False
        self._changed = Condition()
        self._thread: Thread | None = None

    @property
    def ready(self) -> int:
        return len(self._ready)

    def start(self) -> None:
        """Begin to make masks."""
        if self._thread is None and self._depth:
            self._thread = Thread(target=self._work, name="offline", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Delete everything, even what was taken. Nothing can be taken after this."""
        with self._changed:
            self._stopped = True
            self._ready.clear()
            for blocks in list(self._blocks):
                blocks.close()
            self._changed.notify_all()
        if self._thread is not None:
            # The thread checks after every block. It is not waited for longer than that.
            self._thread.join(_JOIN_S)

    def take(self) -> Spooled:
        """Return masks for one attempt, ready or made now. Raises StorageFull."""
        with self._changed, self._awaited():
            # Masks that are half made are finished sooner than new ones.
            self._changed.wait_for(lambda: self._stopped or self._ready or not self._making)
            self._require_running()
            made = self._ready.popleft() if self._ready else None
        return made or self._make(self._require_running)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Make nothing ahead during the block: a closing round has the machine to itself.

        Masks that are half made wait, unless the round itself waits for them.
        """
        self._rest_from_now(resting=True)
        try:
            yield
        finally:
            self._rest_from_now(resting=False)

    def _rest_from_now(self, *, resting: bool) -> None:
        with self._changed:
            self._resting = resting
            self._changed.notify_all()

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """Keep making masks during the block, because a round waits for them."""
        self._waiting += 1
        if self._resting:
            self._changed.notify_all()
        try:
            yield
        finally:
            self._waiting -= 1

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._wanted())
                if self._stopped:
                    return
                self._making = True
            try:
                self._make_ahead()
            except OstrakaError as failed:
                self._rest(failed)
            finally:
                with self._changed:
                    self._making = False
                    self._changed.notify_all()

    def _wanted(self) -> bool:
        return not self._resting and len(self._ready) < self._depth

    def _make_ahead(self) -> None:
        start = time.monotonic()
        made = self._make(self._pause)
        with self._changed:
            self._require_running()
            self._ready.append(made)
        hardening.give_back()
        seconds = round(time.monotonic() - start, 3)
        logs.event(_LOG, OfflineReady(self.ready, made.sealed.bytes, seconds), logging.DEBUG)

    def _rest(self, failure: OstrakaError) -> None:
        """Wait until a round is over, or for a while, in case the disk has room then."""
        with self._changed:
            if self._stopped:
                return
            self._making = False
            logs.event(_LOG, OfflineFailed(str(failure)), logging.WARNING)
            self._changed.notify_all()
            self._changed.wait(_RETRY_S)

    def _pause(self) -> None:
        """Wait while a round closes that has its masks."""
        if self._resting and not self._waiting:
            hardening.give_back()
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._waiting or not self._resting)
            self._require_running()

    def _make(self, between_tiles: Callable[[], None]) -> Spooled:
        made = Spooled(self._enclave.prepare(), SealedBlocks(self._folder))
        with self._changed:
            self._require_running()
            self._blocks.add(made.sealed)
        try:
            for block in made.offline.make():
                if block:  # Exact masks have no ciphertext to keep.
                    self._require_room(len(block))
                    made.sealed.append(block)
                del block  # It may be large, and the next call may take long.
                between_tiles()
        except BaseException:
            made.close()
            raise
        return made

    def _require_room(self, more: int) -> None:
        with self._changed:
            used = sum(blocks.bytes for blocks in self._blocks)
            if self._limit is not None and used + more > self._limit:
                raise StorageFull(
                    f"masks are above their limit of {self._limit} bytes (storage.spool_mib); "
                    "nothing was lost"
                )

    def _require_running(self) -> None:
        if self._stopped:
            raise LocalProtocolError("this pool was stopped")
