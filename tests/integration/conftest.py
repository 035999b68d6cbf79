"""Real processes on loopback: one enclave, its workers and its clients.

`deploy(...)` gives a Deployment in a folder of its own. Everything that it starts, it ends.

`stage(...)` gives a Stage: a Deployment of which only the enclave is a process by default. Its
clients and workers are threads of the test, with the same code, which can be held at any step; and
it knows what has to come out in the end.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ostraka
from ostraka import federation_file
from ostraka.cli import federation_folder
from ostraka.cli.federation_folder import Plan
from ostraka.client import connection, upload
from ostraka.client.memory import MemoryFile
from ostraka.client.results import Model, Outcome
from ostraka.core import rules
from ostraka.core.gram import NumpyKernel, Sum, Values
from ostraka.encoding import decode
from ostraka.files import read_identity
from ostraka.messages import Certified, Charter, Receipt, genesis
from ostraka.protocol.client import Client as Role
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import Backoff, dial
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub
from ostraka.worker import EnclavePin, Staff, Verifier, WorkerService

KRUM = rules.parse("multi-krum")  # which tells by the selection who was in a round
PATIENCE_S = 300.0  # after which a test that waits has failed
QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE"}

CLIENT = """
import sys
import numpy as np
import ostraka
address, name, root, rounds, update = sys.argv[1:6]
print("up", flush=True)
with ostraka.Client(
    address, name=name, key=f"{root}/keys/{name}.key", policy=f"{root}/policy.toml",
    unsafe_simulation=True, timeout=float(sys.argv[6]),
) as client:
    for _ in range(int(rounds)):
        model = client.fetch()
        print("fetched", model.round, flush=True)
        outcome = client.submit(np.load(update))
        print("done", outcome.round, outcome.accepted, outcome.reason, flush=True)
"""

# A worker that adds 1 to one entry of every matrix that it computes.
LIAR = """
import sys
from pathlib import Path
from ostraka.core.field import P
from ostraka.core.gram import NumpyKernel
from ostraka.files import read_identity
from ostraka.worker import EnclavePin, Staff, Verifier, WorkerService

class Liar(NumpyKernel):
    def begin(self, rows, values):
        self.running = super().begin(rows, values)
        self.add = self.running.add
        return self

    def total(self):
        total = self.running.total()
        total[0, 1] = (int(total[0, 1]) + 1) % P
        return total

address, name, key = sys.argv[1], sys.argv[2], Path(sys.argv[3])
policy = Verifier.of(key.parent.parent / "policy.toml", unsafe_simulation=True)
pin = EnclavePin.chosen(key, receipt_key=None, verifier=policy)
WorkerService(address, Staff(name, read_identity(key), Liar(), pin)).run()
"""


def free_port() -> int:
    """A port that no connection gets by itself: a service that was stopped finds it free again."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class Process:
    """A child process whose lines are read as they come."""

    name: str
    child: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            with self.arrived:
                self.lines.append(line.rstrip())
                self.arrived.notify_all()
        with self.arrived:
            self.arrived.notify_all()

    def wait_for(
        self,
        wanted: str | Callable[[str], bool],
        *,
        after: int = 0,
        seconds: float = PATIENCE_S,
    ) -> int:
        """Until a line has this in it. Gives the place behind it."""
        matches = wanted if callable(wanted) else lambda line: wanted in line
        until = time.monotonic() + seconds
        place = after
        with self.arrived:
            while True:
                while place < len(self.lines):
                    place += 1
                    if matches(self.lines[place - 1]):
                        return place
                left = until - time.monotonic()
                ended = self.child.poll() is not None and not self._reader.is_alive()
                if left <= 0 or ended:
                    tail = "\n".join(self.lines[-30:])
                    raise AssertionError(f"{self.name} never said {wanted!r}:\n{tail}")
                self.arrived.wait(min(left, 0.5))

    def kill(self) -> None:
        """As kill -9 does it."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self) -> int:
        """As an operator does it."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        return self._wait()

    def _wait(self) -> int:
        code = self.child.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert self.child.stdout is not None
        self.child.stdout.close()
        return code

    def wait_until_idle(self) -> None:
        """Until it has used no processor time for a while: it waits for somebody."""
        before = -1.0
        while (now := self.cpu_s) != before:
            before = now
            time.sleep(0.3)

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def rss_mib(self) -> float:
        """The most memory that was resident at any time."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


@dataclass
class Deployment:
    """A federation in a folder, and the processes of it that run."""

    root: Path
    plan: Plan
    port: int = field(default_factory=free_port)
    processes: list[Process] = field(default_factory=list)
    shard_ports: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        shards = self.plan.shards if self.plan.shards > 1 else 0
        self.shard_ports = [free_port() for _ in range(shards)]

    @property
    def config(self) -> Path:
        return self.root / "federation.toml"

    @property
    def policy(self) -> Path:
        return self.root / "policy.toml"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def addresses(self) -> list[str]:
        """Of all that workers serve: the enclave, and its shards."""
        return [self.address, *(f"127.0.0.1:{port}" for port in self.shard_ports)]

    def shard_folder(self, number: int) -> Path:
        return self.root / f"shard-{number}"

    @property
    def federation_id(self) -> bytes:
        charter = federation_file.load_charter(federation_file.charter_path(self.config))
        return charter.federation.id

    def key(self, name: str) -> Path:
        return self.root / "keys" / f"{name}.key"

    def set(self, **settings: Any) -> None:
        """Change lines of the federation file, and sign it anew."""
        text = self.config.read_text()
        for name, value in settings.items():
            line = f"{name} = {json.dumps(value)}"
            text, found = re.subn(rf"(?m)^(# )?{name} = [^#\n]*", f"{line}  ", text, count=1)
            assert found, name
        self.config.write_text(text)
        self.sign()

    def sign(self) -> None:
        authority = read_identity(self.key("authority"))
        charter = federation_file.sign(federation_file.load(self.config), authority)
        federation_file.write_charter(federation_file.charter_path(self.config), charter)
        for number in range(len(self.shard_ports)):
            self.copy_to_shard(number)

    def add_shard(self) -> None:
        """The folder of one more, as that of the last one was before it was started."""
        number = len(self.shard_ports)
        self.shard_ports.append(free_port())
        beside = self.shard_folder(number - 1)
        leave = shutil.ignore_patterns("state")
        shutil.copytree(beside, self.shard_folder(number), ignore=leave)

    def copy_to_shard(self, number: int) -> None:
        """What an operator copies to another machine after a change."""
        listen = f'listen = "{self.addresses[1 + number]}"'
        text = re.sub(r'(?m)^listen = "[^"]*"', listen, self.config.read_text())
        folder = self.shard_folder(number)
        (folder / self.config.name).write_text(text)
        charter = federation_file.charter_path(self.config)
        (folder / charter.name).write_bytes(charter.read_bytes())

    def spawn(self, name: str, *command: str, **environment: str) -> Process:
        child = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.root,
            env={**os.environ, **QUIET, "PYTHONUNBUFFERED": "1", **environment},
        )
        process = Process(name, child)
        self.processes.append(process)
        return process

    def enclave(self, *, wait: bool = True, **environment: str) -> Process:
        process = self.spawn(
            "enclave",
            *("-m", "ostraka.enclave", "run", "--config", str(self.config)),
            *("--unsafe-simulation", "--log-json"),
            **environment,
        )
        if wait:
            process.wait_for("ServiceStarted")
        return process

    def shard(self, number: int, *, wait: bool = True, **environment: str) -> Process:
        """A shard, in a folder of its own as on a machine of its own."""
        process = self.spawn(
            f"shard-{number}",
            *("-m", "ostraka.enclave", "shard", "--lead", self.address, "--number", str(number)),
            *("--config", str(self.shard_folder(number) / self.config.name)),
            *("--unsafe-simulation", "--log-json"),
            **environment,
        )
        if wait:
            process.wait_for("LeadJoined")
        return process

    def worker(self, number: int, *kernel: str) -> Process:
        """A worker in a process of its own. kernel: options that choose what it computes with."""
        name = f"worker-{number}"
        enclaves = [word for each in self.addresses for word in ("--enclave", each)]
        return self.spawn(
            name,
            *("-m", "ostraka", "worker", "run", *enclaves, "--name", name),
            *("--key", str(self.key(name)), "--log-json", *(kernel or ("--device", "cpu"))),
            *("--policy", str(self.root / "policy.toml"), "--unsafe-simulation"),
        )

    def lying_worker(self, number: int) -> Process:
        name = f"worker-{number}"
        return self.spawn(name, "-c", LIAR, self.address, name, str(self.key(name)))

    def workers(self) -> list[Process]:
        return [self.worker(number) for number in range(1, self.plan.workers + 1)]

    def client(
        self, number: int, update: np.ndarray, *, rounds: int = 1, timeout: float = PATIENCE_S
    ) -> Process:
        """A client in a process of its own, which sends the same update in every round."""
        name = f"client-{number}"
        path = self.root / f"{name}.npy"
        np.save(path, update)
        arguments = (self.address, name, str(self.root), str(rounds), str(path), str(timeout))
        return self.spawn(name, "-c", CLIENT, *arguments)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()


@contextlib.contextmanager
def deploying(folders: Path) -> Iterator[Callable[..., Deployment]]:
    deployments: list[Deployment] = []

    def make(*, settings: dict[str, Any] | None = None, **plan: Any) -> Deployment:
        deployment = Deployment(folders / f"federation-{len(deployments)}", Plan(**plan))
        federation_folder.create(deployment.root, deployment.plan, now=int(time.time()) - 60)
        deployments.append(deployment)
        deployment.set(listen=deployment.address, **(settings or {}))
        return deployment

    yield make
    for deployment in deployments:
        deployment.stop()


@pytest.fixture
def deploy(tmp_path) -> Iterator[Callable[..., Deployment]]:
    with deploying(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def deploy_once(tmp_path_factory) -> Iterator[Callable[..., Deployment]]:
    """For a federation that many tests share."""
    with deploying(tmp_path_factory.mktemp("shared")) as make:
        yield make


def events(process: Process, name: str) -> list[dict[str, Any]]:
    """The events of this name that a service has logged."""
    parsed = (json.loads(line) for line in process.lines if line.startswith("{"))
    return [line for line in parsed if line.get("event") == name]


@pytest.fixture
def logged() -> Callable[[Process, str], list[dict[str, Any]]]:
    return events


class Gate:
    """Holds whoever comes to it until it is opened, and tells when somebody has come."""

    def __init__(self) -> None:
        self._reached, self._open = threading.Event(), threading.Event()

    def hold(self) -> None:
        self._reached.set()
        assert self._open.wait(PATIENCE_S)

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), "nobody came"

    def open(self) -> None:
        self._open.set()


class HeldKernel:
    """A worker's kernel that waits before some of the blocks that it adds, counted from 1."""

    def __init__(self, gates: dict[int, Gate]) -> None:
        self._gates = gates
        self._blocks = 0

    def begin(self, rows: int, values: Values) -> Sum:
        return HeldSum(self, NumpyKernel().begin(rows, values))

    def hold(self) -> None:
        self._blocks += 1
        if self._blocks in self._gates:
            self._gates[self._blocks].hold()


@dataclass(frozen=True)
class HeldSum:
    kernel: HeldKernel
    running: Sum

    def add(self, block: Any) -> None:
        self.kernel.hold()
        self.running.add(block)

    def total(self) -> Any:
        return self.running.total()


class ClientThread(threading.Thread):
    """A client that takes part in every round, and fetches the model after the last.

    updates: one for each round. gates: ("fetched", 1) is between the model and the upload of round
    1, and ("half", 1) in the middle of that upload.
    """

    def __init__(self, deployment: Deployment, name: str, updates: list[np.ndarray]) -> None:
        super().__init__(name=name, daemon=True)
        self.gates: dict[tuple[str, int], Gate] = {}
        self.outcomes: dict[int, Outcome] = {}
        self._round = 0
        self._deployment = deployment
        self._updates = updates
        self._final: Model | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._take_part()
        except BaseException as failure:  # noqa: BLE001 (whatever it is, `result` shows it)
            self._failure = failure

    def result(self) -> Model:
        """The model after the last round."""
        self.join(PATIENCE_S)
        if self._failure is not None:
            raise self._failure
        assert self._final is not None, f"{self.name} hangs after {list(self.outcomes)}"
        return self._final

    def come_to(self, place: str) -> None:
        if (place, self._round) in self.gates:
            self.gates[place, self._round].hold()

    def _take_part(self) -> None:
        with ostraka.Client(
            self._deployment.address,
            name=self.name,
            key=self._deployment.key(self.name),
            policy=self._deployment.policy,
            unsafe_simulation=True,
            timeout=PATIENCE_S,
        ) as client:
            while (model := client.fetch()).round <= len(self._updates):
                self._round = model.round
                self.come_to("fetched")
                self.outcomes[model.round] = client.submit(self._updates[model.round - 1])
            self._final = model


def multi_krum(rows: np.ndarray, f: int) -> tuple[list[int], np.ndarray]:
    """Rows kept and their mean in float64, from the paper: clip, score, keep n - f, average."""
    rows = rows.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    limit = np.exp2(np.ceil(np.log2(4 * np.median(norms))))
    rows *= np.minimum(1, limit / norms)[:, None]
    n = len(rows)
    squares = np.array([[np.square(a - b).sum() for b in rows] for a in rows])
    scores = [np.sort(np.delete(squares[i], i))[: n - f - 2].sum() for i in range(n)]
    kept = sorted(np.argsort(scores, kind="stable")[: n - f].tolist())
    return kept, rows[kept].mean(axis=0)


@dataclass
class Stage:
    """A federation on which things go wrong, and what must be true at the end nevertheless.

    One round more than is played stays open, so that everybody can fetch the result of the last.
    updates: (rounds, n, d), other ones in every round; the last f of a round are attackers'.
    """

    deployment: Deployment
    updates: np.ndarray
    enclaves: list[Process] = field(default_factory=list)  # one after the other
    clients: dict[str, ClientThread] = field(default_factory=dict)
    staff: dict[str, tuple[WorkerService, threading.Thread]] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    shards: dict[int, list[Process]] = field(default_factory=dict)  # one after the other

    @property
    def enclave(self) -> Process:
        return self.enclaves[-1]

    @property
    def state(self) -> Path:
        return self.deployment.root / "state"

    @property
    def rounds(self) -> int:
        return len(self.updates)

    @property
    def names(self) -> list[str]:
        return [f"client-{i + 1}" for i in range(self.deployment.plan.clients)]

    @property
    def tiles(self) -> int:
        """Of shares, in one attempt at one worker."""
        return federation_file.load(self.deployment.config).federation().columns.count

    def gate(self) -> Gate:
        self.gates.append(Gate())
        return self.gates[-1]

    def start_enclave(self) -> None:
        self.enclaves.append(self.deployment.enclave())

    def start_shard(self, number: int, *, wait: bool = True) -> None:
        self.shards.setdefault(number, []).append(self.deployment.shard(number, wait=wait))

    def start_shards(self) -> None:
        for number in range(len(self.deployment.shard_ports)):
            self.start_shard(number)

    def start_worker(self, number: int, gates: dict[int, Gate] | None = None) -> None:
        """A worker as a thread for each that it serves. It comes back quickly, so that no test
        waits for it."""
        name, root = f"worker-{number}", self.deployment
        policy = Verifier.of(root.root / "policy.toml", unsafe_simulation=True)
        pin = EnclavePin.chosen(root.key(name), receipt_key=None, verifier=policy)
        staff = Staff(name, read_identity(root.key(name)), HeldKernel(gates or {}), pin)
        for at, address in enumerate(root.addresses):
            service = WorkerService(
                address, staff, backoff=Backoff(0.1, 0.5), unwanted=Backoff(0.1, 0.5)
            )
            thread = threading.Thread(target=service.run, name=name, daemon=True)
            thread.start()
            self.staff[f"{name}@{at}" if at else name] = service, thread

    def start_clients(self, *, but: str = "") -> None:
        """All of them are known before the first one starts."""
        for client in [self.client(name) for name in self.names if name != but]:
            client.start()

    def client(self, name: str) -> ClientThread:
        """The thread of this name, which may not have started yet."""
        if name not in self.clients:
            updates = list(self.updates[:, self.names.index(name)])
            self.clients[name] = ClientThread(self.deployment, name, updates)
        return self.clients[name]

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """An event of the enclave that runs now."""

        def matches(line: str) -> bool:
            said = json.loads(line) if line.startswith("{") else {}
            return said.get("event") == event and fields.items() <= said.items()

        place = self.enclave.wait_for(matches)
        return dict(json.loads(self.enclave.lines[place - 1]))

    def told(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Events of this name of all enclaves, oldest first."""
        everything = [said for enclave in self.enclaves for said in events(enclave, event)]
        return [said for said in everything if fields.items() <= said.items()]

    def status(self) -> dict[str, Any]:
        """As strangers see it: with numbers for names."""
        with dial(self.deployment.address) as channel:
            stub: Any = EnclaveStub(channel)
            shown: dict[str, Any] = json.loads(stub.GetStatus(wire.StatusRequest()).json)
        return shown

    def chain(self) -> list[Receipt]:
        """All receipts over the wire, followed by a client that has seen none before."""
        identity = read_identity(self.deployment.key("client-1"))
        with dial(self.deployment.address) as channel:
            stub: Any = EnclaveStub(channel)
            links = list(stub.GetChain(wire.ChainRequest(after=0), timeout=PATIENCE_S))
        first = decode(Charter, links[0].charter).federation
        client = Role("client-1", identity, first, self._enclave_key())
        receipts = []
        for link in links:
            if link.WhichOneof("link") == "charter":
                client = client.adopt(decode(Charter, link.charter).federation)
            else:
                certified = decode(Certified, link.certified)
                client = client.follow(certified)
                receipts.append(certified.receipt)
        assert receipts[0].previous == genesis(first)
        return receipts

    def check(self, *, rejected: dict[int, dict[str, str]] | None = None) -> list[Receipt]:
        """Every round is published once, and right, and everybody here has its model.

        rejected: by round, whose update takes no part for which reason.
        """
        results = [client.result() for client in self.clients.values()]
        # What the enclave has said before has been read by then, too.
        self.wait_for("RoundOpened", number=self.rounds + 1)
        chain = self.chain()
        assert [receipt.number for receipt in chain] == list(range(1, self.rounds + 1))
        expected = np.zeros(self.updates.shape[2])
        for receipt in chain:
            out = (rejected or {}).get(receipt.number, {})
            expected = expected + self._check_round(receipt, out)
        for result in results:
            assert result.digest == chain[-1].model
            np.testing.assert_allclose(result.vector, expected, rtol=1e-6, atol=1e-6)
        for folder in self.spools:
            assert len(list(folder.glob("spool-round-*"))) == 1  # of the round that is open
        return chain

    @property
    def spools(self) -> list[Path]:
        """Where sealed tiles may lie."""
        numbers = range(len(self.deployment.shard_ports))
        folders = [self.deployment.shard_folder(number) / "state" for number in numbers]
        return folders or [self.state]

    def _check_round(self, receipt: Receipt, rejected: dict[str, str]) -> np.ndarray:
        """The mean that this round must have added."""
        closed = self.told("RoundClosed", number=receipt.number)[-1]
        assert len(self.told("RoundPublished", number=receipt.number)) <= 1
        assert {each.client: each.reason for each in receipt.rejected} == rejected
        out = {*closed["missing"], *rejected}
        cohort = [i for i, name in enumerate(self.names) if name not in out]
        assert receipt.participants == len(cohort)
        kept, mean = multi_krum(self.updates[receipt.number - 1][cohort], self.deployment.plan.f)
        assert receipt.selected == tuple(self.names[cohort[i]] for i in kept)
        for client in self.clients.values():
            if (outcome := client.outcomes.get(receipt.number)) is not None:
                assert outcome.receipt == receipt
                assert outcome.accepted == (self.names.index(client.name) in cohort)
        return mean

    def _enclave_key(self) -> bytes:
        """As a client remembers it, which took it from evidence."""
        key = self.deployment.key("client-2")
        memory = MemoryFile.beside(key, "client-2", self.deployment.federation_id).load()
        assert memory is not None
        return memory.receipt_key

    def end(self) -> None:
        for gate in self.gates:
            gate.open()
        for service, _ in self.staff.values():
            service.stop()
        for _, thread in self.staff.values():
            thread.join(PATIENCE_S)


@pytest.fixture
def stage(deploy, monkeypatch) -> Iterator[Callable[..., Stage]]:
    """stage(clients=8, f=2, ...) is ready to start. settings: lines of the federation file."""
    stages: list[Stage] = []
    at_once = upload.frames

    def half_way(sealed: Any, numbers: range) -> Iterator[memoryview]:
        for number, frame in zip(numbers, at_once(sealed, numbers), strict=True):
            if number == sealed.count // 2:
                stages[-1].clients[sealed.header.client].come_to("half")
            yield frame

    monkeypatch.setattr(upload, "frames", half_way)
    monkeypatch.setattr(connection, "LONGEST_WAIT_S", 0.5)  # so that no test waits for a client

    def make(
        *, rounds: int = 1, settings: dict[str, Any] | None = None, seed: int = 0, **plan: Any
    ) -> Stage:
        plan = {"clients": 8, "f": 2, "workers": 2, "dimension": 20_000} | plan
        n, f, d = plan["clients"], plan["f"], plan["dimension"]
        ours = {"count": rounds + 1, "tile": 1024, "quorum": n - 1, "disclose_selection": True}
        ours["client_momentum"] = 0.0
        deployment = deploy(settings=ours | (settings or {}), **({"composition": KRUM} | plan))
        draw = np.random.default_rng(seed).normal
        updates = draw(size=(rounds, 1, d)) + 0.3 * draw(size=(rounds, n, d))
        updates[:, n - f :] *= -3
        stages.append(Stage(deployment, updates.astype(np.float32)))
        return stages[-1]

    yield make
    for each in stages:
        each.end()
