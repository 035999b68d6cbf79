"""A process of clients that send as fast as they can: a thread for each of them.

python -m ostraka_lab.bench.service_clients
    FOLDER ADDRESS FIRST LAST DIMENSION ROUNDS ATTACKERS [CERTIFICATE]

All clients of all processes wait for each other before they send, so that what a round's uploads
cost can be told from what it costs to join it: a process logs that its clients have joined, and
waits for a file. The first client of all keeps what came out: the last model, and who was selected.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import ostraka
from ostraka import logs
from ostraka.arrays import Float32
from ostraka.cli.federation_folder import KEYS, POLICY, client_name
from ostraka.errors import FAILED

_LOG = logging.getLogger("ostraka.lab.clients")
_POLL_S = 0.02  # what looking costs is counted among what clients cost
_OWN = 0.5  # of an update that no other client has
_KEEPER = client_name(1)
_MODEL, _SELECTED = "model.npy", "selected.json"


@dataclass(frozen=True)
class Joined:
    """All clients of this process have joined this round, and wait to send."""

    round: int


@dataclass(frozen=True)
class ClientFailed:
    client: str


def gate(folder: Path, number: int) -> Path:
    """The file that lets clients send in their round of this number. folder: the federation's."""
    return folder.parent / f"go-{number}"


def update(number: int, dimension: int, attackers: int) -> Float32:
    """A client's update (d,), a function of its number: a direction that all share, and noise.

    The first `attackers` clients send the opposite, so that any rule on any sketch leaves out the
    same ones.
    """
    shared, own = (
        np.random.default_rng(seed).standard_normal(dimension, dtype=np.float32)
        for seed in (0, number)
    )
    own *= np.float32(_OWN)
    return own - shared if number <= attackers else own + shared


def outcome(folder: Path) -> tuple[Float32, list[list[str]]]:
    """The model after the last round, and who was selected in each. folder: the federation's."""
    model: Float32 = np.load(folder.parent / _MODEL)
    return model, json.loads((folder.parent / _SELECTED).read_text())


class Clients:
    """Clients that take part together."""

    def __init__(self, folder: Path, address: str, rounds: int, certificate: Path | None) -> None:
        self._folder = folder
        self._address = address
        self._rounds = rounds
        self._certificate = certificate
        self._joined = 0
        self.failed = False

    def run(self, updates: Mapping[int, Float32]) -> None:
        """Take part in all rounds. updates: (d,) by a client's number, the same in every round."""
        together = threading.Barrier(len(updates), action=self._wait)
        threads = [
            threading.Thread(target=self._guarded, args=(client_name(number), update, together))
            for number, update in updates.items()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, name: str, update: Float32, together: threading.Barrier) -> None:
        """Take part. If one fails, all do: others would wait for it."""
        try:
            self._take_part(name, update, together)
        except threading.BrokenBarrierError:
            return  # Another one has failed, and has told why.
        except Exception as failed:  # noqa: BLE001 (shown, and the process fails)
            logs.event(_LOG, ClientFailed(name), logging.ERROR, error=failed)
            self.failed = True
            together.abort()

    def _take_part(self, name: str, update: Float32, together: threading.Barrier) -> None:
        with ostraka.Client(
            self._address,
            name=name,
            key=self._folder / KEYS / f"{name}.key",
            policy=self._folder / POLICY,
            tls_ca=self._certificate,
            unsafe_simulation=True,
            on_event=lambda event: None,
        ) as client:
            receipts = []
            for _ in range(self._rounds):
                client.fetch()
                together.wait()
                receipts.append(client.submit(update).receipt)
            if name == _KEEPER:
                selected = [receipt.selected for receipt in receipts if receipt is not None]
                (self._folder.parent / _SELECTED).write_text(json.dumps(selected))
                np.save(self._folder.parent / _MODEL, client.fetch().vector)

    def _wait(self) -> None:
        self._joined += 1
        logs.event(_LOG, Joined(self._joined))
        while not gate(self._folder, self._joined).exists():
            time.sleep(_POLL_S)


def main(folder: str, address: str, *numbers: str) -> int:
    first, last, dimension, rounds, attackers = map(int, numbers[:5])
    logs.setup(json=True, simulated=True)
    certificate = Path(numbers[5]) if numbers[5:] else None
    taking_part = Clients(Path(folder), address, rounds, certificate)
    taking_part.run(
        {number: update(number, dimension, attackers) for number in range(first, last + 1)}
    )
    return FAILED if taking_part.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
