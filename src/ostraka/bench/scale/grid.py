"""Which sizes to measure: from small to large, within the memory and the time that there are."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from ostraka.bench.memory import available_bytes
from ostraka.bench.scale import fit
from ostraka.bench.scale.fit import Size
from ostraka.errors import ConfigError

_BYTES_A_VALUE = 6  # ciphertext, and what the host keeps beside it
_DISK_BYTES_A_VALUE = 4  # ciphertext that the enclave's own process reads
_SHARE = 0.6  # of what is left of either
_TERMS = ("1", "N d", "N² m")


@dataclass(frozen=True)
class Grid:
    """clients, dims: every pair of them is a size. repeat: runs of each, fewer if they are long."""

    clients: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
    dims: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    repeat: int = 3

    def __post_init__(self) -> None:
        if len(self.clients) < 2 or len(self.dims) < 2:
            raise ConfigError("growth needs at least two numbers of clients and two dimensions")
        if self.repeat < 1:
            raise ConfigError(f"repeat must be at least 1; got {self.repeat}")

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Pairs that fit, the least first: whoever runs out of time has the small ones."""
        disk = shutil.disk_usage(tempfile.gettempdir()).free / _DISK_BYTES_A_VALUE
        limit = _SHARE * min(available_bytes() / _BYTES_A_VALUE, disk)
        pairs = ((n, d) for n in self.clients for d in self.dims if n * d <= limit)
        return iter(sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair)))


class Budget:
    """Seconds that may be spent. What a size will take is told from what the others took."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ConfigError(f"a budget is some seconds; got {seconds}")
        self._left = seconds
        self._sizes: list[Size] = []
        self._seconds: list[float] = []

    def allows(self, clients: int, dim: int) -> bool:
        if not self._sizes:
            return True
        model = fit.terms(self._sizes, self._seconds, _TERMS)
        return fit.predict(model, Size(clients, dim, dim)) <= self._left

    def spend(self, clients: int, dim: int, seconds: float) -> None:
        self._left -= seconds
        self._sizes.append(Size(clients, dim, dim))
        self._seconds.append(seconds)
