"""How long to go on."""

import time
from dataclasses import dataclass


@dataclass
class Patience:
    """The time that one call of the user may take."""

    seconds: float | None

    def __post_init__(self) -> None:
        self._until = None if self.seconds is None else time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def limit(self, seconds: float) -> float:
        """So many seconds, or what is left if that is less."""
        if self._until is None:
            return seconds
        return max(0.0, min(seconds, self._until - time.monotonic()))

    def sleep(self, seconds: float) -> None:
        time.sleep(self.limit(seconds))
