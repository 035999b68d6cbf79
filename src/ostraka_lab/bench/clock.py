"""CPU time of the parts that count."""

import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """Adds up the CPU seconds of this process, all its threads, between start and stop.

    with clock:           measures a block
    with clock.paused():  leaves out a part of it
    """

    def __init__(self) -> None:
        self.note: str | None = None
        self._elapsed = 0.0
        self._factor = 1.0
        self._started = 0.0

    @property
    def seconds(self) -> float:
        return self._elapsed * self._factor

    def extrapolate(self, *, part: int, whole: int) -> None:
        """Say that only some of the columns were measured: `seconds` grows in proportion."""
        if part < whole:
            self._factor = whole / part
            self.note = f"measured on {part} of {whole} columns and scaled: a low estimate"

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def __enter__(self) -> None:
        self._started = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._elapsed += time.process_time() - self._started


@dataclass(frozen=True)
class Cost:
    """cpu_s: of all threads of this process, and of the processes that it started and that ended.

    wall_s: what a bystander's watch shows.
    """

    cpu_s: float
    wall_s: float


def measured(work: Callable[[], T]) -> tuple[T, Cost]:
    cpu, wall = _cpu(), time.perf_counter()
    result = work()
    return result, Cost(_cpu() - cpu, time.perf_counter() - wall)


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Ledger:
    """CPU seconds of this process, by party. One works at a time, and the innermost is charged.

    with ledger("enclave"):         charged to the enclave,
        with ledger("worker-1"):    but for this block
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parties: list[str] = []
        self._since = 0.0

    @property
    def party(self) -> str | None:
        """Who is charged just now."""
        return self._parties[-1] if self._parties else None

    @contextmanager
    def __call__(self, party: str) -> Iterator[None]:
        self._settle()
        self._parties.append(party)
        try:
            yield
        finally:
            self._settle()
            self._parties.pop()

    def _settle(self) -> None:
        now = time.process_time()
        if self._parties:
            self.seconds[self._parties[-1]] += now - self._since
        self._since = now
