"""Gets a model from the service, or in slices from its shards, and checks it against its digest."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, pairwise
from threading import Lock

import grpc
import numpy as np

from ostraka.arrays import Float32
from ostraka.client.connection import Connection, Status, at_once
from ostraka.config import LEAF_VALUES, Federation
from ostraka.errors import ReceiptRefused
from ostraka.protocol.client import require_model
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import is_told_address

_TOO_LARGE = "the model is larger than the federation's rules say"
_TOO_SMALL = "the model is smaller than the federation's rules say"


class ShardAway(grpc.RpcError):
    """A shard did not give its slice. It is answered as if the service itself had said so."""

    def __init__(self, address: str, status: Status) -> None:
        super().__init__(f"the shard at {address}: {status}")
        self._code = status.code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return str(self)


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
        """Ask for all that is missing. Raises grpc.RpcError, and slices that are here stay."""
        slices = _fill(self._connection, self._request, self.vector)
        if slices:
            _require_whole(slices, len(self.vector))
            self._read_slices(slices)

    def _read_slices(self, slices: Sequence[wire.ModelSlice]) -> None:
        """Ask each shard for its slice. If one of them fails, the others go on all the same."""
        ends = list(accumulate(each.length for each in slices))
        asked = zip(slices, pairwise((0, *ends)), strict=True)
        shards, failed = _Shards(self._connection), list[ShardAway]()

        def read(address: str, where: tuple[int, int]) -> None:
            try:
                with shards.at(address) as shard:
                    if _fill(shard, self._request, self.vector[slice(*where)]):
                        raise ReceiptRefused("a shard says that others have its slice of the model")
                self._here.add(where)
            except grpc.RpcError as error:
                failed.append(ShardAway(address, Status.of(error)))

        missing = [(each.address, where) for each, where in asked if where not in self._here]
        at_once([partial(read, *each) for each in missing], stop=shards.end)
        if failed:
            raise failed[0]


class _Shards:
    """Connections to shards, which any thread can end at once."""

    def __init__(self, lead: Connection) -> None:
        self._lead = lead
        self._lock = Lock()
        self._open: set[Connection] = set()
        self._ended = False

    @contextmanager
    def at(self, address: str) -> Iterator[Connection]:
        """A connection to the shard that is said to be there."""
        with self._lead.beside(address) as shard:
            with self._lock:
                self._open.add(shard)
                if self._ended:
                    shard.close()
            try:
                yield shard
            finally:
                with self._lock:
                    self._open.remove(shard)

    def end(self) -> None:
        with self._lock:
            self._ended = True
            for shard in self._open:
                shard.close()


def _fill(
    connection: Connection, request: wire.ModelRequest, out: Float32
) -> Sequence[wire.ModelSlice]:
    """Read values until all are here. Returns the slices that are to be asked for instead."""
    rest = out.data.cast("B")
    with connection.stream("GetModel", request) as parts:
        for part in parts:
            if part.slices:
                return list(part.slices)
            if len(part.data) > len(rest):
                raise ReceiptRefused(_TOO_LARGE)
            rest[: len(part.data)] = part.data
            rest = rest[len(part.data) :]
    if rest:
        raise ReceiptRefused(_TOO_SMALL)
    return ()


def _require_whole(slices: Sequence[wire.ModelSlice], d: int) -> None:
    """Raises ReceiptRefused unless these are slices of d values, and no more than there can be."""
    total = sum(each.length for each in slices)
    if total != d:
        raise ReceiptRefused(_TOO_LARGE if total > d else _TOO_SMALL)
    most = -(-d // LEAF_VALUES)
    if len(slices) > most or not all(each.length for each in slices):
        raise ReceiptRefused(f"a model of {d} values has at most {most} slices, none of them empty")
    for each in slices:
        if not is_told_address(each.address):
            raise ReceiptRefused("a slice of the model is said to be at an address that is none")
