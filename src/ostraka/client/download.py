"""Gets a model over lanes, of the service or of its shards, and checks it against its digest."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np

from ostraka.arrays import Float32
from ostraka.client.connection import (
    TRANSFER_S,
    Connection,
    LaneBroken,
    Lanes,
    Patience,
    Status,
    at_once,
)
from ostraka.config import LEAF_VALUES, Federation
from ostraka.errors import ReceiptRefused
from ostraka.protocol.client import require_model
from ostraka.transport import TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import is_told_address

_TOO_LARGE = "the model is larger than the federation's rules say"
_TOO_SMALL = "the model is smaller than the federation's rules say"


class ShardAway(LaneBroken):
    """A shard did not give its slice. It is answered as if the service itself had said so."""

    def __init__(self, address: str, status: Status) -> None:
        super().__init__(f"the shard at {address}: {status}")


def download(connection: Connection, digest: bytes, federation: Federation) -> Float32:
    """The model (d,) of this digest, not to be written to.

    Raises ReceiptRefused for any other, and ServiceError with NOT_FOUND if it is not kept any more.
    """
    model = _Model(connection, digest, federation.terms.dimension)
    connection.attempt(model.read)
    require_model(model.vector, digest, federation)
    model.vector.flags.writeable = False
    return model.vector


class _Model:
    """A model as far as it is here."""

    def __init__(self, connection: Connection, digest: bytes, d: int) -> None:
        self.vector: Float32 = np.empty(d, "<f4")
        self._connection = connection
        self._request = wire.ModelRequest(digest=digest)
        self._here: set[tuple[int, int]] = set()  # where slices begin and end

    def read(self) -> None:
        """Get all that is missing. Raises grpc.RpcError, and slices that are here stay.

        If one of them fails, the others go on all the same.
        """
        slices = self._connection.once("GetModel", self._request).slices
        _require_whole(slices, len(self.vector))
        ends = accumulate(each.length for each in slices)
        wheres = pairwise((0, *ends))
        failed: list[LaneBroken] = []
        with self._connection.lanes() as lanes:

            def read(given: wire.ModelSlice, where: tuple[int, int]) -> None:
                try:
                    _fill(lanes, given, self.vector[slice(*where)].data.cast("B"))
                    self._here.add(where)
                except LaneBroken as error:
                    away = ShardAway(given.address, Status.of(error)) if given.address else error
                    failed.append(away)

            asked = zip(slices, wheres, strict=True)
            missing = [partial(read, *each) for each in asked if each[1] not in self._here]
            at_once(missing, stop=lanes.sockets.end)
        if failed:
            raise failed[0]


def _fill(lanes: Lanes, given: wire.ModelSlice, out: memoryview) -> None:
    """Read a slice to its last byte. Raises LaneBroken.

    A lane that is closed before its first byte was refused: its ticket is of an older model, or
    there are too many. Whoever has to wait for its turn hears nothing meanwhile.
    """
    near, rest = lanes.open(given.ticket, given.address, turn_s=TRANSFER_S), out
    limit = Patience(lanes.patience.limit(TRANSFER_S))
    try:
        while rest:
            if limit.over:
                raise TimeoutError("it took too long")
            near.settimeout(limit.limit(TRANSFER_S))
            taken = near.recv_into(rest)
            if not taken:
                break
            rest = rest[taken:]
    except OSError as broken:
        raise LaneBroken(f"the lane broke off: {broken}") from None
    finally:
        lanes.sockets.drop(near)  # The other side waits for this.
    if len(rest) == len(out):
        raise LaneBroken("the lane was refused: there is another model by now, or no room")
    if rest:
        raise LaneBroken(f"the lane ended {len(rest)} bytes before the model did")


def _require_whole(slices: Sequence[wire.ModelSlice], d: int) -> None:
    """Raises ReceiptRefused unless these are slices of d values, and no more than there can be."""
    total = sum(each.length for each in slices)
    if total != d:
        raise ReceiptRefused(_TOO_LARGE if total > d else _TOO_SMALL)
    most = -(-d // LEAF_VALUES)
    if len(slices) > most or not all(each.length for each in slices):
        raise ReceiptRefused(f"a model of {d} values has at most {most} slices, none of them empty")
    for each in slices:
        if each.address and not is_told_address(each.address):
            raise ReceiptRefused("a slice of the model is said to be at an address that is none")
        if len(each.ticket) != TICKET_BYTES:
            raise ReceiptRefused(f"a ticket has {TICKET_BYTES} bytes; got {len(each.ticket)}")
