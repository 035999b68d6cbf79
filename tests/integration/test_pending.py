"""kill -9 at every point between a pending outcome and a published one, and what comes out.

Whoever is killed kills itself: a script around the real program ends the process, as kill -9 does,
just before or after one step. Then the real program is started again.
"""

import os
import shutil
from pathlib import Path

import pytest

from ostraka.client.memory import MemoryFile
from ostraka.crypto.sealing import Sealer
from ostraka.enclave.commands import Machine
from ostraka.enclave.storage.state import EnclaveState
from ostraka.encoding import decode, encode
from ostraka.messages import Certified, Receipt
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

SOAK = bool(os.environ.get("OSTRAKA_SOAK"))
CLIENTS = 3
DIMENSION = 50
ROUNDS = 2

# Ends the process at the n-th time that a function begins or has ended.
KILLER = """
import os, signal, sys
from importlib import import_module

def kill_at(module, name, when, nth=1):
    owner, _, attribute = name.rpartition(".")
    holder = getattr(import_module(module), owner) if owner else import_module(module)
    real, calls = getattr(holder, attribute), [0]
    def watched(*arguments, **named):
        calls[0] += 1
        if when == "before" and calls[0] == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **named)
        if when == "after" and calls[0] == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(holder, attribute, watched)

kill_at(*eval(sys.argv.pop(1)))
"""

ENCLAVE = (
    KILLER
    + """
from ostraka.enclave.__main__ import main
sys.exit(main())
"""
)

CLIENT = (
    KILLER
    + """
import numpy as np
import ostraka
address, name, root, rounds = sys.argv[1:]
with ostraka.Client(
    address, name=name, key=f"{root}/keys/{name}.key", policy=f"{root}/policy.toml",
    unsafe_simulation=True, timeout=300,
) as client:
    while not (model := client.fetch()).finished:
        rng = np.random.default_rng([int(name[-1]), model.round])
        outcome = client.submit(rng.normal(size=model.vector.size).astype("f4"))
        print("done", outcome.round, outcome.accepted, outcome.reason, flush=True)
"""
)
NEVER = ("os", "getcwd", "before", -1)

STATE, LEDGER = "ostraka.enclave.storage.state", "ostraka.enclave.storage.ledger"
CONFIRM = "ostraka.protocol.confirm"
BEFORE_PENDING = {
    "before anything is held": (STATE, "EnclaveState.hold", "before"),
    "after the model, before the outcome": (STATE, "EnclaveState._padded", "before"),
}
WHILE_PENDING = {
    "when it is held": (STATE, "EnclaveState.hold", "after"),
    "before the ballot": ("ostraka.protocol.enclave.enclave", "Enclave.ballot", "before"),
    "before the first vote counts": (CONFIRM, "Ballot.add", "before"),
    "after the first vote": (CONFIRM, "Ballot.add", "after"),
    "after the vote that is enough": (CONFIRM, "Ballot.add", "after", 2),
    "before the certificate": (CONFIRM, "Ballot.certificate", "before"),
    "before it is published": (STATE, "EnclaveState.publish", "before"),
    "before the ledger": (LEDGER, "Ledger.append", "before", 2),
}
PUBLISHED = {
    "after the ledger": (LEDGER, "Ledger.append", "after", 2),
    "before the pending one is deleted": (STATE, "SealedFile.discard", "before"),
    "after it is published": (STATE, "EnclaveState.publish", "after"),
}
SESSION = "ostraka.client.session"
CLIENT_POINTS = {
    "before the vote": (SESSION, "Session.confirm", "before"),
    "before the vote is written": ("ostraka.client.memory", "MemoryFile.change", "before", 3),
    "after the vote is written": ("ostraka.protocol.client", "Client.confirmation", "before"),
    "after the vote is shown": (SESSION, "Session.confirm", "after"),
    "before the receipt is followed": ("ostraka.protocol.client", "Submitted.finish", "before"),
}


def points(table: dict[str, tuple], *sample: str) -> pytest.MarkDecorator:
    """All points in the soak, and these in every run."""
    chosen = {name: each for name, each in table.items() if SOAK or name in sample}
    return pytest.mark.parametrize("point", chosen.values(), ids=chosen)


class Watched:
    """One federation on loopback."""

    def __init__(self, deployment) -> None:
        self.deployment = deployment

    @property
    def state(self) -> Path:
        return self.deployment.root / "state"

    def enclave(self, point: tuple = NEVER):
        return self.deployment.spawn(
            "enclave",
            *("-c", ENCLAVE, repr(point), "run", "--config", str(self.deployment.config)),
            *("--unsafe-simulation", "--log-json"),
        )

    def clients(self, point: tuple = NEVER) -> list:
        return [
            self.deployment.spawn(
                f"client-{number}",
                *("-c", CLIENT, repr(point), self.deployment.address, f"client-{number}"),
                *(str(self.deployment.root), str(ROUNDS)),
            )
            for number in range(1, CLIENTS + 1)
        ]

    def pending(self, tmp_path: Path) -> Receipt | None:
        """What the dead enclave's folder holds, read by an enclave of the same code."""
        copy = tmp_path / "copy"
        shutil.copytree(self.state, copy)
        platform = Machine(self.deployment.config, unsafe_simulation=True).platform
        with EnclaveState.open(copy, Sealer(platform.keys.key(), platform.code_id)) as state:
            return state.pending[0].receipt if state.pending else None

    def votes(self) -> set[bytes]:
        """The proposals of round 1 that clients have confirmed, by their own memory."""
        found = set()
        for number in range(1, CLIENTS + 1):
            key = self.deployment.key(f"client-{number}")
            memory = MemoryFile.beside(
                key, f"client-{number}", self.deployment.federation_id
            ).load()
            if memory is not None and memory.proposal is not None:
                found.add(encode(memory.proposal))
        return found

    def chain(self) -> list[Certified]:
        with dial(self.deployment.address) as channel:
            links = EnclaveStub(channel).GetChain(wire.ChainRequest(), timeout=60)
            return [decode(Certified, link.certified) for link in links if link.certified]


@pytest.fixture
def watched(deploy) -> Watched:
    return Watched(
        deploy(
            clients=CLIENTS,
            f=0,
            masking="none",
            dimension=DIMENSION,
            settings={"quorum": 3, "deadline_s": 600, "count": ROUNDS, "linger_s": 600},
        )
    )


def _proposal(published: Certified) -> bytes:
    assert published.certificate is not None
    return encode(published.certificate.proposal)


def _finish(watched: Watched, clients: list) -> list[Certified]:
    """Everybody comes to the end: two rounds, each published once, with everybody in it."""
    for each in clients:
        assert each.child.wait(300) == 0, each.lines
    chain = watched.chain()
    assert [each.receipt.number for each in chain] == [1, 2]
    assert all(each.receipt.participants == CLIENTS for each in chain)
    return chain


@pytest.mark.slow
@points(WHILE_PENDING, "when it is held", "after the vote that is enough")
def test_a_pending_outcome_is_published_as_it_was(watched, tmp_path, point):
    enclave, clients = watched.enclave(point), watched.clients()
    assert enclave.child.wait(300) == -9
    pending, votes = watched.pending(tmp_path), watched.votes()
    assert pending is not None
    watched.enclave()
    chain = _finish(watched, clients)
    assert encode(chain[0].receipt) == encode(pending)  # bit for bit
    assert votes <= {_proposal(chain[0])}


@pytest.mark.slow
@points(BEFORE_PENDING, "after the model, before the outcome")
def test_before_it_is_pending_nobody_was_asked(watched, tmp_path, point):
    enclave, clients = watched.enclave(point), watched.clients()
    assert enclave.child.wait(300) == -9
    assert watched.pending(tmp_path) is None
    assert watched.votes() == set()
    watched.enclave()
    _finish(watched, clients)


@pytest.mark.slow
@points(PUBLISHED, "after the ledger")
def test_a_published_outcome_is_not_published_again(watched, tmp_path, point):
    enclave, clients = watched.enclave(point), watched.clients()
    assert enclave.child.wait(300) == -9
    votes = watched.votes()
    assert watched.pending(tmp_path) is None
    watched.enclave()
    chain = _finish(watched, clients)
    assert votes == {_proposal(chain[0])}


@pytest.mark.slow
@points(CLIENT_POINTS, "after the vote is written")
def test_clients_that_die_vote_the_same_again(watched, point):
    watched.enclave()
    for each in watched.clients(point):
        assert each.child.wait(300) == -9
    votes = watched.votes()
    chain = _finish(watched, watched.clients())
    assert votes <= {_proposal(chain[0]), *_second(chain)}


def _second(chain: list[Certified]) -> set[bytes]:
    return {_proposal(each) for each in chain}
