"""Rounds of a whole service over loopback, and what each of its processes spends on them.

The enclave's service or a lead and its shards, the workers and some processes of clients run as
they do anywhere. This
process looks at their CPU clocks all the time, and afterwards cuts at the moments that their logs
tell:

    the outcome before is published -> all have joined                   sending models, and joining
    all have joined, and begin to send -> the last update is complete    receiving, or sending
    the last update is complete -> the outcome is published              the close
"""

import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ostraka import files
from ostraka.arrays import Float32, Float64
from ostraka.cli.federation_folder import Plan as Founding
from ostraka.config import Span, Tiling, cut_into_spans, default_tile
from ostraka.core.rules import Composition
from ostraka.crypto.aead import TAG_BYTES
from ostraka.errors import ConfigError, ServiceError
from ostraka_lab.bench.machine import available_bytes, process_cpu_s, process_peak_bytes
from ostraka_lab.bench.parties import DEFAULT, byzantine, sketch_size
from ostraka_lab.bench.process import CLIENT_PROCESSES
from ostraka_lab.bench.service_clients import gate, outcome
from ostraka_lab.children import Child, Children, Logged
from ostraka_lab.deployment import Deployment, Setting, found

UPDATE_BYTES = 4  # a value
CERTIFICATE, KEY = "tls.pem", "tls.key"

_BYTES_A_VALUE = 16  # of all processes together
_BASE_BYTES = 1200 * 2**20  # a dozen interpreters
_MIB, _GIB = 2**20, 2**30
_SAMPLE_S = 0.002
_POLL_S = 0.05
_SILENCE_S = 600.0  # without a line in any log
_ENDING_S = 60.0  # for clients to end after the last round
_LOCALHOST = IPv4Address("127.0.0.1")


@dataclass(frozen=True)
class Plan:
    """What to measure. threads: of the enclave. repeat: rounds that count; one more comes before.

    two_threads: measure with as many, too. tls: measure with TLS, too. small: also compare a
    federation of many small updates with one that is simulated in a single process. workers: a
    third makes the Gram matrix of the mask. sketched: if updates are long enough. shards: 1 for an
    enclave without any.
    """

    clients: int = 64
    dimension: int = 3_500_000
    threads: int = 2
    repeat: int = 3
    two_threads: bool = False
    tls: bool = False
    small: bool = True
    workers: int = 3
    sketched: bool = True
    shards: int = 1
    composition: Composition = DEFAULT

    def __post_init__(self) -> None:
        for name in ("clients", "dimension", "threads", "repeat", "shards"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        needed = needed_bytes(self.clients, self.dimension)
        if needed > available_bytes():
            raise ConfigError(
                f"{self.clients} clients of {self.dimension} values need about "
                f"{needed / _GIB:.1f} GiB of memory; {available_bytes() / _GIB:.1f} GiB are "
                "available: take fewer"
            )

    @property
    def sketch(self) -> int | None:
        if not self.sketched:
            return None
        return sketch_size(self.clients, self.dimension, self.composition)

    @property
    def f(self) -> int:
        return byzantine(self.clients, self.composition)

    @property
    def tiling(self) -> Tiling:
        return Tiling(self.dimension, default_tile(self.dimension, self.shards))

    @property
    def spans(self) -> tuple[Span, ...]:
        """Which values each shard has. Raises ConfigError."""
        return cut_into_spans(self.tiling, self.shards)

    @property
    def shares(self) -> list[range]:
        """The numbers of the clients in each of their processes."""
        size = -(-self.clients // CLIENT_PROCESSES)
        numbers = range(1, self.clients + 1)
        return [numbers[start : start + size] for start in range(0, self.clients, size)]

    @property
    def tiles(self) -> int:
        """Sealed tiles of all clients."""
        return self.clients * self.tiling.count

    @property
    def sealed_bytes(self) -> int:
        """What all clients upload in one round, without headers."""
        return self.model_bytes + self.tiles * TAG_BYTES

    @property
    def model_bytes(self) -> int:
        """What all clients download in one round."""
        return self.clients * self.dimension * UPDATE_BYTES


def needed_bytes(clients: int, dimension: int) -> int:
    """The memory that all processes of such a service take together, about."""
    return clients * dimension * _BYTES_A_VALUE + _BASE_BYTES


@dataclass(frozen=True)
class Round:
    """What one round took: CPU and wall seconds until all updates were in, and from then on.

    join_cpu_s: of the enclave, from the end of the round before until all have its model and have
    joined; 0 for the first round. cpu_s: of every party, from the end of the round before to the
    end of this one. parts: the same, cut: until all have joined, sent, and have the outcome.
    """

    receive_cpu_s: float
    client_cpu_s: float
    receive_wall_s: float
    close_cpu_s: float
    close_wall_s: float
    join_cpu_s: float
    cpu_s: Mapping[str, float]
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Served:
    """All rounds, the first one included. peaks: the most bytes of each enclave's process.

    model: (d,), after the last round. selected: the clients, by round.
    """

    rounds: list[Round]
    peaks: Mapping[str, int]
    model: Float32
    selected: list[list[str]]


def serve(plan: Plan, root: Path, certificate: Path | None) -> Served:
    """Run the services and the clients."""
    settings: dict[str, Setting] = {
        "threads": plan.threads,
        "count": plan.repeat + 1,
        "client_momentum": 0,
        "keep_models": 1,
        "memory_mib": plan.clients * max(span.length for span in plan.spans) * UPDATE_BYTES // _MIB
        + 1,
    }
    if plan.sketch is not None:
        settings["sketch"] = plan.sketch
    founding = Founding(
        clients=plan.clients,
        workers=plan.workers,
        f=plan.f,
        dimension=plan.dimension,
        composition=plan.composition,
        shards=plan.shards,
    )
    address = found(root, founding, **settings)
    with Children(root.parent / "logs") as children:
        deployment = Deployment(root, address, children, certificate)
        if certificate is not None:
            for name in (CERTIFICATE, KEY):  # The enclave reads no files but its folder's.
                shutil.copy(certificate.parent / name, root / name)
            deployment.change(tls_certificate=CERTIFICATE, tls_key=KEY)
        rounds, peaks = _Watch(deployment, plan).run()
        return Served(rounds, peaks, *outcome(root))


@dataclass
class _Times:
    """When the steps of one round happened, in seconds since 1970."""

    sending: float = 0.0
    arrived: float = 0.0
    published: float = 0.0


class _Watch:
    """Starts all processes, follows their logs, and looks at their CPU clocks."""

    def __init__(self, deployment: Deployment, plan: Plan) -> None:
        self._deployment = deployment
        self._plan = plan
        self._times: dict[int, _Times] = {}
        self._joined: Counter[int] = Counter()  # processes of clients, by round
        self._arrived = 0.0
        self._ready = 0
        self._published = 0

    def run(self) -> tuple[list[Round], dict[str, int]]:
        """Every round, and the peak memory of the enclave and of each shard."""
        plan, deployment = self._plan, self._deployment
        enclaves = [deployment.start_enclave()]
        self._until(lambda: self._ready == 1, enclaves)
        enclaves += [deployment.start_shard(number) for number in range(len(deployment.shards))]
        self._until(lambda: self._ready == len(enclaves), enclaves)
        workers = [deployment.start_worker(number) for number in range(1, plan.workers + 1)]
        joined = len(enclaves) * (1 + plan.workers)
        self._until(lambda: self._ready == joined, enclaves)
        clients = [self._start_clients(part) for part in plan.shares]
        parties = {child.name: [child] for child in enclaves}
        with _sampled(parties | {"clients": clients, "workers": workers}) as clocks:
            self._until(lambda: self._published > plan.repeat, [enclaves[0], *clients])
            deployment.children.wait(_ENDING_S)
            peaks = {child.name: process_peak_bytes(child.process.pid) for child in enclaves}
        return [self._round(number, clocks) for number in range(1, plan.repeat + 2)], peaks

    def _start_clients(self, numbers: range) -> Child:
        deployment, plan = self._deployment, self._plan
        words = (deployment.root, deployment.address, numbers[0], numbers[-1], plan.dimension)
        tls = () if deployment.certificate is None else (deployment.certificate,)
        return deployment.children.start(
            f"clients-{numbers[0]}",
            "ostraka_lab.bench.service_clients",
            *(str(each) for each in (*words, plan.repeat + 1, plan.f, *tls)),
            serves=False,
        )

    def _until(self, done: Callable[[], bool], heard: Sequence[Child]) -> None:
        """Follow logs until then. Raises ServiceError if a process fails, or all are silent."""
        since = time.monotonic()
        while not done():
            events = [event for child in heard for event in child.events()]
            for event in events:
                self._hear(event)
            if events:
                since = time.monotonic()
            elif time.monotonic() - since > _SILENCE_S:
                raise ServiceError(
                    f"no process of the benchmark has said a word for {_SILENCE_S} s"
                )
            self._deployment.children.require_well()
            time.sleep(_POLL_S)

    def _hear(self, event: Logged) -> None:
        match event.get("event"):
            case "ServiceStarted" | "LeadJoined" | "WorkerJoined":
                self._ready += 1
            case "Joined":
                self._let_send(event["round"])
            case "UploadCompleted":
                self._arrived = _time(event)
            case "RoundClosed":
                self._at(event["number"]).arrived = self._arrived
                if event["missing"]:
                    raise ServiceError(f"{len(event['missing'])} clients of the benchmark missed")
            case "RoundPublished":
                self._at(event["number"]).published = _time(event)
                self._published = event["number"]
            case "RoundSkipped" | "NullStep" | "TooFewWorkers" | "ClientRejected" | "ShardLeft":
                raise ServiceError(f"a round of the benchmark did not succeed: {event}")

    def _let_send(self, number: int) -> None:
        """Note that the clients of one process have joined. When all have, they send."""
        self._joined[number] += 1
        if self._joined[number] == len(self._plan.shares):
            self._at(number).sending = time.time()
            gate(self._deployment.root, number).touch()

    def _at(self, number: int) -> _Times:
        return self._times.setdefault(number, _Times())

    def _round(self, number: int, clocks: "Clocks") -> Round:
        times, before = self._at(number), self._at(number - 1).published
        cuts = (before or times.sending, times.sending, times.arrived, times.published)
        return Round(
            receive_cpu_s=clocks.between("enclave", times.sending, times.arrived),
            client_cpu_s=clocks.between("clients", times.sending, times.arrived),
            receive_wall_s=times.arrived - times.sending,
            close_cpu_s=clocks.between("enclave", times.arrived, times.published),
            close_wall_s=times.published - times.arrived,
            join_cpu_s=clocks.between("enclave", before or times.sending, times.sending),
            cpu_s={
                name: clocks.between(name, before or times.sending, times.published)
                for name in clocks.names
            },
            parts={
                name: [clocks.between(name, *ends) for ends in pairwise(cuts)]
                for name in clocks.names
            },
        )


@dataclass
class Clocks:
    """CPU seconds of parties, at many moments. names: of the parties."""

    names: tuple[str, ...]
    _moments: list[tuple[float, ...]] = field(default_factory=list)

    def note(self, moment: float, seconds: Mapping[str, float]) -> None:
        """Keep what the parties' clocks show at a moment, in seconds since 1970."""
        self._moments.append((moment, *(seconds[name] for name in self.names)))

    def between(self, name: str, start: float, end: float) -> float:
        """The CPU seconds of a party between two moments."""
        table: Float64 = np.array(self._moments)
        seconds = table[:, 1 + self.names.index(name)]
        first, last = np.interp((start, end), table[:, 0], seconds)
        return float(last - first)


@contextmanager
def _sampled(parties: Mapping[str, Sequence[Child]]) -> Iterator[Clocks]:
    """Look at the clocks of these parties' processes again and again while the block lasts."""
    clocks, done = Clocks(tuple(parties)), threading.Event()
    shown = {child.process.pid: 0.0 for children in parties.values() for child in children}

    def look() -> None:
        for pid, before in shown.items():
            shown[pid] = process_cpu_s(pid, otherwise=before)
        clocks.note(
            time.time(),
            {
                name: sum(shown[child.process.pid] for child in children)
                for name, children in parties.items()
            },
        )

    def sample() -> None:
        while not done.wait(_SAMPLE_S):
            look()

    thread = threading.Thread(target=sample, daemon=True)
    look()
    thread.start()
    try:
        yield clocks
    finally:
        done.set()
        thread.join()


def _time(event: Logged) -> float:
    return datetime.fromisoformat(event["time"]).timestamp()


def write_certificate(folder: Path) -> Path:
    """A certificate for this machine's own address, and its key beside it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ostraka bench")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(_LOCALHOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files.write(folder / KEY, [private])
    files.write(folder / CERTIFICATE, [certificate.public_bytes(Encoding.PEM)])
    return folder / CERTIFICATE
