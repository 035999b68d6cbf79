"""CPU time of the parts that count."""

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Stopwatch:
    """Adds up the CPU seconds of this process, all its threads, between start and stop.

    with clock:                     measures a block
    for item in clock.each(items):  measures the making of the items, not what is done with them
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

    def each(self, items: Iterable[T]) -> Iterator[T]:
        iterator = iter(items)
        while True:
            with self:
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def __enter__(self) -> None:
        self._started = time.process_time()

    def __exit__(self, *_: object) -> None:
        self._elapsed += time.process_time() - self._started
