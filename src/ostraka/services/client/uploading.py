"""The stream of one upload. Whatever was stored of it before is not sent again."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any

from ostraka.crypto.updates import SealedUpdate
from ostraka.encoding import encode
from ostraka.errors import MalformedMessage
from ostraka.services.client.connection import TRANSFER_S, Connection
from ostraka.services.client.events import Uploading
from ostraka.transport import ostraka_pb2 as wire

BATCH_BYTES = 2**18


@dataclass
class Upload:
    """One upload, over as many streams as it takes.

    batch: how many bytes of tiles go into one message, at the least one tile. begun: the enclave
    has taken its header, so that the receipt will name this client unless its update counts.
    """

    round: int
    sealed: SealedUpdate
    batch: int
    begun: bool = False

    def stream(self, connection: Connection) -> None:
        """Send what is missing, and return when the upload is complete.

        Raises grpc.RpcError where the stream breaks. The next one sends the same stored bytes.
        """
        asked: SimpleQueue[list[range]] = SimpleQueue()
        replies = connection.stub.Upload(
            _requests(self.sealed, asked, self.batch), timeout=connection.patience.limit(TRANSFER_S)
        )
        count = len(self.sealed.tiles)
        try:
            missing = _missing(_next(replies, "missing"), count)
            self.begun = True
            connection.tell(Uploading(self.round, sum(map(len, missing)), count))
            asked.put(missing)
            _next(replies, "complete")
        finally:
            # In case it still waits: gRPC reads requests in a thread of its own, which has to end.
            asked.put([])
            replies.cancel()


def _requests(
    sealed: SealedUpdate, asked: SimpleQueue[list[range]], batch: int
) -> Iterator[wire.UploadRequest]:
    yield wire.UploadRequest(header=encode(sealed.header))
    size = len(encode(sealed.tiles[0]))  # no tile is larger
    indices = chain.from_iterable(asked.get())
    while some := list(islice(indices, max(1, batch // size))):
        tiles = [encode(sealed.tiles[index]) for index in some]
        yield wire.UploadRequest(tiles=wire.Tiles(tile=tiles))


def _next(replies: Any, kind: str) -> Any:
    reply = None
    with suppress(StopIteration):
        reply = next(replies)
    if reply is None or reply.WhichOneof("answer") != kind:
        raise MalformedMessage(f"an upload was not answered with {kind!r}")
    return getattr(reply, kind)


def _missing(missing: wire.Missing, count: int) -> list[range]:
    """Tile numbers that exist, each once and in order."""
    ranges = [range(each.start, each.stop) for each in missing.range]
    edges = [edge for each in ranges for edge in (each.start, each.stop)]
    if edges != sorted(edges) or any(edge > count for edge in edges):
        raise MalformedMessage(f"an upload of {count} tiles was asked for tiles that it has not")
    return ranges
