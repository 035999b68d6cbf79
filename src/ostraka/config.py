"""The terms of a federation. Terms that exist are valid; their digest binds every ciphertext."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ostraka import encoding
from ostraka.arrays import Float64
from ostraka.core import exact, leakage, rules, sketch, uploads
from ostraka.core.metrics import DEFAULT_EXAMPLES, DEFAULT_LOSS, Asked, ask
from ostraka.core.optimiser import FEDAVG, Optimiser
from ostraka.encoding import Digest, Id, Key
from ostraka.errors import ConfigError

DEFAULT_TILE = 65_536  # 16,384 are as fast on one thread and up to twice as slow on two
MAX_TILE = 2**18
MAX_PIECE_VALUES = 4 * 2**20  # clients x piece: what passes hold of all updates at one time
BLOCK_VALUES = 16  # pieces begin where a block of the cipher does, even with one byte a value
LEAF_VALUES = 16_384  # of a model, that are hashed together; shards meet between two of them
# clients x sketch: 64 GiB, more than any enclave has. What one of them has room for is its own to
# say (`enclave.budget`): signed terms do not depend on a machine.
MAX_SKETCH_VALUES = 2**34

MAX_DIMENSION = 2**40
MAX_SHARD_POLICY = 2**14  # bytes: a charter travels in one message
MAX_RANK = 32  # of a tensor

_DIGEST_BYTES = 32
_SUCCESSION = b"ostraka/succession/v1"

MASKINGS = ("exact", "gaussian", "none")
DISTANCES = ("workers", "inside")
CONFIRMS = ("clients", "witnesses", "both", "none")
MIN_WORKERS, MAX_WORKERS = 2, 7
DEFAULT_MOMENTUM = 0.9
_NO_OPTIONS = rules.Options()


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
        # Before anything is multiplied: a stranger's shapes may make very long numbers.
        if any(len(tensor.shape) > MAX_RANK for tensor in self.tensors):
            raise ConfigError(f"a tensor has at most {MAX_RANK} dimensions")
        sizes = [size for tensor in self.tensors for size in tensor.shape]
        if not all(0 <= size <= MAX_DIMENSION for size in sizes):
            raise ConfigError(f"a tensor's sizes are 0 to {MAX_DIMENSION}; got {min(sizes)}")
        if not 1 <= self.dimension <= MAX_DIMENSION:
            raise ConfigError(f"an update has 1 to {MAX_DIMENSION} values; got {self.dimension}")

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
class Tiling:
    """A vector of `length` values, cut into tiles of `tile` values and a rest."""

    length: int
    tile: int

    @property
    def count(self) -> int:
        return -(-self.length // self.tile)

    @property
    def group(self) -> int:
        """How many rows are worked on at a time. Their masks are drawn together."""
        return exact.group_rows(self.tile)

    def size(self, index: int) -> int:
        return min(self.tile, self.length - index * self.tile)

    def part(self, index: int) -> slice:
        start = index * self.tile
        return slice(start, start + self.size(index))


@dataclass(frozen=True)
class Span:
    """Consecutive values of an update: those that one shard owns, in whole tiles.

    start: the first one. length: how many. tile: how they are cut for sealing.
    """

    start: int
    length: int
    tile: int

    @property
    def tiling(self) -> Tiling:
        """How they are cut into what is sealed together."""
        return Tiling(self.length, self.tile)

    @property
    def first(self) -> int:
        """The number of its first tile in the update."""
        return self.start // self.tile

    @property
    def part(self) -> slice:
        """Where they are in the update."""
        return slice(self.start, self.start + self.length)


def cut_into_spans(tiling: Tiling, count: int) -> tuple[Span, ...]:
    """An update, cut for this many shards as evenly as tiles and the leaves of a model's digest
    allow. Raises ConfigError if some would have nothing.
    """
    unit = math.lcm(tiling.tile, LEAF_VALUES)
    units = -(-tiling.length // unit)
    if not 1 <= count <= units and count != 1:
        raise ConfigError(
            f"an update of {tiling.length} values in tiles of {tiling.tile} has {units} parts of "
            f"{unit} values, and cannot be cut for {count} shards: take fewer shards, or a tile "
            f"of {LEAF_VALUES} (terms.tile)"
        )
    edges = [min(tiling.length, units * each // count * unit) for each in range(count + 1)]
    return tuple(Span(start, stop - start, tiling.tile) for start, stop in pairwise(edges))


def spans_from(tiling: Tiling, first: Sequence[int]) -> tuple[Span, ...]:
    """The spans that begin with these tiles. Raises ConfigError unless they have all tiles, each
    once, and begin where leaves of a model's digest do.
    """
    edges = (*first, tiling.count)
    rising = all(one < other for one, other in pairwise(edges))
    if edges[0] != 0 or not rising or any(edge * tiling.tile % LEAF_VALUES for edge in first):
        raise ConfigError(f"{tiling.count} tiles are not cut by {list(first)[:16]}")
    values = [min(edge * tiling.tile, tiling.length) for edge in edges]
    return tuple(Span(start, stop - start, tiling.tile) for start, stop in pairwise(values))


@dataclass(frozen=True)
class Terms:
    """What every round of a federation keeps to.

    At most f clients are Byzantine. `pre` names pre-aggregations, in their order, `rule` the
    aggregation rule after them, and `options` holds what they take. Long updates are scaled down to
    `clip_norm` (None: see `clipping_norm`). `client_momentum` is what every client keeps of its
    last updates in the next one, from 0 to below 1.

    Distances are measured by `workers` workers on masked rows, of which half may collude, or inside
    the enclave; with a `sketch`, on that many columns into which the enclave folds each row.
    `verify` checks the workers' answers.

    For Gaussian masking, `leakage_bits` bounds what one worker learns of one whole update if rows
    were masked independently (law 6), and `precision` is the largest acceptable error of a squared
    distance, as a part of the squared clipping norm. `optimiser` turns aggregates into models.

    `confirm` says whose confirmations an outcome needs before anything of it leaves the enclave:
    clients', witnesses', of whom at most `witness_f` are Byzantine, or both. With "none", a host
    that copies the enclave's state can read an update.

    `disclose_values` allows rules whose aggregate holds single values of single clients.

    `upload` names the format in which clients send their updates (`uploads.FORMATS`).

    `report_metrics` are those of which every round publishes the mean of what clients report
    (`core.metrics.NAMES`); `most_loss` and `most_examples` are the largest values that count.
    """

    LABEL: ClassVar[bytes] = b"ostraka/terms/v6"

    manifest: Manifest
    f: int
    masking: str = "exact"
    rule: str = rules.DEFAULT
    pre: tuple[str, ...] = rules.DEFAULT_PRE
    options: rules.Options = _NO_OPTIONS
    client_momentum: float = DEFAULT_MOMENTUM
    clip_norm: float | None = None
    distances: str = "workers"
    workers: int = 2
    sketch: int | None = None
    verify: bool = True
    leakage_bits: float = leakage.DEFAULT_BITS
    precision: float = 1e-3
    tile: int = DEFAULT_TILE
    disclose_selection: bool = False
    disclose_values: bool = False
    optimiser: Optimiser = FEDAVG
    confirm: str = "clients"
    witness_f: int = 0
    upload: str = uploads.DEFAULT
    report_metrics: tuple[str, ...] = ()
    most_loss: float = DEFAULT_LOSS
    most_examples: float = DEFAULT_EXAMPLES

    def __post_init__(self) -> None:
        if min(self.f, self.witness_f) < 0:
            raise ConfigError(
                f"f counts Byzantine parties and cannot be negative; "
                f"got f={self.f}, witness_f={self.witness_f}"
            )
        if self.confirm not in CONFIRMS:
            raise ConfigError(f"confirm is one of {', '.join(CONFIRMS)}; got {self.confirm!r}")
        if self.masking not in MASKINGS:
            raise ConfigError(f"masking is one of {', '.join(MASKINGS)}; got {self.masking!r}")
        if not 0 <= self.client_momentum < 1:
            raise ConfigError(f"0 <= client_momentum < 1; got {self.client_momentum}")
        self.format.require_dimension(self.dimension)
        self.asked  # noqa: B018 (refuses what is no metric)
        self._check_rule()
        largest = 2.0**128 * math.sqrt(self.dimension)  # no float32 update is longer
        if self.clip_norm is not None and not 2.0**-126 <= self.clip_norm <= largest:
            raise ConfigError(f"clip_norm must be 2^-126 to {largest:.2g}; got {self.clip_norm}")
        if not 1 <= self.tile <= MAX_TILE:
            raise ConfigError(f"a tile holds 1 to {MAX_TILE} values; got {self.tile}")
        if self.distances not in DISTANCES:
            raise ConfigError(
                f"distances is one of {', '.join(DISTANCES)}, or auto for run_round; "
                f"got {self.distances!r}"
            )
        if self.sketch is not None:
            sketch.check(self.sketch, self.dimension)
        if not self.inside:
            self._check_workers()

    def _check_rule(self) -> None:
        composition, k = self.composition, self.options.k
        if (composition.name, composition.pre) != (self.rule, self.pre):
            raise ConfigError(f"signed terms name {composition.plain} just so, not by an alias")
        if k is not None and k < self.f + 2:
            raise ConfigError(
                f"k >= f + 2, or f colluders can isolate one honest update; got k={k}, f={self.f}"
            )
        if composition.discloses and not self.disclose_values:
            raise ConfigError(
                f"{composition.plain} publishes single values of single clients: put nnm before "
                "it, or have the terms say so, by disclose_values = true"
            )
        if self.sketch is not None:
            composition.require_sketch(self.sketch)

    def _check_workers(self) -> None:
        if not MIN_WORKERS <= self.workers <= MAX_WORKERS:
            raise ConfigError(f"{MIN_WORKERS} to {MAX_WORKERS} workers; got {self.workers}")
        if self.masking == "exact":
            exact.step(np.ones(1), self.measured)  # refuses a dimension that is too large
        if self.masking == "gaussian" and self.workers != MIN_WORKERS:
            raise ConfigError(
                f"Gaussian masking is for two workers; got {self.workers}: "
                "exact masking takes up to seven"
            )
        if self.masking == "gaussian":
            self.sigma  # noqa: B018 (refuses a budget that its precision cannot meet)

    @property
    def dimension(self) -> int:
        return self.manifest.dimension

    @cached_property
    def tiling(self) -> Tiling:
        """How an update is cut into what is sealed together."""
        return Tiling(self.dimension, self.tile)

    @cached_property
    def span(self) -> Span:
        """All values of an update."""
        return Span(0, self.dimension, self.tile)

    @property
    def measured(self) -> int:
        """How many columns are measured: those of the update itself, or of its sketch."""
        return self.sketch or self.dimension

    @cached_property
    def format(self) -> uploads.Format:
        """How the values of an upload are written."""
        return uploads.find(self.upload)

    @cached_property
    def asked(self) -> Asked:
        """What clients may report, and in which range."""
        return ask(self.report_metrics, loss=self.most_loss, examples=self.most_examples)

    @property
    def least_reports(self) -> int:
        """How many clients must have reported: f colluders then know a sum of two others."""
        return self.f + 2

    def tile_bytes(self, index: int) -> int:
        """The size of a tile of an upload, before it is sealed."""
        return self.tiling.size(index) * self.format.dtype.itemsize

    @property
    def inside(self) -> bool:
        """Whether the enclave measures by itself."""
        return self.distances == "inside" or self.masking == "none"

    @property
    def counted(self) -> bool:
        """Whether rows are measured as the integers that clients have sent, and so exactly (law
        19). Gaussian noise masks them as real numbers all the same."""
        return self.format.integers and self.sketch is None

    @cached_property
    def sigma(self) -> float:
        """The deviation of Gaussian masks, in units of the clipping norm."""
        return leakage.require(
            self.leakage_bits,
            self.precision,
            d=self.measured,
            dtype=np.float64,
            tile=self.tile,
        )

    def clipping_norm(self, stated: Float64) -> float:
        """The configured norm, or the power of two at or above 4 x the median of the stated ones.

        From the median, because f clients of more than 2f cannot move it beyond the honest norms.
        """
        if self.clip_norm is not None:
            return self.clip_norm
        return power_of_two_above(4 * float(np.median(stated)))

    @cached_property
    def composition(self) -> rules.Composition:
        """The pre-aggregations and the rule, with their options."""
        return rules.compose(self.rule, self.pre, self.options)

    def least(self, f: int) -> int:
        """How many updates the rule needs when f of them may be Byzantine."""
        return self.composition.least(f)


@dataclass(frozen=True)
class Member:
    """An enrolled party: its name and its Ed25519 public key."""

    name: str
    key: Key


@dataclass(frozen=True)
class Federation:
    """The terms, the members that keep to them, and the authority over both.

    authority: the Ed25519 key that signs every revision of this. id: drawn once, at random, and the
    same in every revision: one authority may have several federations. revoked: former members,
    whose keys may never return. successors: which enclave may hand its sealed state to which code
    (`succession`). initial: SHA-256 of the first model; empty if that is all zeros. witnesses:
    parties that only confirm. expires: seconds since 1970 after which clients join no round under
    this revision, so that a host cannot withhold the next one for ever. shard_policy: the text of
    the policy file that the evidence of every shard has to meet, and that of the lead towards them;
    empty if the federation has no shards.
    """

    LABEL: ClassVar[bytes] = b"ostraka/federation/v7"
    WRITTEN_ONCE: ClassVar[bool] = True

    terms: Terms
    clients: tuple[Member, ...]
    workers: tuple[Member, ...]
    authority: Key
    id: Id
    revision: int = 1
    revoked: tuple[Member, ...] = ()
    successors: tuple[Digest, ...] = ()
    initial: bytes = b""
    witnesses: tuple[Member, ...] = ()
    expires: int | None = None
    shard_policy: str = ""

    def __post_init__(self) -> None:
        terms, n = self.terms, len(self.clients)
        if len(self.id) != _DIGEST_BYTES:
            raise ConfigError(f"a federation's id has {_DIGEST_BYTES} bytes; got {len(self.id)}")
        self._require_electors()
        if self.revision < 1:
            raise ConfigError(f"revisions count from 1; got {self.revision}")
        if self.expires is not None and self.expires < 1:
            raise ConfigError(f"expires counts seconds since 1970; got {self.expires}")
        if len(self.initial) not in (0, _DIGEST_BYTES):
            raise ConfigError("initial is a SHA-256, or empty for a model of zeros")
        if (size := len(self.shard_policy.encode())) > MAX_SHARD_POLICY:
            raise ConfigError(f"shard_policy has at most {MAX_SHARD_POLICY} bytes; got {size}")
        rules.require_enough(terms.composition, n, terms.f)
        k, root = terms.options.k, terms.options.root
        if k is not None and k > n - terms.f:
            raise ConfigError(f"k <= n - f; got k={k}, n={n}, f={terms.f}")
        if root and root not in {each.name for each in self.clients}:
            raise ConfigError(f"root is {root!r}, and no client of that name is enrolled")
        self.pieces  # noqa: B018 (refuses a tile that cannot be cut)
        if terms.sketch is not None:
            require_sketches(n, terms.sketch)
        if not terms.inside and terms.masking == "gaussian" and n > terms.measured:
            raise ConfigError(
                f"constant-distance noise needs as many dimensions as clients; "
                f"got {n} clients and {terms.measured} dimensions"
            )
        if not terms.inside and len(self.workers) < terms.workers:
            raise ConfigError(
                f"the terms ask for {terms.workers} workers; {len(self.workers)} are enrolled"
            )
        _require_distinct(self.everyone)

    def _require_electors(self) -> None:
        """Raises ConfigError unless those who confirm could ever agree."""
        confirm, count = self.terms.confirm, len(self.witnesses)
        needed = confirm in ("witnesses", "both")
        if needed and count <= self.terms.witness_f:
            raise ConfigError(
                f"confirm = {confirm!r} needs more witnesses than witness_f = "
                f"{self.terms.witness_f}; {count} are enrolled"
            )
        if count and not needed:
            raise ConfigError(
                f"{count} witnesses are enrolled, and confirm = {confirm!r} asks none: "
                'write confirm = "both" or "witnesses"'
            )

    @property
    def everyone(self) -> tuple[Member, ...]:
        """All members that were ever enrolled, as far as this revision says."""
        return self.clients + self.workers + self.witnesses + self.revoked

    @cached_property
    def pieces(self) -> Tiling:
        """How passes over all updates cut them: tiles, or equal parts of tiles."""
        return Tiling(self.terms.dimension, _piece(self.terms.tile, len(self.clients)))

    @cached_property
    def columns(self) -> Tiling:
        """What is measured, and how that is cut: the update itself, or its sketch."""
        return Tiling(self.terms.measured, self.pieces.tile)

    @property
    def shard_policy_digest(self) -> bytes:
        """By this a client's policy pins the text: the SHA-256 of the file that it came from."""
        return hashlib.sha256(self.shard_policy.encode()).digest()

    def digest(self) -> bytes:
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        return encoding.digest(self)

    def require_follows(self, old: "Federation") -> None:
        """Raises ConfigError unless this can be the revision after `old`."""
        if self.id != old.id:
            raise ConfigError(
                f"this is a revision of the federation {self.id.hex()}, not of {old.id.hex()}"
            )
        if self.revision <= old.revision or self.authority != old.authority:
            raise ConfigError(f"revision {self.revision} does not replace revision {old.revision}")
        if (self.terms.manifest, self.initial) != (old.terms.manifest, old.initial):
            raise ConfigError("a new revision cannot have another model")
        if self.terms.optimiser.kind != old.terms.optimiser.kind:
            raise ConfigError("a new revision cannot have another kind of optimiser")
        returned = {each.key for each in old.revoked} - {each.key for each in self.revoked}
        if returned:
            raise ConfigError(f"a revoked key stays revoked; {min(returned).hex()} is missing")


def succession(receipt_key: bytes, code_id: bytes) -> bytes:
    """The enclave that signs with this key may hand its state to the code of this id.

    Both are in it: else the host could have made up the predecessor, key and all.
    """
    return hashlib.sha256(encoding.pack(_SUCCESSION, receipt_key, code_id)).digest()


def require_sketches(clients: int, columns: int) -> None:
    """Raises ConfigError if no enclave has room for a sketch of each client."""
    if clients * columns > MAX_SKETCH_VALUES:
        raise ConfigError(
            f"clients x sketch <= {MAX_SKETCH_VALUES}; got {clients} x {columns}: "
            f"take a sketch of at most {MAX_SKETCH_VALUES // clients}"
        )


def default_tile(dimension: int, shards: int = 1) -> int:
    """The default tile, or the smallest power of two that holds the whole of a short update.

    shards: tiles are short enough for this many, if leaves of a model are.
    """
    if shards > 1:
        dimension = max(LEAF_VALUES, 1 << (dimension // shards).bit_length() - 1)
    return min(DEFAULT_TILE, 1 << (dimension - 1).bit_length())


def _piece(tile: int, clients: int) -> int:
    """The largest part of a tile of which all clients' are held at a time. Raises ConfigError."""
    most = MAX_PIECE_VALUES // max(1, clients)
    if tile <= most:
        return tile
    for parts in range(2, tile // BLOCK_VALUES + 1):
        if tile % (parts * BLOCK_VALUES) == 0 and tile // parts <= most:
            return tile // parts
    raise ConfigError(
        f"with {clients} clients, tiles of {tile} values are read in pieces of at most {most}, and "
        f"cannot be cut so: take a power of two, such as {DEFAULT_TILE}"
    )


def power_of_two_above(value: float) -> float:
    """The smallest power of two >= value, and never below 2^-126, the smallest normal float32."""
    if value <= 2.0**-126:
        return 2.0**-126
    mantissa, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def _require_distinct(members: tuple[Member, ...]) -> None:
    """One name and one key per party: a key enrolled twice would count as two clients."""
    for what, values in (
        ("name", [member.name for member in members]),
        ("key", [member.key.hex() for member in members]),
    ):
        if len(set(values)) != len(values):
            twice = Counter(values).most_common(1)[0][0]
            raise ConfigError(f"every enrolled party needs its own {what}; {twice} occurs twice")
