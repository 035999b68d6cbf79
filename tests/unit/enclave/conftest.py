"""The whole service in this process, on a loop of its own, and a client that speaks its wire."""

import asyncio
import json
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ostraka import federation_file
from ostraka.attestation.claims import Attested
from ostraka.cli import federation_folder
from ostraka.cli.federation_folder import Plan
from ostraka.crypto.identity import Identity
from ostraka.crypto.updates import SealedUpdate
from ostraka.enclave.platform.choose import unsafe_simulated
from ostraka.enclave.service import serve
from ostraka.encoding import UNSIGNED, decode, encode
from ostraka.events import Event, RoundProposed
from ostraka.files import read_identity
from ostraka.messages import (
    Certified,
    Challenge,
    Charter,
    ClientHello,
    Introduction,
    Proposal,
    Receipt,
)
from ostraka.protocol.client import Client, Joined
from ostraka.protocol.confirm import confirm
from ostraka.transport import LANE, LENGTH, TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import dial
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

PATIENCE_S = 60.0


@dataclass
class Running:
    """A federation's folder, and its enclave's service while it runs.

    voters: who confirms each proposal as soon as it is made; everybody unless given.
    """

    root: Path
    plan: Plan
    port: int
    voters: tuple[str, ...] | None = None
    voted: dict[int, Proposal] = field(default_factory=dict)  # by number, one each
    events: list[Event] = field(default_factory=list)
    _thread: threading.Thread | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _task: "asyncio.Task[None] | None" = None
    _failed: list[BaseException] = field(default_factory=list)
    _news: threading.Condition = field(default_factory=threading.Condition)
    _voting: list[threading.Thread] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.root / "federation.toml"

    def set(self, **settings: Any) -> None:
        text = self.config.read_text()
        for name, value in settings.items():
            line = f"{name} = {json.dumps(value)}"
            text, found = re.subn(rf"(?m)^(# )?{name} = [^#\n]*", f"{line}  ", text, count=1)
            assert found, name
        self.config.write_text(text)

    def sign(self) -> None:
        file = federation_file.load(self.config)
        charter = federation_file.sign(file, self.identity("authority"))
        federation_file.write_charter(federation_file.charter_path(self.config), charter)

    def identity(self, name: str) -> Identity:
        return read_identity(self.root / "keys" / f"{name}.key")

    def start(self) -> None:
        ready = threading.Event()

        async def main() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            platform = unsafe_simulated(
                self.root / "simulation" / "platform.json", self.root / "simulation" / "dev.key"
            )
            ready.set()
            await serve(self.config, platform, self._tell)

        def thread() -> None:
            try:
                asyncio.run(main())
            except asyncio.CancelledError:
                pass
            except Exception as failed:  # noqa: BLE001 (whatever it is, the test fails by it)
                self._failed.append(failed)
            finally:
                with self._news:
                    self._news.notify_all()

        self._thread = threading.Thread(target=thread)
        self._thread.start()
        assert ready.wait(PATIENCE_S)
        self.wait_for("ServiceStarted")

    def _tell(self, event: Event) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()
        if isinstance(event, RoundProposed):
            self._voting.append(threading.Thread(target=self._vote, args=(event.number,)))
            self._voting[-1].start()

    def _vote(self, number: int) -> None:
        """Each voter has one vote for a number, whatever the service proposes."""
        with self.channel() as channel, suppress(grpc.RpcError):
            stub: Any = EnclaveStub(channel)
            with suppress(grpc.RpcError):
                Speaker(self, "client-1", self.identity("client-1"), stub).greet()
            request = wire.OutcomeRequest(number=number)
            reply = stub.AwaitOutcome(request, timeout=PATIENCE_S)
            if reply.WhichOneof("outcome") == "proposed":
                proposal = decode(Proposal, reply.proposed.proposal)
                if self.voted.setdefault(number, proposal) == proposal:
                    self.confirm(stub, proposal)

    def confirm(self, stub: Any, proposal: Proposal) -> None:
        everybody = [f"client-{at}" for at in range(1, self.plan.clients + 1)]
        for name in everybody if self.voters is None else self.voters:
            vote = confirm(
                proposal,
                proposal.federation,
                proposal.number,
                voter=name,
                identity=self.identity(name),
            )
            with suppress(grpc.RpcError):  # It may have no vote any more, or not yet.
                stub.Confirm(wire.ConfirmRequest(confirmation=encode(vote)), timeout=PATIENCE_S)

    def named(self, name: str) -> list[Any]:
        return [event for event in self.events if type(event).__name__ == name]

    def wait_for(self, name: str, count: int = 1) -> Any:
        """The event of this name, once there are so many."""
        until = time.monotonic() + PATIENCE_S
        with self._news:
            while len(self.named(name)) < count:
                if self._failed:
                    raise self._failed[0]
                left = until - time.monotonic()
                assert left > 0, f"no {name}: {self.events[-20:]}"
                self._news.wait(min(left, 0.2))
        return self.named(name)[count - 1]

    def crash(self) -> None:
        """End without any of the steps of a proper end, as far as that goes in one process."""
        if self._loop is not None and self._task is not None and self._thread is not None:
            with suppress(RuntimeError):  # It may have ended by itself.
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()
            self._thread = None
        while self._voting:
            self._voting.pop().join(PATIENCE_S)

    def channel(self) -> grpc.Channel:
        return dial(f"127.0.0.1:{self.port}")


def lane_to(port: int, ticket: bytes, source: str = "127.0.0.1") -> socket.socket:
    lane = socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=(source, 0))
    lane.sendall(LANE + ticket)
    return lane


def framed(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


class Refused(grpc.RpcError):
    """How the service ended an upload."""

    def __init__(self, refused: wire.Refused) -> None:
        super().__init__(refused.why)
        (self._code,) = [code for code in grpc.StatusCode if code.value[0] == refused.code]

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return str(self)


class Upload:
    """An upload under way, over its lane. It says what it is told to, and gives the answers.

    header: None to say nothing yet.
    """

    def __init__(self, lane: socket.socket, header: Any, *, await_outcome: bool = False) -> None:
        self.granted: wire.Granted | None = None
        self.lane = lane
        self._refused: Refused | None = None
        if header is not None:
            raw = header if isinstance(header, bytes) else encode(header)
            request = wire.UploadRequest(header=raw, await_outcome=await_outcome)
            self.say_raw(framed(request.SerializeToString()))

    def __enter__(self) -> "Upload":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> "Upload":
        return self

    def __next__(self) -> wire.UploadReply:
        """The next answer. Raises Refused, and StopIteration at the end of the lane."""
        try:
            (size,) = LENGTH.unpack(self._read(LENGTH.size))
            reply = wire.UploadReply.FromString(self._read(size))
        except ConnectionError:
            raise StopIteration from None
        if reply.HasField("refused"):
            self._refused = Refused(reply.refused)
            raise self._refused
        return reply

    def _read(self, size: int) -> bytes:
        said = b""
        while len(said) < size:
            more = self.lane.recv(size - len(said))
            if not more:
                raise ConnectionError
            said += more
        return said

    def hear(self) -> wire.UploadReply:
        """The next answer, which has to come."""
        reply = next(self, None)
        assert reply is not None, "the service has ended the lane without a word"
        if reply.WhichOneof("answer") == "granted":
            self.granted = reply.granted
        return reply

    def say(self, *tiles: Any) -> None:
        """Send these tiles, or any bytes in their places, as frames."""
        raw = [tile if isinstance(tile, bytes) else bytes(tile.ciphertext) for tile in tiles]
        self.say_raw(b"".join(map(framed, raw)))

    def say_raw(self, data: bytes) -> None:
        with suppress(OSError):  # The other side may have ended it.
            self.lane.sendall(data)

    def hang_up(self) -> None:
        with suppress(OSError):
            self.lane.shutdown(socket.SHUT_WR)

    def finish(self, sealed: SealedUpdate) -> str:
        """Send what is missing, and return the last answer."""
        assert self.granted is not None
        self.say(*sealed.tiles[self.granted.next :])
        return str(self.hear().WhichOneof("answer"))

    def ends_with(self) -> grpc.StatusCode:
        """How the service ended it; OK if it did not say."""
        with suppress(Refused):
            list(self)
        return grpc.StatusCode.OK if self._refused is None else self._refused.code()

    def close(self) -> None:
        self.lane.close()


@dataclass
class Speaker:
    """A client by hand: each step of the wire, to be done right or wrong."""

    service: Running
    name: str
    identity: Identity
    stub: Any
    client: Client | None = None

    def greet(self, **lies: Any) -> None:
        """Prove that this connection is the client's own."""
        nonce = self.stub.Greet(wire.GreetRequest(), timeout=PATIENCE_S).nonce
        path = federation_file.charter_path(self.service.config)
        federation = federation_file.load_charter(path).federation.id
        hello = ClientHello(federation, nonce, self.name, UNSIGNED)
        signed = self.identity.sign(replace(hello, **lies))
        self.stub.Greet(wire.GreetRequest(hello=encode(signed)), timeout=PATIENCE_S)

    def status(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.stub.GetStatus(wire.StatusRequest()).json)
        return shown

    def charter(self) -> Charter:
        return decode(Charter, self.stub.GetCharter(wire.CharterRequest()).charter)

    def introduce(self, nonce: bytes = b"n" * 32, **lies: Any) -> Introduction:
        challenge = self.identity.sign(replace(Challenge(nonce, self.name, UNSIGNED), **lies))
        request = wire.IntroduceRequest(challenge=encode(challenge))
        return decode(Introduction, self.stub.Introduce(request, timeout=PATIENCE_S).introduction)

    def join(self) -> Joined:
        federation = self.charter().federation
        told = self.introduce()
        attested = Attested(
            told.offer.key, told.receipt_key, told.offer.federation, told.evidence.kind, bytes(32)
        )
        joined = self.follow_chain(told.receipt_key).adopt(federation).join(told.offer, attested)
        self.client = joined.client
        return joined

    def follow_chain(self, receipt_key: bytes) -> Client:
        """All charters and receipts, one by one."""
        after = self.client.last.number if self.client and self.client.last else 0
        client = self.client
        for link in self.stub.GetChain(wire.ChainRequest(after=after)):
            if link.WhichOneof("link") == "charter":
                federation = decode(Charter, link.charter).federation
                if client is None:
                    client = Client(self.name, self.identity, federation, receipt_key)
                elif federation.revision > client.federation.revision:
                    client = client.adopt(federation)
            else:
                assert client is not None
                client = client.follow(decode(Certified, link.certified))
        assert client is not None
        self.client = client
        return client

    def ticket(self) -> bytes:
        """For one upload."""
        ticket = os.urandom(TICKET_BYTES)
        request = wire.TicketRequest(ticket_digest=sha256(ticket).digest())
        self.stub.AnnounceTicket(request, timeout=PATIENCE_S)
        return ticket

    def begin(
        self, header: Any, *, await_outcome: bool = False, lane: socket.socket | None = None
    ) -> "Upload":
        """An upload by hand, over this lane if it is given."""
        lane = lane or self.open_lane(self.ticket())
        return Upload(lane, header, await_outcome=await_outcome)

    def upload(self, sealed: SealedUpdate, tiles: Any = None) -> list[wire.UploadReply]:
        """The replies to an upload whose lane ends behind these tiles, or all that are missing."""
        with self.begin(sealed.header) as sending:
            replies = [sending.hear()]
            first = replies[0].granted.next
            sending.say(*(sealed.tiles[first:] if tiles is None else tiles))
            sending.hang_up()
            return [*replies, *sending]

    def send(self, update: np.ndarray, metrics: dict[str, float] | None = None) -> Joined:
        joined = self.join()
        replies = self.upload(joined.seal(update, metrics).sealed)
        assert replies[-1].WhichOneof("answer") == "complete"
        return joined

    def outcome(self, joined: Joined) -> wire.OutcomeReply:
        """Once it is settled: others confirm."""
        offer = joined.offer
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            reply = self.ask(offer.number, offer.round_id)
            if reply.WhichOneof("outcome") not in {"pending", "proposed"}:
                return reply
            time.sleep(0.01)
        raise AssertionError(f"round {offer.number} is not settled: {self.service.events[-20:]}")

    def ask(self, number: int, round_id: bytes = b"", leaf: bytes = b"") -> wire.OutcomeReply:
        """What can be said of a number now."""
        request = wire.OutcomeRequest(number=number, round_id=round_id, leaf=leaf, voter=self.name)
        return self.stub.AwaitOutcome(request, timeout=PATIENCE_S)

    def follow(self, joined: Joined) -> Receipt:
        certified = decode(Certified, self.outcome(joined).certified)
        self.client = joined.client.follow(certified)
        return certified.receipt

    def model(self, digest: bytes) -> np.ndarray:
        """The model, if its lane is not cut off."""
        (whole,) = self.slices(digest)
        with self.open_lane(whole.ticket) as lane:
            raw = b"".join(iter(lambda: lane.recv(2**20), b""))
        assert len(raw) == 4 * whole.length
        return np.frombuffer(raw, "<f4")

    def slices(self, digest: bytes) -> list[wire.ModelSlice]:
        return list(self.stub.GetModel(wire.ModelRequest(digest=digest)).slices)

    def open_lane(self, ticket: bytes, source: str = "127.0.0.1") -> socket.socket:
        return lane_to(self.service.port, ticket, source)


def _free_port() -> int:
    """A port that no connection gets by itself, on any address of this machine."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port


@contextmanager
def starting(folders: Path) -> Iterator[Callable[..., Running]]:
    services: list[Running] = []

    def make(
        *,
        run: bool = True,
        settings: dict[str, Any] | None = None,
        voters: tuple[str, ...] | None = None,
        **plan: Any,
    ) -> Running:
        asked: dict[str, Any] = {
            "clients": 5,
            "f": 1,
            "workers": 2,
            "masking": "none",
            "dimension": 100,
        } | plan
        port = _free_port()
        root = folders / f"federation-{len(services)}"
        service = Running(root, Plan(**asked), port, voters)
        federation_folder.create(service.root, service.plan, now=int(time.time()) - 60)
        service.set(listen=f"127.0.0.1:{port}", **(settings or {}))
        service.sign()
        services.append(service)
        if run:
            service.start()
        return service

    yield make
    for service in services:
        service.crash()


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Running]]:
    """start(clients=5, f=1, ...) gives a service that runs; more starts are more folders."""
    with starting(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def start_once(tmp_path_factory) -> Iterator[Callable[..., Running]]:
    """For a service that many tests share."""
    with starting(tmp_path_factory.mktemp("shared")) as make:
        yield make


@contextmanager
def speaking() -> Iterator[Callable[[Running, int | str], Speaker]]:
    channels: list[grpc.Channel] = []

    def make(
        service: Running, who: int | str, identity: Identity | None = None, *, greets: bool = True
    ) -> Speaker:
        name = f"client-{who}" if isinstance(who, int) else who
        channel = service.channel()
        channels.append(channel)
        identity = identity or service.identity(name)
        speaker = Speaker(service, name, identity, EnclaveStub(channel))
        if greets:
            with suppress(grpc.RpcError):  # It may be a stranger to the service.
                speaker.greet()
        return speaker

    yield make
    for channel in channels:
        channel.close()


@pytest.fixture
def speaker() -> Iterator[Callable[[Running, int | str], Speaker]]:
    with speaking() as make:
        yield make


@pytest.fixture(scope="module")
def speaker_once() -> Iterator[Callable[[Running, int | str], Speaker]]:
    with speaking() as make:
        yield make


@contextmanager
def coming_from(port: int, source: str = "127.0.0.2") -> Iterator[int]:
    """A port that leads to the service. To the service, its users come from this address."""
    listening = socket.create_server(("127.0.0.1", 0))
    sockets: list[socket.socket] = [listening]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(2**16):
                sink.sendall(data)
        except OSError:
            pass
        for each in (source, sink):
            _shut(each)

    def accept() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
            sockets.extend((near, far))
            for pair in ((near, far), (far, near)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        for each in sockets:
            _shut(each)
            each.close()


def _shut(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def other_address() -> Callable[..., Any]:
    """other_address(port, source) is a context with a port that leads to the service."""
    return coming_from


@pytest.fixture(scope="session")
def certificate() -> tuple[bytes, bytes]:
    """A certificate for localhost, and its key, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return made.public_bytes(serialization.Encoding.PEM), private
