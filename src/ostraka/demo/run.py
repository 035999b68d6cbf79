"""One enclave, its workers and its clients, each a process of its own, from start to end."""

import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from ostraka.demo.children import Child, Children, Logged
from ostraka.demo.deployment import Deployment, found
from ostraka.demo.progress import Progress
from ostraka.demo.records import Books, client_name, recorder
from ostraka.demo.review import DemoRound, Review
from ostraka.demo.settings import WORKERS, Demo, resolve
from ostraka.errors import LeakyMasking
from ostraka.services.folder import Plan

Tell: TypeAlias = Callable[[str, int, int], None]
"""tell(what, done, of): what is going on, and how many of the rounds are over."""

_POLL_S = 0.05
_SILENCE_S = 300.0  # of the enclave, after which nothing more is to be expected
_LEAVING_S = 30.0  # for clients to end after the last round


def run(demo: Demo, *, keep: Path | None = None, tell: Tell | None = None) -> Generator[DemoRound]:
    """The rounds, one by one, as they are published. All processes end with the generator.

    keep: a new folder, for everything that the processes write; otherwise that is deleted. Raises
    ConfigError before anything is started, and ServiceError or RoundFailed when something fails.
    """
    demo, _ = resolve(demo)
    if demo.masking == "gaussian" and demo.workers:
        warnings.warn(LeakyMasking(), stacklevel=2)
    with _root(keep) as root:
        address = found(root, _plan(demo), **_settings(demo))
        with Children(root / "logs") as children:
            deployment = Deployment(root, address, children)
            yield from _Run(demo, deployment, tell or _ignore).rounds()


@contextmanager
def _root(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="ostraka-", ignore_cleanup_errors=True) as directory:
        yield Path(directory) / "demo"


def _plan(demo: Demo) -> Plan:
    return Plan(
        clients=demo.clients,
        workers=WORKERS,
        f=demo.byzantine,
        masking=demo.masking,
        dimension=demo.dim,
    )


def _settings(demo: Demo) -> dict[str, str | int]:
    """A round waits for everybody: on a busy machine, too, all are to be seen in it."""
    return {"count": demo.rounds, "quorum": demo.clients, "distances": demo.distances}


class _Run:
    """The enclave's log tells where it is, and the recorder's what was published."""

    def __init__(self, demo: Demo, deployment: Deployment, tell: Tell) -> None:
        self._demo = demo
        self._deployment = deployment
        self._tell = tell
        self._names = {number: client_name(number) for number in range(1, demo.clients + 1)}
        self._progress = Progress(tuple(self._names.values()), demo.workers, demo.rounds)
        self._books = Books(deployment.root)
        self._listening: list[tuple[Child, Callable[[Logged], None]]] = []

    def rounds(self) -> Iterator[DemoRound]:
        self._start()
        review = Review(self._demo)
        for number in range(1, self._demo.rounds + 1):
            self._until(partial(self._books.has, number))
            workers = self._progress.measured_by.get(number, ())
            yield review.judge(self._books.published(number, workers))
        self._deployment.children.wait(_LEAVING_S)

    def _start(self) -> None:
        """Clients last: with all workers there, the first round has nobody to wait for."""
        demo, deployment = self._demo, self._deployment
        self._listening = [(deployment.start_enclave(), self._progress.note)]
        for number in range(1, demo.workers + 1):
            deployment.start_worker(number)
        self._until(lambda: self._progress.ready)
        clients = {number: self._start_client(number) for number in self._names}
        # The recorder is heard first: what it has published, the enclave has logged before.
        self._listening.insert(0, (clients[recorder(demo)], self._books.note))

    def _start_client(self, number: int) -> Child:
        deployment = self._deployment
        return deployment.start_client(
            self._names[number],
            "ostraka.demo.client",
            self._demo.to_json(),
            str(deployment.root),
            deployment.address,
            str(number),
        )

    def _until(self, done: Callable[[], bool]) -> None:
        """Listen until that is so. Raises ServiceError or RoundFailed if it will never be."""
        heard = time.monotonic()
        while not done():
            self._deployment.children.require_well()
            if self._listen():
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise self._listening[-1][0].failed(f"says nothing for {_SILENCE_S:.0f} s")
            else:
                time.sleep(_POLL_S)

    def _listen(self) -> bool:
        """Whether there was anything to hear."""
        said = False
        for child, note in self._listening:
            for event in child.events():
                note(event)
                said = True
        self._tell(str(self._progress), self._progress.published, self._demo.rounds)
        return said


def _ignore(what: str, done: int, of: int) -> None:
    pass
