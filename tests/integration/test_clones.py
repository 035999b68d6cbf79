"""A host that copies the enclave's state, runs several of it, and decides who talks to which.

It is the strongest thing that a host can do: all copies have the same key and the same past. Before
outcomes were confirmed, two copies were enough to read a client's update: everybody uploads to one,
is cut off before its receipt, and all but one upload to the other. The difference of the two
aggregates is that client's update.
"""

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostraka
from ostraka.encoding import decode
from ostraka.errors import OstrakaError
from ostraka.messages import Certified
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

CLIENTS = 4
DIMENSION = 40
BUFFER = 2**16


class Router:
    """Carries one client's connections to the copy that the host chooses, and cuts them at will."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._target: int | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def to(self, target: int | None) -> None:
        """From now on to this port; None to nowhere. Connections to another one are cut."""
        with self._lock:
            self._target = target
            cut, self._open = self._open, []
        for each in cut:
            _close(each)

    def close(self) -> None:
        self.to(None)
        _close(self._listening)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                target = self._target
                try:
                    if target is None:
                        raise ConnectionRefusedError
                    far = socket.create_connection(("127.0.0.1", target))
                except OSError:
                    _close(near)
                    continue
                self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(BUFFER):
            sink.sendall(data)
    _close(source)
    _close(sink)


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@dataclass
class Victims:
    """The clients, each behind a router of its own."""

    deployment: Any
    routers: dict[str, Router] = field(default_factory=dict)
    closed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        for number in range(1, CLIENTS + 1):
            name = f"client-{number}"
            self.routers[name] = Router()
            threading.Thread(target=self._submit, args=(name, number), daemon=True).start()

    def _submit(self, name: str, number: int) -> None:
        client = ostraka.Client(
            f"127.0.0.1:{self.routers[name].port}",
            name=name,
            key=self.deployment.key(name),
            policy=self.deployment.policy,
            unsafe_simulation=True,
            on_event=lambda event: None,
            timeout=300,
        )
        with suppress(OstrakaError):
            client.fetch()
            client.submit(update(number))
        # As a client does that goes on with the next round, or is started again.
        while not self.closed.wait(0.2):
            with suppress(OstrakaError):
                client.fetch()

    def route(self, copies: dict[str, "Copy | None"]) -> None:
        for name, copy in copies.items():
            self.routers[name].to(copy.deployment.port if copy else None)

    def close(self) -> None:
        self.closed.set()
        for router in self.routers.values():
            router.close()


@dataclass
class Copy:
    """One of several enclaves that were started from the same state."""

    deployment: Any
    process: Any
    seen: int = 0

    def wait_for(self, event: str) -> None:
        self.seen = self.process.wait_for(f'"{event}"', after=self.seen)

    def released(self) -> list[Certified]:
        """What any stranger can fetch."""
        with dial(self.deployment.address) as channel:
            links = EnclaveStub(channel).GetChain(wire.ChainRequest(), timeout=60)
            return [decode(Certified, link.certified) for link in links if link.certified]


def update(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=DIMENSION).astype(np.float32)


@pytest.fixture
def copies(deploy, tmp_path):
    """Makes several enclaves from one sealed state, as a host can that copies a folder."""

    def make(count: int) -> list[Copy]:
        first = deploy(
            clients=CLIENTS,
            f=0,
            masking="none",
            dimension=DIMENSION,
            settings={"quorum": 3, "deadline_s": 600, "grace_s": 5, "count": 5},
        )
        founding = first.enclave()
        founding.wait_for("RoundOpened")
        founding.kill()
        others = []
        for number in range(count):
            root = tmp_path / f"copy-{number}"
            shutil.copytree(first.root, root)
            other = replace(first, root=root, port=_free_port(), processes=first.processes)
            _listen(other, root)
            others.append(Copy(other, other.enclave()))
        return others

    return make


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listen(deployment, root: Path) -> None:
    """Where it listens is the operator's own, and not signed."""
    lines = deployment.config.read_text().splitlines()
    lines = [
        f'listen = "{deployment.address}"' if line.startswith("listen = ") else line
        for line in lines
    ]
    deployment.config.write_text("\n".join(lines) + "\n")


@pytest.fixture
def victims(copies) -> Iterator:
    made: list[Victims] = []

    def start(count: int) -> tuple[list[Copy], Victims]:
        enclaves = copies(count)
        everyone = Victims(enclaves[0].deployment)
        made.append(everyone)
        everyone.start()
        return enclaves, everyone

    yield start
    for each in made:
        each.close()


def everybody(copy: Copy | None, *, but: str = "") -> dict[str, Copy | None]:
    names = (f"client-{number}" for number in range(1, CLIENTS + 1))
    return {name: None if name == but else copy for name in names}


def all_released(enclaves: list[Copy], number: int = 1) -> set[bytes]:
    """The models of this number that left any of them."""
    found = (each.receipt for copy in enclaves for each in copy.released())
    return {receipt.model for receipt in found if receipt.number == number}


@pytest.mark.slow
def test_who_is_cut_off_before_the_vote_takes_part_in_one_outcome(victims):
    """All but one upload to one copy; before anybody confirms, all but another go to another."""
    (first, second), everyone = victims(2)
    _lead_to_a_proposal(first, everyone, but="client-2")
    assert all_released([first]) == set()  # Nothing of its aggregate has left.
    everyone.route(everybody(second, but="client-1"))
    second.wait_for("RoundPublished")
    assert len(all_released([first, second])) == 1
    # The first copy learns that it is not alone, and still nothing of it leaves.
    everyone.route(everybody(first))
    first.wait_for("CopyProved")
    assert len(all_released([first, second])) == 1


def _lead_to_a_proposal(copy: Copy, everyone: Victims, *, but: str) -> None:
    """All but one upload, and are cut off while the copy still waits for that one. So nobody hears
    what it proposes, however slow this test is."""
    everyone.route(everybody(copy, but=but))
    for _ in range(CLIENTS - 1):
        copy.wait_for("UploadCompleted")
    everyone.route(everybody(None))
    copy.wait_for("RoundClosed")


@pytest.mark.slow
def test_who_has_confirmed_one_copy_gives_the_other_nothing(victims):
    """Everybody uploads to one copy and confirms; cut off before the receipt, all go to another."""
    (first, second), everyone = victims(2)
    everyone.route(everybody(first))
    first.wait_for("RoundPublished")
    everyone.route(everybody(second, but="client-1"))
    second.wait_for("RolledBack")
    assert all_released([second]) == set()
    assert len(all_released([first])) == 1


@pytest.mark.slow
def test_five_copies_release_one_outcome(victims):
    """Each copy gets all clients but another one, in turn, and each proposes; one is released."""
    enclaves, everyone = victims(5)
    for number, copy in enumerate(enclaves[:4], 1):
        _lead_to_a_proposal(copy, everyone, but=f"client-{number}")
    everyone.route(everybody(enclaves[4]))
    enclaves[4].wait_for("RoundPublished")
    for copy in enclaves[:4]:
        everyone.route(everybody(copy))
        copy.wait_for("CopyProved")
    assert len(all_released(enclaves)) == 1
