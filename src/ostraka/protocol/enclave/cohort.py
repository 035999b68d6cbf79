"""Who takes part, and the beginning of an attempt to measure them."""

from collections.abc import Sequence

from ostraka.config import Member
from ostraka.crypto.channel import Channel, PendingChannel
from ostraka.crypto.hpke import HybridKey
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.encoding import UNSIGNED
from ostraka.errors import LocalProtocolError, OpenError, WorkerError
from ostraka.messages import ChannelAccept, ChannelOffer
from ostraka.protocol.enclave.context import RoundContext, Row, Standing
from ostraka.protocol.enclave.inside import MeasuringInside
from ostraka.protocol.enclave.lanes import Lanes
from ostraka.protocol.enclave.masking import Masking
from ostraka.protocol.enclave.rows import RowReader

_ID_BYTES = 32


class Cohort:
    """Who takes part, in which row. An attempt to measure it may begin, and another after it."""

    def __init__(self, context: RoundContext, rows: tuple[Row, ...], standing: Standing) -> None:
        self._context = context
        self._rows = rows
        self._standing = standing

    @property
    def uploads(self) -> tuple[bytes, ...]:
        """The upload of each row, in order: which stored tiles each pass asks for."""
        return tuple(row.upload_id for row in self._rows)

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(row.client for row in self._rows)

    def offload(
        self,
        offline: OfflineNoise | OfflineMask,
        workers: Sequence[str] | None = None,
        lanes: Lanes | None = None,
    ) -> "Connecting":
        """Begin an attempt with these workers: fresh ids, keys and masks, the cohort as it stands.

        workers: enrolled names, as many as the rules say (None: the first ones).
        """
        kind = OfflineNoise if self._context.terms.masking == "gaussian" else OfflineMask
        if type(offline) is not kind or not offline.serves(self._context.terms, len(self._rows)):
            raise LocalProtocolError("what was made offline is for other rules, or for fewer rows")
        return Connecting(self.reader(lanes), offline, self._enrolled(workers))

    def inside(self, lanes: Lanes | None = None) -> "MeasuringInside":
        """Begin an attempt without workers."""
        return MeasuringInside(self.reader(lanes))

    def reader(self, lanes: Lanes | None) -> RowReader:
        """The rows of this cohort, to be opened once."""
        return RowReader(self._context, self._rows, self._standing, lanes or Lanes())

    def _enrolled(self, names: Sequence[str] | None) -> tuple[Member, ...]:
        """One point per identity: a worker with two shares could take the mask off."""
        roster = {member.name: member for member in self._context.federation.workers}
        count = self._context.terms.workers
        chosen = list(roster)[:count] if names is None else list(names)
        if len(chosen) != count or len(set(chosen)) != count or not set(chosen) <= set(roster):
            raise LocalProtocolError(f"an attempt needs {count} different enrolled workers")
        return tuple(roster[name] for name in chosen)


class Connecting:
    """Each worker was offered a channel for this attempt."""

    def __init__(
        self, reader: RowReader, offline: OfflineNoise | OfflineMask, workers: tuple[Member, ...]
    ) -> None:
        self._reader = reader
        self._offline = offline
        self._workers = workers
        self._attempt = reader.context.entropy(_ID_BYTES)
        self._pending = tuple(
            self._offer(point, worker.key) for point, worker in enumerate(workers)
        )

    @property
    def offers(self) -> tuple[ChannelOffer, ...]:
        """One per worker, in the order of the attempt's workers."""
        return tuple(pending.offer for pending in self._pending)

    def connect(self, accepts: Sequence[ChannelAccept]) -> "Masking":
        """Raises WorkerError unless every chosen worker accepted its own offer."""
        each = zip(self._pending, self._workers, accepts, strict=True)
        channels = tuple(self._finish(*one) for one in each)
        names = tuple(worker.name for worker in self._workers)
        return Masking(self._attempt, self._reader, self._offline, channels, names)

    def _finish(self, pending: PendingChannel, worker: Member, accept: ChannelAccept) -> Channel:
        try:
            return pending.finish(accept)
        except OpenError:
            raise WorkerError(worker.name, "did not accept the offer made to it") from None

    def _offer(self, point: int, worker: bytes) -> PendingChannel:
        context = self._reader.context
        key, terms = HybridKey(context.entropy), context.terms
        blank = ChannelOffer(
            federation=context.federation.digest(),
            round_id=context.round_id,
            attempt_id=self._attempt,
            worker=worker,
            point=point,
            masking=terms.masking,
            rows=len(self._reader.rows),
            columns=terms.columns.length,
            tile=terms.tile,
            key=key.public,
            signature=UNSIGNED,
        )
        return PendingChannel(blank, context.identity, key, worker)
