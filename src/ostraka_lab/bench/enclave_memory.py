"""How much memory the enclave takes beside rows: a whole round, the enclave in its own process.

Clients and workers are on this side of a pipe. All rows are spooled: ciphertext lies in a file, as
a host would keep it, and the enclave reads it tile by tile into buffers of its own.
"""

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from ostraka.arrays import Buffer
from ostraka.encoding import decode, encode
from ostraka.errors import LocalProtocolError
from ostraka.messages import (
    Answer,
    ChannelAccept,
    ChannelOffer,
    MaskSeed,
    RoundOffer,
    ShareTile,
    UpdateHeader,
    UpdateTile,
)
from ostraka.protocol.enclave import Enclave, Memory, Threads
from ostraka.protocol.host import Host
from ostraka_lab.bench.machine import PeakMemory
from ostraka_lab.bench.parties import UPDATES, Cast, Layout, cast
from ostraka_lab.bench.whole_round import refuse_surprises

_READY = b"ready"


def enclave_peak_bytes(clients: int, dimension: int, *, masking: str, directory: Path) -> int:
    """Measure the peak of anonymous memory while the enclave runs one round."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_enclave, args=(theirs, clients, dimension, masking, directory), daemon=True
    )
    process.start()
    theirs.close()
    try:
        return _outside(ours, cast(clients, dimension, masking=masking), directory)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise LocalProtocolError("the enclave's process ended before its round did") from None
    finally:
        ours.close()
        process.terminate()
        process.join()


def _outside(pipe: Connection, parties: Cast, directory: Path) -> int:
    """Play the host, the clients and the workers. Returns what the enclave reports."""
    offer = decode(RoundOffer, pipe.recv_bytes())
    layout = Layout(parties.terms, len(parties.federation.clients))
    with (directory / UPDATES).open("wb") as spool:
        for row in range(layout.rows):
            upload = parties.seal(row, offer)
            for tile in upload.tiles:
                spool.seek(layout.offset(tile.index, row))
                spool.write(tile.ciphertext)
            spool.flush()
            pipe.send_bytes(encode(upload.header))
            _expect_ready(pipe)
    computing = []
    for worker in parties.workers().values():
        channel = decode(ChannelOffer, pipe.recv_bytes())
        joined, accept = worker.accept(channel)
        computing.append(joined)
        pipe.send_bytes(encode(accept))
    shared = computing
    if len(computing) % 2:
        *shared, last = computing
        last.add_seed(MaskSeed(channel.attempt_id, pipe.recv_bytes()))
    for index in range(parties.federation.columns.count):
        for each in shared:
            each.add(ShareTile(channel.attempt_id, index, pipe.recv_bytes()))
    for each in computing:
        _expect_ready(pipe)
        pipe.send_bytes(encode(each.answer()))
    return int.from_bytes(pipe.recv_bytes(), "big")


def _expect_ready(pipe: Connection) -> None:
    if pipe.recv_bytes() != _READY:
        raise LocalProtocolError("the enclave's process is out of step")


def _enclave(pipe: Connection, clients: int, dimension: int, masking: str, directory: Path) -> None:
    """Run the other process. It ignores Ctrl-C: the first process handles that and ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with PeakMemory() as memory:
        _whole_round(pipe, cast(clients, dimension, masking=masking), directory)
    pipe.send_bytes(memory.peak.to_bytes(8, "big"))


def _whole_round(pipe: Connection, parties: Cast, directory: Path) -> None:
    enclave = Enclave(parties.federation, parties.enclave)
    rows = len(parties.federation.clients)
    spool = _Spool(directory / UPDATES, Layout(parties.terms, rows))
    intake = enclave.open_round(Memory(0), spool)
    pipe.send_bytes(encode(intake.offer))
    for row in range(rows):
        header = decode(UpdateHeader, pipe.recv_bytes())
        intake.accept(header)
        for index in range(parties.terms.tiling.count):
            sealed = spool.read(row, index, 0, spool.layout.size(index))
            intake.take(header.client, UpdateTile(header.upload_id, index, sealed))
        pipe.send_bytes(_READY)

    host = Host(
        threads=Threads(),
        workers={member.name: _PipedWorker(pipe) for member in parties.federation.workers},
        tell=refuse_surprises,
    )
    cohort = intake.close()
    host.finish(cohort, host.measure(cohort))


class _Spool:
    """What the clients have written to a file: the enclave finds its spooled rows there, too."""

    def __init__(self, path: Path, layout: Layout) -> None:
        self.layout = layout
        self._path = path

    def write(self, row: int, index: int, ciphertext: Buffer) -> None:
        """It lies where it was read from."""

    def read(self, row: int, index: int, start: int, size: int) -> bytes:
        with self._path.open("rb", buffering=0) as file:
            file.seek(self.layout.offset(index, row) + start)
            return file.read(size)


class _PipedWorker:
    """A worker at the other end of the pipe. Both sides go through the steps in one order."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def accept(self, offer: ChannelOffer) -> tuple["_PipedWorker", ChannelAccept]:
        self._pipe.send_bytes(encode(offer))
        return self, decode(ChannelAccept, self._pipe.recv_bytes())

    def add(self, tile: ShareTile) -> None:
        self._pipe.send_bytes(tile.ciphertext)

    def add_seed(self, message: MaskSeed) -> None:
        self._pipe.send_bytes(message.ciphertext)

    def answer(self) -> Answer:
        self._pipe.send_bytes(_READY)
        return decode(Answer, self._pipe.recv_bytes())
