"""A process of clients that send as fast as they can: a thread for each of them.

python -m ostraka_lab.bench.service_clients FOLDER ADDRESS CLIENTS DIMENSION ROUNDS [CERTIFICATE]

They wait for each other before they send, so that what a round's uploads cost can be told from what
it costs to join it.
"""

import logging
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import ostraka
from ostraka import logs
from ostraka.arrays import Float32
from ostraka.cli.federation_folder import KEYS, POLICY
from ostraka.errors import FAILED
from ostraka_lab.bench.whole_round import repeated

_LOG = logging.getLogger("ostraka.lab.clients")


@dataclass(frozen=True)
class Sending:
    """All clients have joined this round, and begin to send."""

    round: int


@dataclass(frozen=True)
class ClientFailed:
    client: str


class Clients:
    """Clients that take part together."""

    def __init__(self, folder: Path, address: str, rounds: int, certificate: Path | None) -> None:
        self._folder = folder
        self._address = address
        self._rounds = rounds
        self._certificate = certificate
        self._joined = 0
        self.failed = False

    def run(self, updates: list[Float32]) -> None:
        """Take part in all rounds. updates: one (d,) per client, the same in every round."""
        together = threading.Barrier(len(updates), action=self._tell)
        threads = [
            threading.Thread(target=self._guarded, args=(f"client-{number}", update, together))
            for number, update in enumerate(updates, 1)
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

    def _tell(self) -> None:
        self._joined += 1
        logs.event(_LOG, Sending(self._joined))


def main(folder: str, address: str, clients: str, dimension: str, rounds: str, *tls: str) -> int:
    logs.setup(json=True, simulated=True)
    certificate = Path(tls[0]) if tls else None
    taking_part = Clients(Path(folder), address, int(rounds), certificate)
    taking_part.run(list(repeated(int(clients), int(dimension))))
    return FAILED if taking_part.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
