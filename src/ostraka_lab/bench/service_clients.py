"""A process of clients that send as fast as they can: a thread for each of them.

python -m ostraka_lab.bench.service_clients FOLDER ADDRESS FIRST LAST DIMENSION ROUNDS [CERTIFICATE]

All clients of all processes wait for each other before they send, so that what a round's uploads
cost can be told from what it costs to join it: a process logs that its clients have joined, and
waits for a file.
"""

import logging
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import ostraka
from ostraka import logs
from ostraka.arrays import Float32
from ostraka.cli.federation_folder import KEYS, POLICY
from ostraka.errors import FAILED
from ostraka_lab.bench.whole_round import repeated

_LOG = logging.getLogger("ostraka.lab.clients")
_POLL_S = 0.02  # what looking costs is counted among what clients cost


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
            threading.Thread(target=self._guarded, args=(f"client-{number}", update, together))
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
            for _ in range(self._rounds):
                client.fetch()
                together.wait()
                client.submit(update)

    def _wait(self) -> None:
        self._joined += 1
        logs.event(_LOG, Joined(self._joined))
        while not gate(self._folder, self._joined).exists():
            time.sleep(_POLL_S)


def main(folder: str, address: str, *numbers: str) -> int:
    first, last, dimension, rounds = map(int, numbers[:4])
    logs.setup(json=True, simulated=True)
    certificate = Path(numbers[4]) if numbers[4:] else None
    taking_part = Clients(Path(folder), address, rounds, certificate)
    clients = range(first, last + 1)
    taking_part.run(dict(zip(clients, repeated(len(clients), dimension), strict=True)))
    return FAILED if taking_part.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
