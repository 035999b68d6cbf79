"""How long to wait before the next try."""

from secrets import SystemRandom

_FIRST_S = 0.25
_CAP_S = 30.0


class Backoff:
    """Doubles from try to try up to a cap, and varies, so that many do not come back at once."""

    def __init__(self, first: float = _FIRST_S, cap: float = _CAP_S) -> None:
        self._cap = cap
        self._first = first
        self._next = first
        self._draw = SystemRandom()

    def next(self) -> float:
        """Seconds: between half of the present step and all of it."""
        step = self._next
        self._next = min(2 * step, self._cap)
        return self._draw.uniform(step / 2, step)

    def reset(self) -> None:
        """The last try went well."""
        self._next = self._first
