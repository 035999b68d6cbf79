"""How much memory a round takes, and how much of the machine's the rows of a round may have.

The signed terms do not depend on a machine. Whether this one has room for what they ask is computed
here, when the service starts and when it adopts a revision.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ostraka.config import Federation, Terms, cut_into_spans
from ostraka.core import sketch
from ostraka.core.optimiser import MOMENTS
from ostraka.errors import ConfigError

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_SHARE = 2  # half, unless the federation file says otherwise
_KIB, _MIB = 2**10, 2**20

_SERVICE = 128 * _MIB  # the process before its first round
_CLIENT = 40 * _KIB  # keys, headers, votes, names, and what a connection holds
_THREAD = 16 * _MIB  # scratch memory of one of the threads that mask and sum
_FLOAT32, _FLOAT64 = 4, 8
_MEASURED = 2 * _FLOAT64  # a pair's product, and its deviation


@dataclass(frozen=True)
class Needs:
    """The bytes that a round takes beside the rows themselves.

    sketches: of all rows, as they came and in the unit ball. pieces: shares and masks of a piece of
    all rows. matrices: whatever has an entry for each pair of clients. vectors: whatever has the
    model's length. service: all else.
    """

    sketches: int
    pieces: int
    matrices: int
    vectors: int
    service: int

    @property
    def total(self) -> int:
        return self.sketches + self.pieces + self.matrices + self.vectors + self.service

    def __str__(self) -> str:
        parts = {name: mib(size) for name, size in vars(self).items()}
        return ", ".join(f"{size:,} for {name}" for name, size in parts.items() if size)


def needs(federation: Federation, *, threads: int = 2, values: int | None = None) -> Needs:
    """What a round of this federation takes beside its rows, at the most.

    values: how many of an update are here; all unless given.
    """
    terms, n = federation.terms, len(federation.clients)
    # Nearly all of it is there at one time. Bytes that only Python knows are in the constants.
    return Needs(
        sketches=2 * _FLOAT32 * n * (terms.sketch or 0),
        pieces=_piece_bytes(terms) * n * federation.columns.tile,
        matrices=max(_measuring(terms), _deciding(terms)) * n * n,
        vectors=_vector_bytes(terms) * (terms.dimension if values is None else values),
        service=_SERVICE + _CLIENT * n + _THREAD * threads,
    )


def _piece_bytes(terms: Terms) -> int:
    """Of one value of a piece: its shares, sealed, and what its products are made of."""
    if terms.inside:
        # Integers are multiplied as they came.
        return terms.format.dtype.itemsize if terms.counted else _FLOAT64
    if terms.masking == "gaussian":
        return 4 * _FLOAT64
    shares = 2 * (terms.workers // 2)
    return _FLOAT32 * (shares + 2) + 3 * _FLOAT64


def _measuring(terms: Terms) -> int:
    """Of one pair of clients, while its distance is measured."""
    if terms.inside:
        return _MEASURED + _FLOAT64
    if terms.masking == "gaussian":
        return terms.workers * _FLOAT64 + _MEASURED + 4 * _FLOAT64
    # An answer of every worker, the mask's own if no worker makes it, and what they decode to.
    answers = terms.workers + (terms.workers % 2 == 0) + 1
    return _FLOAT32 * answers + _MEASURED


def _deciding(terms: Terms) -> int:
    """Of one pair of clients, while the rule decides: what was measured, the same without those who
    were rejected, the mixtures of pre-aggregations, and what the rule makes of it."""
    composition = terms.composition
    size = 2 * _MEASURED + composition.rule.matrices * _FLOAT64
    if composition.pre:
        size += 2 * _MEASURED + 2 * _FLOAT64
    if composition.rule.columnwise:
        size += 6 * _FLOAT64
    return size


def _vector_bytes(terms: Terms) -> int:
    """Of one value of the model: the aggregate, and the state before and after it, in memory, as it
    is sealed, and in memory that is used again."""
    moments = _FLOAT64 * MOMENTS[terms.optimiser.kind]
    state = _FLOAT32 * (1 + terms.composition.needs_last) + moments
    return 4 * state + 4 * _FLOAT32


@dataclass(frozen=True)
class Budget:
    """What the machine had to spare when the service started, None if that is unknown.

    given: the bytes that the operator lets rows have; None for a part of what is to spare. threads:
    as for `needs`. shards: among how many the values of an update are divided. leads: none of them
    are here.
    """

    spare: int | None
    given: int | None = None
    threads: int = 2
    shards: int = 1
    leads: bool = False

    def _values(self, federation: Federation) -> int:
        """How many values of an update are here, at the most."""
        spans = cut_into_spans(federation.terms.tiling, self.shards)
        return 0 if self.leads else max(span.length for span in spans)

    def _needs(self, federation: Federation) -> Needs:
        return needs(federation, threads=self.threads, values=self._values(federation))

    def rows(self, federation: Federation) -> int:
        """How many bytes rows may take: half of what is to spare, and no more than is left."""
        if self.given is not None:
            return self.given
        if self.spare is None:
            return 0  # All rows go to the spool.
        left = self.spare - self._needs(federation).total
        return max(0, min(self.spare // _SHARE, left))

    def require(self, federation: Federation) -> None:
        """Raises ConfigError if a round takes more than there is. Says what would do."""
        if self.spare is None:
            return
        needed = self._needs(federation)
        rows = min(self.given or 0, _row_bytes(federation, self._values(federation)))
        if needed.total + rows <= self.spare:
            return
        n, terms = len(federation.clients), federation.terms
        remedies = [f"give it {mib(needed.total + rows):,} MiB"]
        if needed.total <= self.spare < needed.total + rows:
            remedies.append(f"write memory_mib = {(self.spare - needed.total) // _MIB}")
        if (shorter := _shorter(terms, n, needed.total + rows - self.spare)) is not None:
            remedies.append(f"sign terms with sketch = {shorter}")
        raise ConfigError(
            f"a round of {n:,} clients takes {mib(needed.total):,} MiB beside their updates "
            f"({needed})"
            + (f", and {mib(rows):,} MiB for those" if rows else "")
            + "; this machine "
            f"has {self.spare // _MIB:,} MiB to spare: {', or '.join(remedies)}"
        )


def _row_bytes(federation: Federation, values: int) -> int:
    """Of all rows, if all are in memory. values: how many of each are here."""
    return len(federation.clients) * values * federation.terms.format.dtype.itemsize


def _shorter(terms: Terms, clients: int, excess: int) -> int | None:
    """The longest sketch that is short enough to make up for an excess of bytes, if one may be."""
    if terms.sketch is None:
        return None
    columns = terms.sketch - -(-excess // (2 * _FLOAT32 * clients))
    try:
        sketch.check(columns, terms.dimension)
        terms.composition.require_sketch(columns)
    except ConfigError:
        return None
    return columns


def mib(size: int) -> int:
    """Bytes in whole MiB, rounded up."""
    return -(-size // _MIB)


def spare(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """The bytes that the machine has to spare, or its control group if that has less."""
    available = _available(meminfo)
    return None if available is None else min(available, _allowed(cgroup))


def _available(meminfo: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _allowed(cgroup: Path) -> int:
    """What is left of the group's limit; without one, no limit.

    Pages of files that nobody uses count as used there, and are given back when memory is short.
    """
    with suppress(OSError, ValueError):
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        return max(0, limit - max(0, used - _unused_files(cgroup)))
    return 2**62


def _unused_files(cgroup: Path) -> int:
    with suppress(OSError, ValueError):
        for line in (cgroup / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0
