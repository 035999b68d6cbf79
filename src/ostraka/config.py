"""The rules of a federation. A config that exists is valid; its digest binds every ciphertext."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ostraka import encoding
from ostraka.arrays import Float64
from ostraka.core import leakage
from ostraka.encoding import Key
from ostraka.errors import ConfigError

DEFAULT_TILE = 16_384
MAX_TILE_VALUES = 4 * 2**20  # clients x tile: what the enclave holds of all updates at one time

MASKINGS = ("gaussian", "none")
GAUSSIAN_WORKERS = 2


@dataclass(frozen=True)
class Tensor:
    """One named array of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Manifest:
    """What the coordinates of an update mean: the tensors that make it up, end to end."""

    LABEL: ClassVar[bytes] = b"ostraka/manifest/v1"

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if len(set(names)) != len(names):
            raise ConfigError(f"tensor names must differ; got {names}")
        if self.dimension < 1:
            raise ConfigError("an update has at least one value; the manifest has none")

    @classmethod
    def flat(cls, d: int) -> "Manifest":
        """An update that is a single vector of d values."""
        return cls((Tensor("update", (d,)),))

    @cached_property
    def dimension(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def digest(self) -> bytes:
        return encoding.digest(self)


@dataclass(frozen=True)
class RoundConfig:
    """The rules of one round.

    f clients at most are Byzantine; k updates are averaged (None: all but f). Long updates are
    scaled down to `clip_norm` (None: see `clipping_norm`). `leakage_bits` bounds what a single
    worker learns of one whole update (law 6); `precision` is the largest error of a squared
    distance that is acceptable, as a part of the squared clipping norm.
    """

    LABEL: ClassVar[bytes] = b"ostraka/round-config/v1"

    manifest: Manifest
    f: int
    masking: str
    k: int | None = None
    clip_norm: float | None = None
    leakage_bits: float = leakage.DEFAULT_BITS
    precision: float = 1e-3
    tile: int = DEFAULT_TILE
    disclose_selection: bool = False

    def __post_init__(self) -> None:
        if self.f < 0:
            raise ConfigError(f"f counts Byzantine clients and cannot be negative; got f={self.f}")
        if self.masking not in MASKINGS:
            raise ConfigError(f"masking is one of {', '.join(MASKINGS)}; got {self.masking!r}")
        if self.k is not None and self.k < self.f + 2:
            raise ConfigError(
                f"k >= f + 2, or f colluders can isolate one honest update; "
                f"got k={self.k}, f={self.f}"
            )
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ConfigError(f"clip_norm must be positive and finite; got {self.clip_norm}")
        if self.tile < 1:
            raise ConfigError(f"a tile holds at least one value; got {self.tile}")
        if self.masking == "gaussian":
            self.sigma  # noqa: B018 (refuses a budget that its precision cannot meet)

    @property
    def dimension(self) -> int:
        return self.manifest.dimension

    @property
    def tiles(self) -> int:
        return -(-self.dimension // self.tile)

    def tile_slice(self, index: int) -> slice:
        """The coordinates in tile `index`."""
        start = index * self.tile
        return slice(start, start + self.tile_length(index))

    def tile_length(self, index: int) -> int:
        return min(self.tile, self.dimension - index * self.tile)

    @cached_property
    def sigma(self) -> float:
        """The deviation of Gaussian masks, in units of the clipping norm."""
        return leakage.require(
            self.leakage_bits,
            self.precision,
            d=self.dimension,
            dtype=np.float64,
            tile=self.tile,
        )

    def clipping_norm(self, stated: Float64) -> float:
        """The configured norm, or the power of two at or above 4 x the median of the stated ones.

        From the median, because f clients of N >= 2f + 3 cannot move that beyond the honest norms.
        """
        if self.clip_norm is not None:
            return self.clip_norm
        return power_of_two_above(4 * float(np.median(stated)))

    def kept(self, n: int, f: int) -> int:
        """How many of n updates are averaged when f of them may be Byzantine."""
        return n - f if self.k is None else min(self.k, n - f)


@dataclass(frozen=True)
class Member:
    """An enrolled party: its name and its Ed25519 public key."""

    name: str
    key: Key


@dataclass(frozen=True)
class Federation:
    """The rules, and who plays by them."""

    LABEL: ClassVar[bytes] = b"ostraka/federation/v1"

    rules: RoundConfig
    clients: tuple[Member, ...]
    workers: tuple[Member, ...]

    def __post_init__(self) -> None:
        rules, n = self.rules, len(self.clients)
        require_krum(n, rules.f)
        if rules.k is not None and rules.k > n - rules.f:
            raise ConfigError(f"k <= n - f; got k={rules.k}, n={n}, f={rules.f}")
        if n * rules.tile > MAX_TILE_VALUES:
            raise ConfigError(
                f"clients x tile <= {MAX_TILE_VALUES}; got {n} x {rules.tile}: "
                f"take a tile of at most {MAX_TILE_VALUES // n}"
            )
        if rules.masking == "gaussian" and n > rules.dimension:
            raise ConfigError(
                f"constant-distance noise needs as many dimensions as clients; "
                f"got {n} clients and dimension {rules.dimension}"
            )
        if rules.masking == "gaussian" and len(self.workers) != GAUSSIAN_WORKERS:
            raise ConfigError(f"Gaussian masking takes two workers; got {len(self.workers)}")
        _require_distinct(self.clients + self.workers)

    def digest(self) -> bytes:
        return encoding.digest(self)


def require_krum(n: int, f: int) -> None:
    """Multi-Krum's own condition (Blanchard et al. 2017)."""
    if n < 2 * f + 3:
        raise ConfigError(f"Krum needs n >= 2f + 3; got n={n}, f={f}")


def default_tile(clients: int) -> int:
    """The default tile, or the largest power of two that so many clients allow."""
    largest = max(1, MAX_TILE_VALUES // max(1, clients))
    return min(DEFAULT_TILE, 1 << (largest.bit_length() - 1))


def power_of_two_above(value: float) -> float:
    """The smallest power of two >= value, and never below the smallest float32, 2^-149."""
    if value <= 2.0**-149:
        return 2.0**-149
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def _require_distinct(members: tuple[Member, ...]) -> None:
    """One name and one key per party: a key enrolled twice would count as two clients."""
    for what, values in (
        ("name", [member.name for member in members]),
        ("key", [member.key for member in members]),
    ):
        if len(set(values)) != len(values):
            raise ConfigError(f"every client and worker needs its own {what}; one occurs twice")
