"""Shares work among threads that the driver owns. A role itself starts none.

Every thread has scratch memory of its own, and no result depends on which thread made it: sums run
over rows or tiles in their own order, whatever the number of threads.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeAlias, TypeVar

Map: TypeAlias = Callable[[Callable[[int], None], Iterable[int]], Iterable[None]]

T = TypeVar("T")


class Threads:
    """`count` pieces of work at a time, by a `map` that may run them in parallel."""

    def __init__(self, count: int = 1, run: Map = map) -> None:
        self.count = count
        self._run = run

    def groups(self, rows: int, size: int, work: Callable[[int, range], None]) -> None:
        """Call work(thread, group) for groups of `size` rows; each takes consecutive ones."""
        groups = [range(start, min(start + size, rows)) for start in range(0, rows, size)]
        share = -(-len(groups) // self.count)

        def thread_work(thread: int) -> None:
            for group in groups[thread * share : (thread + 1) * share]:
                work(thread, group)

        self._all(thread_work, self.count)

    def map(self, work: Callable[[int], T], items: Iterable[int]) -> list[T]:
        """Return work(item) of every item, in order."""
        given, done = list(items), dict[int, T]()

        def each(_: int, group: range) -> None:
            for at in group:
                done[at] = work(given[at])

        self.groups(len(given), 1, each)
        return [done[at] for at in range(len(given))]

    def batches(self, items: Iterable[T], work: Callable[[int, int, T], None]) -> None:
        """Call work(thread, index, item) for every item, `count` items at a time."""
        numbered = enumerate(items)
        while batch := list(islice(numbered, self.count)):

            def thread_work(thread: int, batch: list[tuple[int, T]] = batch) -> None:
                work(thread, *batch[thread])

            self._all(thread_work, len(batch))

    def _all(self, work: Callable[[int], None], count: int) -> None:
        """Run every thread to its end, and only then raise what the first of them raised.

        A thread that ran on while its memory is used again would spoil what comes next.
        """
        failures: dict[int, Exception] = {}

        def guarded(thread: int) -> None:
            try:
                work(thread)
            except Exception as failure:  # noqa: BLE001 (raised below)
                failures[thread] = failure

        for _ in self._run(guarded, range(count)):
            pass
        if failures:
            raise failures[min(failures)]
