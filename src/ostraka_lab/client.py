"""A process of clients: a thread for each of them, which train one after the other.

python -m ostraka_lab.client RUN ADDRESS NUMBER [NUMBER ...]
"""

import logging
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

import ostraka
from ostraka import logs
from ostraka.arrays import Float32
from ostraka.client.results import Model
from ostraka.core.uploads import Encoded
from ostraka.errors import OstrakaError, UpdateRejected
from ostraka.protocol.client import Joined
from ostraka_lab import training
from ostraka_lab.folder import Board, Records, RunFolder, client_name
from ostraka_lab.task import AnyTask, Participant, load_task

_LOG = logging.getLogger("ostraka.lab.client")
_AGAIN_S = 0.1  # between two looks, for a client whose update was rejected in this round


@dataclass(frozen=True)
class ClientStarted:
    """A client has loaded all it needs, and has the model of its first round."""

    client: str
    round: int


@dataclass(frozen=True)
class Trained:
    """A client has its update for this round."""

    client: str
    round: int
    loss: float | None
    seconds: float


@dataclass(frozen=True)
class ClientFailed:
    """A client is out of the run. The others go on without it."""

    client: str
    why: str


@dataclass
class Plot:
    """What the attackers of one process share. turn: held by the one that works out what to send.

    Each needs all known updates in memory, and with a large model twelve at a time do not fit.
    agreed: what attackers that are alike send (d,), and in which round.
    """

    turn: threading.Lock = field(default_factory=threading.Lock)
    agreed: tuple[int, Float32] | None = None


@dataclass(frozen=True)
class Fellows:
    """What the clients of one process share. turn: held by the client that trains."""

    folder: RunFolder
    address: str
    task: AnyTask
    turn: threading.Lock
    board: Board
    plot: Plot = field(default_factory=Plot)


def main() -> int:
    run, address, *numbers = sys.argv[1:]
    logs.setup(json=True, simulated=True)
    torch.set_num_threads(1)
    folder = RunFolder(Path(run))
    task = load_task(folder.load()[0])
    fellows = Fellows(folder, address, task, threading.Lock(), Board(folder.board))
    model = task.model()
    participants = [Participant(task, int(number), model) for number in numbers]
    threads = [threading.Thread(target=_run, args=(fellows, each)) for each in participants]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def _run(fellows: Fellows, participant: Participant) -> None:
    """Run one client. If it fails, it has dropped out, and the others go on."""
    name = client_name(participant.number)
    try:
        take_part(fellows, participant, name)
    except Exception as failed:  # noqa: BLE001 (a crash in training is a drop-out, and shown as one)
        fellows.board.leave(participant.number)
        trace = None if isinstance(failed, OstrakaError) else failed
        logs.event(_LOG, ClientFailed(name, str(failed)), logging.ERROR, error=trace)


def take_part(fellows: Fellows, participant: Participant, name: str) -> None:
    """Take part as this client until there is no round left."""
    records = Records(fellows.folder.rounds, writer=name)
    with LabClient(fellows, participant) as client:
        done = 0
        while not (model := client.fetch()).finished:
            if not done:
                logs.event(_LOG, ClientStarted(name, model.round))
            records.write(model)
            if model.round <= done:
                time.sleep(_AGAIN_S)
                continue
            try:
                trained = _train(fellows, participant, model)
                client.submit(trained.update, trained.metrics)
            except UpdateRejected as rejected:
                _LOG.warning(str(rejected))
            done = model.round
        records.write(model)


def _train(fellows: Fellows, participant: Participant, model: Model) -> training.Trained:
    with fellows.turn:
        begun = time.perf_counter()
        trained = participant.train(model.vector, model.round)
        seconds = round(time.perf_counter() - begun, 4)
    name = client_name(participant.number)
    logs.event(_LOG, Trained(name, model.round, trained.loss, seconds))
    return trained


class LabClient(ostraka.Client):
    """The product's client, of which the lab sees what goes out, and which may attack."""

    def __init__(self, fellows: Fellows, participant: Participant) -> None:
        name, federation = client_name(participant.number), fellows.folder.federation
        super().__init__(
            fellows.address,
            name=name,
            key=federation / "keys" / f"{name}.key",
            policy=federation / "policy.toml",
            unsafe_simulation=True,
            on_event=lambda event: logs.event(_LOG, event, logging.DEBUG),
        )
        self._fellows, self._participant = fellows, participant

    def _outgoing(self, joined: Joined, update: Float32) -> Encoded:
        """What an honest client sends, or in its place what an attacker likes, unchecked.

        Attackers get to know what others send, and not what those have trained.
        """
        fellows, participant, number = self._fellows, self._participant, joined.offer.number
        encoded = super()._outgoing(joined, update)
        own = encoded.widened()
        if participant.tells:
            fellows.board.tell(participant.number, number, own)
        crafted = self._crafted if participant.asks else participant.sends
        sent = crafted(own, number)
        return encoded if sent is own else joined.encode(sent)

    def _crafted(self, own: Float32, number: int) -> Float32:
        """What this attacker sends (d,), which has to know what others do."""
        participant, plot = self._participant, self._fellows.plot
        with plot.turn:
            if plot.agreed is not None and plot.agreed[0] == number:
                return plot.agreed[1]
            known = self._fellows.board.read(self._fellows.task.experiment.telling, number)
            sent = participant.sends(own, number, known)
            if participant.agrees:
                plot.agreed = number, sent
            return sent


if __name__ == "__main__":
    sys.exit(main())
