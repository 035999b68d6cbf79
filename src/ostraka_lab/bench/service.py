"""`ostraka bench service`: the whole service over loopback, in real processes.

python -m ostraka_lab.bench.service SIMULATED CLIENTS DIMENSION REPEAT    the same round, in-process

The enclave's service, the workers and a process of clients run as they do anywhere. This process
looks at their CPU clocks all the time, and afterwards cuts at the moments that their logs tell:

    all have joined -> the last update is complete    receiving: enclave; sealing and sending: client
    the last update is complete -> published          the close
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ostraka import files
from ostraka.arrays import Float64
from ostraka.cli.federation_folder import FEDERATION, Plan as Founding
from ostraka.config import DEFAULT_TILE, Manifest, Terms, Tiling, default_tile
from ostraka.core import loops
from ostraka.crypto.aead import TAG_BYTES
from ostraka.errors import ConfigError, ServiceError
from ostraka.protocol.round import enrol, play
from ostraka_lab.bench import machine
from ostraka_lab.bench.machine import available_bytes, process_cpu_s
from ostraka_lab.bench.parties import byzantine, sketch_size
from ostraka_lab.bench.process import Begin, Figures, report, run_module
from ostraka_lab.bench.results import spread
from ostraka_lab.bench.whole_round import repeated
from ostraka_lab.children import Child, Children, Logged
from ostraka_lab.deployment import Deployment, Setting, found

GB = 1e9

_WORKERS = 3  # one of them makes the Gram matrix of the mask
_UPDATE_BYTES = 4  # a value
_BYTES_A_VALUE = 16  # of all processes together
_BASE_BYTES = 600 * 2**20  # five interpreters
_GIB = 2**30
_SAMPLE_S = 0.002
_POLL_S = 0.05
_SILENCE_S = 600.0  # without a line in any log
_ENDING_S = 60.0  # for clients to end after the last round
_CERTIFICATE, _KEY = "tls.pem", "tls.key"
_LOCALHOST = IPv4Address("127.0.0.1")


@dataclass(frozen=True)
class Plan:
    """What to measure. threads: of the enclave. repeat: rounds that count; one more comes before.

    tls: measure with TLS, too. small: also compare a federation of many small updates with one that
    is simulated in a single process.
    """

    clients: int = 64
    dimension: int = 3_500_000
    threads: int = 2
    repeat: int = 3
    tls: bool = False
    small: bool = True

    def __post_init__(self) -> None:
        for name in ("clients", "dimension", "threads", "repeat"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; got {getattr(self, name)}")
        needed = self.clients * self.dimension * _BYTES_A_VALUE + _BASE_BYTES
        if needed > available_bytes():
            raise ConfigError(
                f"{self.clients} clients of {self.dimension} values need about "
                f"{needed / _GIB:.1f} GiB of memory; {available_bytes() / _GIB:.1f} GiB are "
                "available: take fewer"
            )

    @property
    def tiles(self) -> int:
        """Sealed tiles of all clients."""
        return self.clients * Tiling(self.dimension, default_tile(self.dimension)).count

    @property
    def sealed_bytes(self) -> int:
        """What all clients upload in one round, without headers."""
        return self.clients * self.dimension * _UPDATE_BYTES + self.tiles * TAG_BYTES


QUICK = Plan(clients=8, dimension=100_000, repeat=1)
SMALL = Plan(clients=100, dimension=50_890)  # the lab's MLP for pictures of MNIST


def measure(plan: Plan, begin: Begin) -> Figures:
    """Measure all of it."""
    ways = (False, True) if plan.tls else (False,)
    step = _Steps(begin, 3 * len(ways) + 2 * plan.small)
    measured = {tls: _measure_way(plan, step, tls=tls) for tls in ways}
    return {
        "clients": plan.clients,
        "dimension": plan.dimension,
        "threads": plan.threads,
        "repeat": plan.repeat,
        "sketch": sketch_size(plan.clients, plan.dimension),
        "bytes": plan.sealed_bytes,
        **measured[False],
        "tls": measured.get(True),
        "small": _compare_small(step) if plan.small else None,
        "native": bool(getattr(loops, "NATIVE", False)),
        "vaes": machine.has_flag("vaes"),
        "machine": machine.describe(threads=plan.threads),
    }


class _Steps:
    """Counts the steps of a benchmark."""

    def __init__(self, begin: Begin, count: int) -> None:
        self._begin = begin
        self._count = count
        self._done = 0

    def __call__(self, what: str) -> None:
        self._begin(what, self._done, self._count)
        self._done += 1


def _measure_way(plan: Plan, step: _Steps, *, tls: bool) -> Figures:
    """The figures with TLS or without. What they are divided by is measured before and after."""
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        folder, certificate = Path(directory), None
        if tls:
            certificate = _write_certificate(folder)
        suffix = ", with TLS" if tls else ""
        step(f"opening and a bare loop{suffix}")
        bare = [_bare(plan, certificate)]
        step(f"the service{suffix}")
        rounds = _serve(plan, folder / "federation", certificate)
        step(f"opening and a bare loop again{suffix}")
        bare.append(_bare(plan, certificate))
    return _figures(plan, rounds[1:], bare)


def _bare(plan: Plan, certificate: Path | None) -> Figures:
    size = default_tile(plan.dimension) * _UPDATE_BYTES + TAG_BYTES
    tiles = max(1, round(plan.sealed_bytes / size))
    words = [str(each) for each in (tiles, size, plan.threads, plan.repeat)]
    if certificate is not None:
        words += [str(certificate), str(certificate.parent / _KEY)]
    figures = run_module("ostraka_lab.bench.bare_loop", words, lambda *_: None)
    scale = plan.sealed_bytes / figures["bytes"]
    return {
        f"{what}_{which}": [seconds * scale for seconds in figures[what][which]]
        for what in ("open", "loop")
        for which in ("cpu_s", "wall_s")
    }


@dataclass(frozen=True)
class Round:
    """What one round took: CPU and wall seconds until all updates were in, and from then on.

    all_cpu_s: of all processes, from the end of the round before to the end of this one.
    """

    receive_cpu_s: float
    client_cpu_s: float
    receive_wall_s: float
    close_cpu_s: float
    close_wall_s: float
    all_cpu_s: float


def _figures(plan: Plan, rounds: Sequence[Round], bare: Sequence[Figures]) -> Figures:
    def median(what: str) -> float:
        return statistics.median(getattr(each, what) for each in rounds)

    def before_and_after(what: str) -> float:
        return statistics.median(seconds for each in bare for seconds in each[what])

    gb = plan.sealed_bytes / GB
    opened, opened_wall = before_and_after("open_cpu_s"), before_and_after("open_wall_s")
    loop = before_and_after("loop_cpu_s")
    return {
        "gb_per_s": gb / median("receive_wall_s"),
        "enclave_cpu_s_per_gb": median("receive_cpu_s") / gb,
        "bare_loop_cpu_s_per_gb": loop / gb,
        "enclave_x_bare_loop": median("receive_cpu_s") / loop,
        "client_cpu_s_per_gb": median("client_cpu_s") / gb,
        "client_x_bare_loop": median("client_cpu_s") / loop,
        "open_cpu_s_per_gb": opened / gb,
        "open_wall_s": opened_wall,
        "close_cpu_s": median("close_cpu_s"),
        "close_wall_s": median("close_wall_s"),
        "close_cpu_x_open": median("close_cpu_s") / opened,
        "close_wall_x_open": median("close_wall_s") / opened_wall,
        "round_cpu_s": median("all_cpu_s"),
        "spread": {
            what: spread([getattr(each, what) for each in rounds])
            for what in ("receive_cpu_s", "client_cpu_s", "close_cpu_s")
        },
    }


def _serve(plan: Plan, root: Path, certificate: Path | None) -> list[Round]:
    """Run the services and the clients. Gives every round, the first one included."""
    settings: dict[str, Setting] = {
        "threads": plan.threads,
        "count": plan.repeat + 1,
        "client_momentum": 0,
        "keep_models": 1,
    }
    if (columns := sketch_size(plan.clients, plan.dimension)) is not None:
        settings["sketch"] = columns
    if certificate is not None:
        settings["tls_certificate"] = str(certificate)
        settings["tls_key"] = str(certificate.parent / _KEY)
    founding = Founding(
        clients=plan.clients,
        workers=_WORKERS,
        f=byzantine(plan.clients),
        dimension=plan.dimension,
    )
    address = found(root, founding, **settings)
    with Children(root.parent / "logs") as children:
        deployment = Deployment(root, address, children, certificate)
        return _Watch(deployment, plan).run()


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
        self._arrived = 0.0
        self._ready = 0
        self._published = 0

    def run(self) -> list[Round]:
        plan, deployment = self._plan, self._deployment
        enclave = deployment.start_enclave()
        self._until(lambda: self._ready > 0, [enclave])
        workers = [deployment.start_worker(number) for number in range(1, _WORKERS + 1)]
        self._until(lambda: self._ready > _WORKERS, [enclave])
        words = (deployment.root, deployment.address, plan.clients, plan.dimension, plan.repeat + 1)
        tls = () if deployment.certificate is None else (deployment.certificate,)
        clients = deployment.children.start(
            "clients",
            "ostraka_lab.bench.service_clients",
            *(str(each) for each in (*words, *tls)),
            serves=False,
        )
        with _sampled({each.name: each for each in (enclave, clients, *workers)}) as clocks:
            self._until(lambda: self._published > plan.repeat, [enclave, clients])
            deployment.children.wait(_ENDING_S)
        return [self._round(number, clocks) for number in range(1, plan.repeat + 2)]

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
                raise ServiceError(f"no process of the benchmark has said a word for {_SILENCE_S} s")
            self._deployment.children.require_well()
            time.sleep(_POLL_S)

    def _hear(self, event: Logged) -> None:
        match event.get("event"):
            case "ServiceStarted" | "WorkerJoined":
                self._ready += 1
            case "Sending":
                self._at(event["round"]).sending = _time(event)
            case "UploadCompleted":
                self._arrived = _time(event)
            case "RoundClosed":
                self._at(event["number"]).arrived = self._arrived
                if event["missing"]:
                    raise ServiceError(f"{len(event['missing'])} clients of the benchmark missed")
            case "RoundPublished":
                self._at(event["number"]).published = _time(event)
                self._published = event["number"]
            case "RoundSkipped" | "NullStep" | "TooFewWorkers" | "ClientRejected":
                raise ServiceError(f"a round of the benchmark did not succeed: {event}")

    def _at(self, number: int) -> _Times:
        return self._times.setdefault(number, _Times())

    def _round(self, number: int, clocks: "Clocks") -> Round:
        times, before = self._at(number), self._at(number - 1).published
        return Round(
            receive_cpu_s=clocks.between("enclave", times.sending, times.arrived),
            client_cpu_s=clocks.between("clients", times.sending, times.arrived),
            receive_wall_s=times.arrived - times.sending,
            close_cpu_s=clocks.between("enclave", times.arrived, times.published),
            close_wall_s=times.published - times.arrived,
            all_cpu_s=sum(
                clocks.between(name, before or times.sending, times.published)
                for name in clocks.names
            ),
        )


@dataclass
class Clocks:
    """CPU seconds of processes, at many moments. names: of the processes."""

    names: tuple[str, ...]
    _moments: list[tuple[float, ...]] = field(default_factory=list)

    def note(self, moment: float, seconds: Mapping[str, float]) -> None:
        """Keep what the processes' clocks show at a moment, in seconds since 1970."""
        self._moments.append((moment, *(seconds[name] for name in self.names)))

    def between(self, name: str, start: float, end: float) -> float:
        """The CPU seconds of a process between two moments."""
        table: Float64 = np.array(self._moments)
        seconds = table[:, 1 + self.names.index(name)]
        first, last = np.interp((start, end), table[:, 0], seconds)
        return float(last - first)


@contextmanager
def _sampled(processes: Mapping[str, Child]) -> Iterator[Clocks]:
    """Look at the clocks of these processes again and again while the block lasts."""
    clocks, done = Clocks(tuple(processes)), threading.Event()
    shown = dict.fromkeys(processes, 0.0)

    def look() -> None:
        for name, child in processes.items():
            shown[name] = process_cpu_s(child.process.pid, otherwise=shown[name])
        clocks.note(time.time(), shown)

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


def _write_certificate(folder: Path) -> Path:
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
    files.write(folder / _KEY, [private])
    files.write(folder / _CERTIFICATE, [certificate.public_bytes(Encoding.PEM)])
    return folder / _CERTIFICATE


def _compare_small(step: _Steps) -> Figures:
    """A round of many small updates: CPU of all processes over that of the same round in one.

    Training is the same in both. It is counted in neither.
    """
    step(f"{SMALL.clients} clients of {SMALL.dimension} values")
    with tempfile.TemporaryDirectory(prefix="ostraka-bench-") as directory:
        rounds = _serve(SMALL, Path(directory) / "federation", None)[1:]
    step("the same in one process")
    words = [str(each) for each in (SMALL.clients, SMALL.dimension, SMALL.repeat)]
    simulated = run_module("ostraka_lab.bench.service", words, lambda *_: None)["cpu_s"]
    services = statistics.median(each.all_cpu_s for each in rounds)
    return {
        "clients": SMALL.clients,
        "dimension": SMALL.dimension,
        "services_cpu_s": services,
        "simulated_cpu_s": simulated,
        "x_simulated": services / simulated,
    }


def simulate(clients: int, dimension: int, repeat: int, begin: Begin) -> Figures:
    """CPU of a round with all roles in this process, under the same terms."""
    begin("in one process", 0, 1)
    terms = Terms(
        Manifest.flat(dimension),
        f=byzantine(clients),
        workers=_WORKERS,
        sketch=sketch_size(clients, dimension),
        tile=default_tile(dimension),
    )
    parties, rows = enrol(terms, clients=clients), np.stack(list(repeated(clients, dimension)))
    runs = []
    for _ in range(repeat + 1):
        start = time.process_time()
        play(parties, rows)
        runs.append(time.process_time() - start)
    return {"cpu_s": statistics.median(runs[1:])}


if __name__ == "__main__":
    sys.exit(report(partial(simulate, *map(int, sys.argv[1:]))))
