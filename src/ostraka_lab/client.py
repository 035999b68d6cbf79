"""A process of clients: a thread for each of them, which train one after the other.

python -m ostraka_lab.client RUN ADDRESS NUMBER [NUMBER ...]
"""

import logging
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import ostraka
from ostraka import logs
from ostraka.arrays import Float32
from ostraka.client import api
from ostraka.client.results import Model, Update
from ostraka.config import Manifest
from ostraka.errors import OstrakaError, UpdateRejected
from ostraka_lab.experiment import Participant, Task
from ostraka_lab.folder import Board, MomentumFile, Records, RunFolder, client_name

_LOG = logging.getLogger("ostraka.lab.client")
_AGAIN_S = 0.1  # between two looks, for a client whose update was rejected in this round


@dataclass(frozen=True)
class Trained:
    """A client has its update for this round."""

    client: str
    round: int
    loss: float
    seconds: float


@dataclass(frozen=True)
class ClientFailed:
    """A client is out of the run. The others go on without it."""

    client: str
    why: str


@dataclass(frozen=True)
class Fellows:
    """What the clients of one process share. turn: held by the client that trains."""

    folder: RunFolder
    address: str
    task: Task
    turn: threading.Lock
    board: Board


def main() -> int:
    run, address, *numbers = sys.argv[1:]
    logs.setup(json=True, simulated=True)
    torch.set_num_threads(1)
    folder = RunFolder(Path(run))
    task = Task.load(folder.load()[0])
    fellows = Fellows(folder, address, task, threading.Lock(), Board(folder.board))
    model = task.model()
    participants = [Participant(task, int(number), model) for number in numbers]
    if any(each.attack for each in participants):
        _drop_own_checks()
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
    keys = fellows.folder.federation / "keys"
    records = Records(fellows.folder.rounds, writer=name)
    with ostraka.Client(
        fellows.address,
        name=name,
        key=keys / f"{name}.key",
        policy=fellows.folder.federation / "policy.toml",
        unsafe_simulation=True,
        on_event=lambda event: logs.event(_LOG, event, logging.DEBUG),
    ) as client:
        done = 0
        while not (model := client.fetch()).finished:
            records.write(model)
            if model.round <= done:
                time.sleep(_AGAIN_S)
                continue
            try:
                client.submit(_update(fellows, participant, model))
            except UpdateRejected as rejected:
                _LOG.warning(str(rejected))
            done = model.round
        records.write(model)


def _update(fellows: Fellows, participant: Participant, model: Model) -> Float32:
    momentum = MomentumFile(fellows.folder.root / "momentum", participant)
    with fellows.turn:
        begun = time.perf_counter()
        momentum.restore(model.round)
        trained = participant.train(model.vector, model.round)
        momentum.save(model.round)
        seconds = round(time.perf_counter() - begun, 4)
    name = client_name(participant.number)
    logs.event(_LOG, Trained(name, model.round, trained.loss, seconds))
    if participant.tells:
        fellows.board.tell(participant.number, model.round, trained.update)
    known = None
    if participant.asks:
        known = fellows.board.read(fellows.task.experiment.telling, model.round)
    return participant.sends(trained.update, model.round, known)


def _drop_own_checks() -> None:
    """Take the library's checks out of this process, as an attacker can in its own."""
    checked = vars(api)["flatten"]

    def unchecked(update: Update, manifest: Manifest) -> Float32:
        vector = np.asarray(update, np.float32)
        kept: Float32 = checked(update, manifest) if np.isfinite(vector).all() else vector
        return kept

    vars(api)["flatten"] = unchecked


if __name__ == "__main__":
    sys.exit(main())
