"""An enclave's service on loopback that drives the real roles, and can be made to misbehave."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

import ostraka
from ostraka.attestation.claims import in_process
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.client import connection, upload
from ostraka.config import Federation, Manifest, Member, Tensor, Terms
from ostraka.core.optimiser import FEDAVG, ServerState, start
from ostraka.crypto import updates
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.errors import UpdateRejected
from ostraka.files import write_identity
from ostraka.messages import (
    SIMULATION,
    Challenge,
    Charter,
    Evidence,
    Introduction,
    Receipt,
    UpdateHeader,
    UpdateTile,
    vector_digest,
)
from ostraka.protocol.client import Client as Role
from ostraka.protocol.enclave import Enclave, Inside, combine, decide, publish
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer, add_EnclaveServicer_to_server

PATIENCE_S = 60.0  # for what comes in the end, however slow the machine is
SERVICE = threading.local()  # has `seals` while the service seals for others
AUTHORITY, ENCLAVE = Identity(b"a" * 32), Identity(b"e" * 32)
SEEDS = {name: bytes([at]) * 32 for at, name in enumerate(("alice", "bob", "carol", "dave"), 1)}
PEOPLE = {name: Identity(seed) for name, seed in SEEDS.items()}
MANIFEST = Manifest((Tensor("weight", (4, 3)), Tensor("bias", (5,))))
D, TILES = 17, 5
TERMS = Terms(MANIFEST, f=0, masking="none", tile=4, clip_norm=1e3)
CODE = b"m" * 32
PLATFORM = UnsafeSimulatedPlatform(b"\x07" * 32, issued=int(time.time()) - 3600)

POLICY = """
version = 1
evidence = ["simulation"]
unsafe_simulation = true
[federation]
authority = "{authority}"
maskings = ["none"]
[simulation]
root = ["{root}"]
mrenclave = ["{code}"]
collateral = "collateral.json"
"""


def federation(**changes: Any) -> Federation:
    members = tuple(Member(name, each.public) for name, each in PEOPLE.items())
    initial = vector_digest(first_state().model)
    return replace(Federation(TERMS, members, (), AUTHORITY.public, ID, initial=initial), **changes)


def make_charter(signer: Identity = AUTHORITY, **changes: Any) -> Charter:
    return signer.sign(Charter(federation(**changes), UNSIGNED))


def first_state(seed: int = 0) -> ServerState:
    return start(np.random.default_rng(seed).normal(size=D).astype("<f4"), FEDAVG)


class Service(EnclaveServicer):
    """One federation. `lies` replace answers; `failures` come before any; both by method name.

    arrived: every message of every upload, stream by stream. auto: a round is published as soon as
    alice's update is complete.
    """

    def __init__(self, identity: Identity = ENCLAVE, first: ServerState | None = None) -> None:
        self.state = first or first_state()
        self.identity = identity
        self.links: list[Charter | Receipt] = [make_charter()]
        self.code, self.platform, self.debug = CODE, PLATFORM, False
        self.lies: dict[str, Callable[[Any], Any]] = {}
        self.failures: dict[str, list[tuple[grpc.StatusCode, str]]] = defaultdict(list)
        self.breaks: list[int] = []  # after so many tiles, stream by stream
        self.arrived: list[list[Any]] = []
        self.calls: list[str] = []
        self.auto, self.finished, self.largest = True, False, 2**22
        self.moved = threading.Condition()
        self.restart()

    # What happens to an enclave.

    @property
    def receipts(self) -> list[Receipt]:
        return [each for each in self.links if isinstance(each, Receipt)]

    @property
    def charter(self) -> Charter:
        return [each for each in self.links if isinstance(each, Charter)][-1]

    @property
    def head(self) -> Receipt | None:
        return self.receipts[-1] if self.receipts else None

    def restart(self) -> None:
        """The open round is lost, and opened again under fresh keys."""
        with self.moved:
            self.enclave = Enclave(
                self.charter.federation,
                self.identity,
                head=self.head,
                state=self.state,
                evidence=SIMULATION,
            )
            self.intake = self.enclave.open_round()
            self.spool: dict[tuple[tuple[str, bytes], int], bytes] = {}
            self.moved.notify_all()

    def publish(self, value: float = 0.0) -> Receipt:
        """With an update of so many everywhere for everybody who has not sent one."""
        for name in PEOPLE.keys() - self.intake.complete:
            self._send(name, self.intake.offer, value)
        return self.close()

    def close(self) -> Receipt:
        cohort = self.intake.close()

        def tiles():
            for index in range(TILES):
                yield [self.spool[each, index] for each in cohort.uploads]

        measured = Inside(cohort).measure(tiles())
        plan = decide(cohort, measured)
        aggregate = combine(cohort, measured, plan, tiles())
        published = publish(cohort, measured, plan, aggregate)
        with self.moved:
            self.links.append(published.receipt)
            self.state = published.state
            self.restart()
        return published.receipt

    def adopt(self, new: Charter) -> None:
        self.links.append(new)
        self.restart()

    def _send(self, name: str, offer: Any, value: float) -> None:
        role = Role(name, PEOPLE[name], self.charter.federation)
        joined = role.join(offer, in_process(offer, self.identity.public))
        SERVICE.seals = True
        sealed = joined.seal(np.full(D, value, "<f4")).sealed
        SERVICE.seals = False
        self.intake.accept(sealed.header)
        for tile in sealed.tiles:
            self.take(name, tile)

    def take(self, client: str, tile: UpdateTile) -> None:
        self.intake.accept_tile(client, tile)
        self.spool[(client, tile.upload_id), tile.index] = bytes(tile.ciphertext)

    # What it answers.

    def _begin(self, method: str, context: grpc.ServicerContext) -> None:
        self.calls.append(method)
        if self.failures[method]:
            context.abort(*self.failures[method].pop(0))

    def _tell(self, method: str, honest: Any) -> Any:
        return self.lies.get(method, lambda answer: answer)(honest)

    def GetCharter(self, request, context):  # noqa: N802
        self._begin("GetCharter", context)
        return wire.CharterReply(charter=self._tell("GetCharter", encode(self.charter)))

    def Introduce(self, request, context):  # noqa: N802
        self._begin("Introduce", context)
        if self.finished:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "finished")
        challenge = decode(Challenge, request.challenge)
        check_signature(challenge, PEOPLE[challenge.client].public)
        answer = self._tell("Introduce", self.introduction(challenge.nonce))
        raw = answer if isinstance(answer, bytes) else encode(answer)
        return wire.IntroduceReply(introduction=raw)

    def introduction(self, nonce: bytes) -> Introduction:
        bound = self.intake.binding(nonce)
        quote = self.platform.quote(bound.report_data(), mrenclave=self.code, debug=self.debug)
        evidence = Evidence(SIMULATION, quote, (self.platform.root_der,))
        return Introduction(self.intake.offer, bound.receipt_key, evidence)

    def GetChain(self, request, context):  # noqa: N802
        self._begin("GetChain", context)
        links, number = [], 0
        for each in self.links:
            number = each.number if isinstance(each, Receipt) else number
            if number > request.after or isinstance(each, Charter):
                links.append(each)
        for each in self._tell("GetChain", links):
            if isinstance(each, bytes):
                yield wire.ChainLink(receipt=each)
            elif isinstance(each, Receipt):
                yield wire.ChainLink(receipt=encode(each))
            elif isinstance(each, Charter):
                yield wire.ChainLink(charter=encode(each))
            else:
                yield wire.ChainLink()

    def GetModel(self, request, context):  # noqa: N802
        self._begin("GetModel", context)
        if request.digest != vector_digest(self.state.model):
            context.abort(grpc.StatusCode.NOT_FOUND, "not the present model")
        raw = self._tell("GetModel", self.state.model.tobytes())
        for start_at in range(0, len(raw), 10):
            yield wire.ModelPart(data=raw[start_at : start_at + 10])

    def AwaitOutcome(self, request, context):  # noqa: N802
        self._begin("AwaitOutcome", context)
        with self.moved:
            self.moved.wait_for(
                lambda: self._outcome(request).WhichOneof("outcome") != "pending",
                timeout=min(0.1, context.time_remaining() or 0.1),
            )
            return self._tell("AwaitOutcome", self._outcome(request))

    def _outcome(self, request):
        if request.number <= len(self.receipts):
            return wire.OutcomeReply(receipt=encode(self.receipts[request.number - 1]))
        if request.round_id == self.intake.offer.round_id:
            return wire.OutcomeReply(pending=wire.Pending())
        return wire.OutcomeReply(void=wire.Void())

    def Upload(self, requests, context):  # noqa: N802
        stream: list[Any] = []
        self.arrived.append(stream)
        self._begin("Upload", context)
        header = decode(UpdateHeader, next(requests).header)
        stream.append(header)
        try:
            if self.intake.missing(header.client, header.upload_id) is None:
                self.intake.accept(header)
        except UpdateRejected as rejected:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(rejected.reason))
        missing = sorted(self.intake.missing(header.client, header.upload_id) or ())
        ranges = [wire.Range(start=index, stop=index + 1) for index in missing]
        answer = wire.UploadReply(missing=wire.Missing(range=ranges))
        yield self._tell("Missing", answer)
        left = self.breaks.pop(0) if self.breaks else TILES
        for request in requests:
            if len(request.SerializeToString()) > self.largest:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "message too large")
            for raw in request.tiles.tile:
                if left == 0:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
                left -= 1
                stream.append(decode(UpdateTile, raw))
                self.take(header.client, stream[-1])
        if header.client in self.intake.complete:
            if self.auto:
                self.publish()
            yield self._tell("Complete", wire.UploadReply(complete=wire.Complete()))


class Host:
    """Where a service runs: it can go away and come back under the same address."""

    def __init__(self, service: Service, tls: grpc.ServerCredentials | None = None) -> None:
        self.service, self.port, self._tls = service, 0, tls
        self._server: grpc.Server | None = None
        self.up()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def up(self) -> None:
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="fake-service")
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        add_EnclaveServicer_to_server(self.service, self._server)
        if self._tls is None:
            self.port = self._server.add_insecure_port(self.address)
        else:
            self.port = self._server.add_secure_port(self.address, self._tls)
        self._server.start()

    def down(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._pool.shutdown()
            self._server = None


@pytest.fixture
def sealed(monkeypatch):
    """What alice has sealed."""
    seen, real = [], updates.seal

    def seal(update, **options):
        result = real(update, **options)
        if not getattr(SERVICE, "seals", False):
            seen.append(result)
        return result

    monkeypatch.setattr(updates, "seal", seal)
    return seen


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(connection, "LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(upload, "_PENDING_S", 0.01)


@pytest.fixture
def when():
    """when(condition, act) does it in a thread of its own, once the condition is met."""
    threads: list[threading.Thread] = []

    def wait(condition: Callable[[], bool], act: Callable[[], Any]) -> None:
        until = time.monotonic() + PATIENCE_S
        while not condition() and time.monotonic() < until:
            time.sleep(0.01)
        act()

    def start_one(condition: Callable[[], bool], act: Callable[[], Any]) -> None:
        threads.append(threading.Thread(target=wait, args=(condition, act)))
        threads[-1].start()

    yield start_one
    for each in threads:
        each.join()


@pytest.fixture
def serve():
    """Starts services, and stops them."""
    running: list[Host] = []

    def start_one(tls: grpc.ServerCredentials | None = None) -> Host:
        running.append(Host(Service(), tls))
        return running[-1]

    yield start_one
    for each in running:
        each.down()


@pytest.fixture
def host(serve) -> Host:
    return serve()


@pytest.fixture
def service(host) -> Service:
    return host.service


@pytest.fixture
def folder(tmp_path) -> Path:
    """What alice has on her disk."""
    for name, seed in SEEDS.items():
        write_identity(tmp_path / f"{name}.key", name, partial(_same, seed))
    (tmp_path / "collateral.json").write_bytes(PLATFORM.collateral())
    write_policy(tmp_path)
    return tmp_path


def _same(seed: bytes, _: int) -> bytes:
    return seed


def write_policy(folder: Path, **changes: str) -> None:
    values = {
        "authority": AUTHORITY.public.hex(),
        "root": PLATFORM.root_digest.hex(),
        "code": CODE.hex(),
        **changes,
    }
    (folder / "policy.toml").write_text(POLICY.format(**values))


@pytest.fixture
def charter() -> Callable[..., Charter]:
    """A federation like the first one but for some fields, signed by its authority."""
    return make_charter


@pytest.fixture
def told() -> list[Any]:
    """The events of alice."""
    return []


@pytest.fixture
def connect(host, folder, told):
    """Makes alice, who has a minute for each call."""

    def make(name: str = "alice", **options: Any) -> ostraka.Client:
        given = {
            "name": name,
            "key": folder / f"{name}.key",
            "policy": folder / "policy.toml",
            "unsafe_simulation": True,
            "timeout": PATIENCE_S,
            "on_event": told.append,
            **options,
        }
        return ostraka.Client(given.pop("address", host.address), **given)

    return make


@pytest.fixture
def alice(connect):
    with connect() as client:
        yield client
