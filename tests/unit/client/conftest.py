"""An enclave's service on loopback that drives the real roles, and can be made to misbehave."""

import os
import random
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import grpc
import numpy as np
import pytest

import ostraka
from ostraka.attestation.claims import KeyBinding, in_process
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.client import connection, session, upload
from ostraka.client.connection import UNCONFIRMED
from ostraka.client.memory import MemoryFile
from ostraka.config import Federation, Manifest, Member, Span, Tensor, Terms, cut_into_spans
from ostraka.core.optimiser import FEDAVG, ServerState, part_of, start
from ostraka.crypto import updates
from ostraka.crypto.identity import Identity, check_signature
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import OpenError, UpdateRejected
from ostraka.files import write_identity
from ostraka.merkle import path_to
from ostraka.messages import (
    SIMULATION,
    Abandon,
    Certified,
    Challenge,
    Charter,
    Confirmation,
    Evidence,
    Introduction,
    Link,
    Proposal,
    Receipt,
    UpdateHeader,
    UpdateTile,
    milestones,
    vector_digest,
)
from ostraka.protocol import host as driver
from ostraka.protocol.client import Client as Role
from ostraka.protocol.confirm import Ballot, confirm, leaf
from ostraka.protocol.enclave import Cohort, Enclave, Memory, Proposed, Shard, Threads
from ostraka.protocol.local import InMemory, LocalShard
from ostraka.transport import LANE, LENGTH, TICKET_BYTES, chain_link
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveServicer, add_EnclaveServicer_to_server

PATIENCE_S = 60.0  # for what comes in the end, however slow the machine is
SERVICE = threading.local()  # has `seals` while the service seals for others
AUTHORITY, ENCLAVE = Identity(b"a" * 32), Identity(b"e" * 32)
ID = b"i" * 32
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
id = "{id}"
maskings = ["none"]
confirms = ["clients", "none"]
rules = ["arc+nnm+geometric-median"]
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


def number_of(link: Link) -> int:
    """Of a link that ends a number; 0 for a charter."""
    if isinstance(link, Charter):
        return 0
    return link.number if isinstance(link, Abandon) else link.receipt.number


Lanes: TypeAlias = dict[bytes, Any]  # by ticket; what a connection is put into


class Giving:
    """Where a model goes out. refused: whether a lane is closed before its first byte."""

    def __init__(self, raw: Callable[[], bytes], refused: Callable[[], bool]) -> None:
        self._raw, self._refused = raw, refused

    def put(self, near: socket.socket) -> None:
        with near, suppress(OSError):
            if not self._refused():
                near.sendall(self._raw())
            socket.socket.shutdown(near, socket.SHUT_WR)
            near.recv(1)


class Aborted(Exception):
    """An upload was refused."""


class UploadContext:
    """What gRPC's context is to a call: over it, an upload is refused."""

    def __init__(self, near: socket.socket) -> None:
        self.near = near

    def say(self, reply: wire.UploadReply) -> None:
        encoded = reply.SerializeToString()
        self.near.sendall(LENGTH.pack(len(encoded)) + encoded)

    def abort(self, code: grpc.StatusCode, why: str) -> None:
        self.say(wire.UploadReply(refused=wire.Refused(code=code.value[0], why=why)))
        raise Aborted

    def time_remaining(self) -> None:
        return None

    def is_active(self) -> bool:
        with suppress(BlockingIOError):
            return self.near.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        return True

    def frame(self) -> bytes:
        return read(self.near, *LENGTH.unpack(read(self.near, LENGTH.size)))


class Talking:
    """An upload's lane: a request, and answers to it."""

    def __init__(self, upload: Callable[[Any, Any], Any]) -> None:
        self._upload = upload

    def put(self, near: socket.socket) -> None:
        context = UploadContext(near)
        with near, suppress(OSError, Aborted):
            try:
                for reply in self._upload(wire.UploadRequest.FromString(context.frame()), context):
                    context.say(reply)
            except (OSError, Aborted):
                raise
            except Exception:  # noqa: BLE001 (as gRPC answers for what fails)
                context.abort(grpc.StatusCode.UNKNOWN, "the service failed")


class Service(EnclaveServicer):
    """One federation. `lies` replace answers; `failures` come before any; both by method name, and
    for a model "Slices" has where it is and "GetModel" its bytes.

    watch: called when a method is. arrived: every message of every upload, stream by stream. auto:
    an outcome is proposed as soon as alice's update is complete, and two others confirm it, so that
    one vote is left to her.
    """

    auto_voters = ("bob", "carol")

    def __init__(
        self,
        identity: Identity = ENCLAVE,
        first: ServerState | None = None,
        charter: Charter | None = None,
    ) -> None:
        self.state = first or first_state()
        self.identity = identity
        self.links: list[Link] = [charter or make_charter()]
        self.code, self.platform, self.debug = CODE, PLATFORM, False
        self.lies: dict[str, Callable[[Any], Any]] = {}
        self.watch: dict[str, Callable[[], None]] = {}
        self.failures: dict[str, list[tuple[grpc.StatusCode, str]]] = defaultdict(list)
        self.breaks: list[int] = []  # after so many tiles, stream by stream
        self.cuts: list[int] = []  # likewise, of the lane alone
        self.spoils: list[tuple[grpc.StatusCode, str]] = []  # after the first tile
        self.arrived: list[list[Any]] = []
        self.calls: list[str] = []
        self.introduces_next = False  # with the answer to a vote
        self.greetings = 0
        self.confirmations: list[Confirmation] = []  # that were shown over the wire
        self.reminders: list[Proposal] = []
        self.forgotten: Proposal | None = None
        self.pending: Proposed | None = None
        self.ballot: Ballot | None = None
        self.auto, self.finished = True, False
        self.lanes: Lanes = {}
        self.refusals = 0  # of lanes for the model, from now on
        self.moved = threading.Condition()
        self.restart()

    # What happens to an enclave.

    @property
    def certified(self) -> list[Certified]:
        return [each for each in self.links if isinstance(each, Certified)]

    @property
    def receipts(self) -> list[Receipt]:
        return [each.receipt for each in self.certified]

    @property
    def charter(self) -> Charter:
        return [each for each in self.links if isinstance(each, Charter)][-1]

    @property
    def head(self) -> Receipt | Abandon | None:
        ends = [each for each in self.links if not isinstance(each, Charter)]
        if not ends:
            return None
        return ends[-1].receipt if isinstance(ends[-1], Certified) else ends[-1]

    @property
    def electors(self) -> Federation:
        """Of the charter that the head names."""
        charters = [each.federation for each in self.links if isinstance(each, Charter)]
        if self.head is None:
            return charters[0]
        return next(each for each in charters if each.digest() == self.head.federation)

    def restart(self) -> None:
        """An open round is lost, and opened again under fresh keys; a pending one goes on."""
        with self.moved:
            self._open_round()
            if self.pending is not None:
                self.ballot = self.enclave.ballot(self.pending.pending)
            self.moved.notify_all()

    def _open_round(self) -> None:
        self.enclave = Enclave(
            self.charter.federation,
            self.identity,
            head=self.head,
            electors=self.electors,
            state=self.state,
            evidence=SIMULATION,
        )
        self.spool = InMemory()
        self.intake = self.enclave.open_round(Memory(0), self.spool)

    def back(self, links: list[Link], state: ServerState) -> None:
        """The host restores an older state, whatever is pending now."""
        self.links, self.state = list(links), state
        self.pending = self.ballot = self.forgotten = None
        self.restart()

    def publish(self, value: float = 0.0) -> Receipt:
        """With an update of so many everywhere for everybody who has not sent one."""
        self.fill(value)
        return self.close()

    def fill(self, value: float = 0.0) -> None:
        for name in PEOPLE.keys() - self.intake.complete:
            self._send(name, self.intake.offer, value)

    def close(self) -> Receipt:
        """Propose an outcome, which all but alice confirm."""
        self.propose()
        return self.release()

    def propose(self, *voters: str) -> Proposal:
        """Close the round, and have these confirm what comes of it."""
        cohort = self.intake.close()
        host = self._host(cohort)
        measured = host.measure(cohort)
        with self.moved:
            self.pending = host.finish(cohort, measured)
            self.ballot = self.enclave.ballot(self.pending.pending)
            for voter in voters:
                self.vote(voter)
            self.moved.notify_all()
        return self.pending.pending.proposal

    def _host(self, cohort: Cohort) -> driver.Host:
        return driver.Host(Threads(), {}, lambda event: None)

    def vote(self, voter: str) -> None:
        """Have another one confirm what is pending."""
        assert self.ballot is not None
        proposal = self.ballot.proposal
        who, federation = PEOPLE[voter], proposal.federation
        self.ballot.add(confirm(proposal, federation, proposal.number, voter=voter, identity=who))

    def release(self) -> Receipt:
        """Publish what is pending, confirmed by all but alice if not by enough yet."""
        with self.moved:
            assert self.pending is not None
            assert self.ballot is not None
            for voter in sorted(self.ballot.awaited - {"alice"}):
                if not self.ballot.confirmed:
                    self.vote(voter)
            pending = self.pending.pending
            certificate = self.ballot.certificate(pending.salt)
            self.links.append(Certified(pending.receipt, certificate))
            self.state = self.pending.state
            self.pending = self.ballot = None
            self.restart()
        return pending.receipt

    def adopt(self, new: Charter) -> None:
        self.links.append(new)
        self.restart()

    def _send(self, name: str, offer: Any, value: float) -> None:
        role = Role(name, PEOPLE[name], self.charter.federation, last=self.head)
        role = replace(role, electors=self.electors)
        joined = role.join(offer, in_process(offer, self.identity.public))
        SERVICE.seals = True
        values = np.full(joined.client.federation.terms.dimension, value, "<f4")
        sealed = joined.seal(values).sealed
        SERVICE.seals = False
        self.intake.accept(sealed.header)
        for tile in sealed.tiles:
            self.take(name, tile)

    def take(self, client: str, tile: UpdateTile) -> None:
        self.intake.take(client, tile)

    # What it answers.

    def _begin(self, method: str, context: grpc.ServicerContext) -> None:
        self.calls.append(method)
        self.watch.get(method, lambda: None)()
        if self.failures[method]:
            context.abort(*self.failures[method].pop(0))

    def _tell(self, method: str, honest: Any) -> Any:
        return self.lies.get(method, lambda answer: answer)(honest)

    def Greet(self, request, context):  # noqa: N802
        """Take every greeting. Calls that are counted begin behind it."""
        self.greetings += bool(request.hello)
        self._announced(request)
        return wire.GreetReply(nonce=bytes(32))

    def AnnounceTicket(self, request, context):  # noqa: N802
        self._announced(request)
        return wire.TicketReply()

    def _announced(self, request: Any) -> None:
        if request.ticket_digest:
            self.lanes[request.ticket_digest] = Talking(self.upload)

    def GetCharter(self, request, context):  # noqa: N802
        self._begin("GetCharter", context)
        return wire.CharterReply(charter=self._tell("GetCharter", encode(self.charter)))

    def Introduce(self, request, context):  # noqa: N802
        self._begin("Introduce", context)
        if self.finished:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "finished")
        if self.ballot is not None or self.forgotten is not None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, UNCONFIRMED)
        return self._introduced(request)

    def _introduced(self, request):
        self._announced(request)
        challenge = decode(Challenge, request.challenge)
        check_signature(challenge, PEOPLE[challenge.client].public)
        answer = self._tell("Introduce", self.introduction(challenge.nonce))
        raw = answer if isinstance(answer, bytes) else encode(answer)
        held = request.holds == digest(self.charter) and "GetCharter" not in self.lies
        charter = b"" if held else self._tell("GetCharter", encode(self.charter))
        return wire.IntroduceReply(introduction=raw, charter=charter)

    def introduction(self, nonce: bytes) -> Introduction:
        bound = self.intake.binding(nonce)
        quote = self.platform.quote(bound.report_data(), mrenclave=self.code, debug=self.debug)
        evidence = Evidence(SIMULATION, quote, (self.platform.root_der,))
        return Introduction(self.intake.offer, bound.receipt_key, evidence)

    def Prove(self, request, context):  # noqa: N802
        self._begin("Prove", context)
        challenge = decode(Challenge, request.challenge)
        check_signature(challenge, PEOPLE[challenge.client].public)
        key = self.identity.public
        bound = KeyBinding(challenge.nonce, key, self.charter.federation.digest())
        quote = self.platform.quote(bound.report_data(), mrenclave=self.code, debug=self.debug)
        evidence = Evidence(SIMULATION, quote, (self.platform.root_der,))
        reply = wire.ProveReply(receipt_key=key, evidence=encode(evidence))
        return self._tell("Prove", reply)

    def GetChain(self, request, context):  # noqa: N802
        self._begin("GetChain", context)
        shown = set(map(digest, milestones(self.certified))) if request.newest else None
        links = [
            each
            for each in self.links
            if isinstance(each, Charter)
            or (number_of(each) > request.after and (shown is None or digest(each) in shown))
        ]
        for each in self._tell("GetChain", links):
            if isinstance(each, bytes):
                yield wire.ChainLink(certified=each)
            else:
                yield wire.ChainLink() if each is None else chain_link(each)

    def GetModel(self, request, context):  # noqa: N802
        self._begin("GetModel", context)
        if request.digest != vector_digest(self.state.model):
            context.abort(grpc.StatusCode.NOT_FOUND, "not the present model")
        return wire.ModelReply(slices=self._tell("Slices", self._slices()))

    def _slices(self) -> list[wire.ModelSlice]:
        ticket = os.urandom(TICKET_BYTES)
        self.lanes[ticket] = Giving(self._model_at_once, self._refuses)
        return [wire.ModelSlice(ticket=ticket, length=len(self.state.model))]

    def _refuses(self) -> bool:
        self.refusals -= 1
        return self.refusals >= 0

    def AwaitOutcome(self, request, context):  # noqa: N802
        self._begin("AwaitOutcome", context)
        with self.moved:
            self.moved.wait_for(
                lambda: self._outcome(request).WhichOneof("outcome") != "pending",
                timeout=min(0.1, context.time_remaining() or 0.1),
            )
            return self._tell("AwaitOutcome", self._outcome(request))

    def _ahead(self, request, context):
        """Answer behind an upload or a vote, unless the question itself is to fail."""
        return None if self.failures["AwaitOutcome"] else self.AwaitOutcome(request, context)

    def _outcome(self, request):
        if self.forgotten is not None:
            return wire.OutcomeReply(rolled_back=encode(self.forgotten))
        for each in self.certified:
            if each.receipt.number == request.number:
                return wire.OutcomeReply(certified=encode(each))
        ballot = self.ballot
        if ballot is not None and ballot.proposal.number == request.number:
            if request.voter and request.voter not in ballot.awaited:
                return wire.OutcomeReply(pending=wire.Pending())
            return wire.OutcomeReply(proposed=self._proposed(request.leaf))
        if request.round_id in (b"", self.intake.offer.round_id):
            return wire.OutcomeReply(pending=wire.Pending())
        return wire.OutcomeReply(void=wire.Void())

    def _proposed(self, leaf):
        assert self.pending is not None
        assert self.ballot is not None
        path = path_to(self.pending.pending.leaves, leaf)
        proposal = encode(self.ballot.proposal)
        return wire.Proposed(proposal=proposal, path=path or (), included=path is not None)

    def Confirm(self, request, context):  # noqa: N802
        self._begin("Confirm", context)
        confirmation = decode(Confirmation, request.confirmation)
        with self.moved:
            self.confirmations.append(confirmation)
            head = self.head
            if head is None or confirmation.number > head.number:
                try:
                    if self.ballot is None:
                        raise OpenError("Confirmation")
                    self.ballot.add(confirmation)
                    if self.ballot.confirmed:
                        self.release()
                except OpenError as refused:
                    context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refused))
        outcome = self._ahead(request.then, context) if request.HasField("then") else None
        reply = wire.ConfirmReply(outcome=outcome)
        if reply.outcome.certified and not self.failures["GetModel"]:
            reply.model = self._model_at_once()
        if reply.outcome.certified and self.introduces_next and not self.finished:
            reply.introduced.CopyFrom(self._introduced(request.next))
        return self._tell("Confirm", reply)

    def _model_at_once(self) -> bytes:
        return self._tell("GetModel", self.state.model.tobytes())

    def Remind(self, request, context):  # noqa: N802
        self._begin("Remind", context)
        proposal = decode(Proposal, request.proposal)
        check_signature(proposal, self.identity.public)
        self.reminders.append(proposal)
        settled = self.head.number if self.head else 0
        if proposal.number > max(settled, self.ballot.proposal.number if self.ballot else 0):
            self.forgotten = proposal
        return wire.RemindReply()

    def upload(self, request, context):
        stream: list[Any] = []
        self.arrived.append(stream)
        self._begin("Upload", context)
        header, number = decode(UpdateHeader, request.header), self.intake.offer.number
        stream.append(header)
        try:
            if self.intake.next_tile(header.client, header.upload_id) is None:
                self.intake.accept(header)
        except UpdateRejected as rejected:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(rejected.reason))
        first = self.intake.next_tile(header.client, header.upload_id) or 0
        yield self._tell("Granted", wire.UploadReply(granted=wire.Granted(next=first)))
        left = self.breaks.pop(0) if self.breaks else TILES
        cut = first + self.cuts.pop(0) if self.cuts else TILES
        for index in range(first, TILES):
            if left == 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            left -= 1
            if index == cut:
                raise ConnectionError("the lane is cut")
            if self.spoils:
                context.frame()
                context.abort(*self.spoils.pop())
            stream.append(UpdateTile(header.upload_id, index, context.frame()))
            self.take(header.client, stream[-1])
        yield from self._completed(header, number, context)

    def _completed(self, header, number, context):
        if header.client in self.intake.complete:
            if self.auto:
                self.fill()
                self.propose(*self.auto_voters)
            asked = wire.OutcomeRequest(
                number=number, round_id=header.round_id, leaf=leaf(header), voter=header.client
            )
            yield self._tell("Complete", wire.UploadReply(complete=wire.Complete()))
            if (outcome := self._ahead(asked, context)) is not None:
                yield wire.UploadReply(outcome=outcome)


SHARDED_D = 40_001
SHARDED = Terms(
    Manifest((Tensor("weight", (SHARDED_D,)),)), f=0, masking="none", tile=4096, clip_norm=1e3
)


class ShardService(EnclaveServicer):
    """Where one shard is: it takes tiles, and gives its slice of the model.

    cuts: after so many tiles it ends the lane, lane by lane. refusals: of lanes for its slice, from
    now on. lie: replaces its slice. came: the numbers of the tiles that it was sent.
    """

    def __init__(self, lead: "ShardedService", span: Span) -> None:
        self.lead, self.span = lead, span
        self.lanes: Lanes = {}
        self.cuts: list[int] = []
        self.came: list[int] = []
        self.refusals = 0
        self.lie: Callable[[bytes], bytes] = lambda honest: honest
        self.watch: Callable[[int], None] = lambda tile: None  # called before one is taken
        self.host = Host(self)

    @property
    def end(self) -> int:
        return self.span.first + self.span.tiling.count

    def slice(self) -> wire.ModelSlice:
        """Of the present model, and of no other."""
        ticket, model = os.urandom(TICKET_BYTES), self.lead.state.model
        raw = model[self.span.part].tobytes
        self.lanes[ticket] = Giving(lambda: self.lie(raw()), lambda: self._refuses(model))
        address, length = self.host.address, self.span.length
        return wire.ModelSlice(address=address, length=length, ticket=ticket)

    def _refuses(self, model: Any) -> bool:
        self.refusals -= 1
        return self.refusals >= 0 or model is not self.lead.state.model

    def receive(self, header: UpdateHeader, first: int, lane: socket.socket) -> None:
        """Take what is missing. Raises OSError."""
        left = self.cuts.pop(0) if self.cuts else None
        for tile in range(first, self.end):
            if left == tile - first:
                lane.close()
                raise ConnectionError("the lane ended")
            self.watch(tile)
            ciphertext = read(lane, *LENGTH.unpack(read(lane, LENGTH.size)))
            self.came.append(tile)
            self.lead.take(header.client, UpdateTile(header.upload_id, tile, ciphertext))


class ShardedService(Service):
    """A lead, whose shards have ports of their own. The roles are real, and share a process.

    arrived is not kept. idle_s: for a lane to be opened.
    """

    idle_s = PATIENCE_S

    def __init__(self, count: int) -> None:
        model = np.random.default_rng(1).normal(size=SHARDED_D).astype("<f4")
        self.shards = [ShardService(self, each) for each in cut_into_spans(SHARDED.tiling, count)]
        # A client that comes again finds all that the call before it has read.
        self._receiving: dict[str, threading.Lock] = defaultdict(threading.Lock)
        signed = make_charter(terms=SHARDED, initial=vector_digest(model))
        super().__init__(first=start(model, FEDAVG), charter=signed)

    def down(self) -> None:
        for each in self.shards:
            each.host.down()

    def _open_round(self) -> None:
        federation = self.charter.federation
        self.enclave = Enclave(
            federation,
            self.identity,
            head=self.head,
            electors=self.electors,
            evidence=SIMULATION,
            leads=True,
        )
        self.local = [
            LocalShard(
                Shard(federation, Identity.generate(), span, part_of(self.state, span.part)), {}
            )
            for span in (each.span for each in self.shards)
        ]
        self.intake = self.enclave.lead_round(
            [each.span for each in self.shards], lambda number, it: self.local[number].open(it)
        )

    def _host(self, cohort: Cohort) -> driver.Host:
        tell = lambda event: None  # noqa: E731
        columns = [each.close(cohort, Threads(), tell) for each in self.local]
        return driver.Host(Threads(), {}, tell, shards=columns)

    def _slices(self) -> list[wire.ModelSlice]:
        return [each.slice() for each in self.shards]

    def _model_at_once(self) -> bytes:
        return b""

    def upload(self, request, context):
        self._begin("Upload", context)
        header, number = decode(UpdateHeader, request.header), self.intake.offer.number
        try:
            if self.intake.next_tile(header.client, header.upload_id) is None:
                self.intake.accept(header)
        except UpdateRejected as rejected:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(rejected.reason))
        with self._receiving[header.client]:
            lanes = [self._grant(header, at) for at in range(len(self.shards))]
            yield self._tell("Granted", wire.UploadReply(granted=wire.Granted(shards=lanes)))
            self._receive(header, lanes, context)
        yield from self._completed(header, number, context)

    def _grant(self, header: UpdateHeader, at: int) -> wire.ShardLane:
        shard, ticket = self.shards[at], os.urandom(TICKET_BYTES)
        shard.lanes[ticket] = SimpleQueue()
        first = self.intake.next_tile(header.client, header.upload_id, at)
        return wire.ShardLane(address=shard.host.address, ticket=ticket, next=first)

    def _receive(self, header: UpdateHeader, lanes: Any, context: UploadContext) -> None:
        """All shards at the same time. If one lane ends, all do, and so does the upload."""
        opened: list[socket.socket] = []
        over = threading.Event()

        def end() -> None:
            over.set()
            for each in opened:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        def receive(shard: ShardService, granted: Any) -> None:
            until = time.monotonic() + self.idle_s
            while not over.is_set() and context.is_active() and time.monotonic() < until:
                with suppress(Empty):
                    opened.append(shard.lanes[granted.ticket].get(timeout=0.05))
                    break
            else:
                raise ConnectionError("the lane was not opened")
            if over.is_set():
                end()
            shard.receive(header, granted.next, opened[-1])

        missing = [
            each for each in zip(self.shards, lanes, strict=True) if each[1].next < each[0].end
        ]
        with ThreadPoolExecutor(8, thread_name_prefix="fake-shards") as pool:
            reading = [pool.submit(receive, *each) for each in missing]
            for each in as_completed(reading):
                if each.exception() is not None:
                    end()
        refused = [each.exception() for each in reading if each.exception() is not None]
        if refused:
            context.abort(grpc.StatusCode.ABORTED, str(refused[0]))


def read(near: socket.socket, size: int) -> bytes:
    whole = b""
    while len(whole) < size:
        more = near.recv(size - len(whole))
        if not more:
            raise ConnectionError("the other side has ended")
        whole += more
    return whole


def _listening(port: int) -> socket.socket:
    """On this port, or on one that no connection and no server of another test gets by itself: a
    service that was down finds it free again."""
    if port:
        return socket.create_server(("127.0.0.1", port))
    while True:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", random.randrange(20_000, 32_000)))


class Door:
    """Takes in who comes to a port: lanes go to the service, everybody else to gRPC behind it."""

    def __init__(
        self, port: int, behind: int, lanes: dict[bytes, Any], tls: ssl.SSLContext | None
    ) -> None:
        self._listening = _listening(port)
        self.port: int = self._listening.getsockname()[1]
        self._behind, self._lanes, self._tls = behind, lanes, tls
        self._sockets: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(
            target=work, args=arguments, name="fake-service-door", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self._sockets.append(near)
                self._start(self._take_in, near)

    def _take_in(self, near: socket.socket) -> None:
        with suppress(OSError):
            if near.recv(1, socket.MSG_PEEK) == LANE[:1]:
                assert read(near, len(LANE)) == LANE
                ticket = read(near, TICKET_BYTES)
                # Of uploads, the service knows digests.
                lane = self._lanes.get(ticket) or self._lanes.pop(sha256(ticket).digest(), None)
                if lane is None:
                    near.shutdown(socket.SHUT_RDWR)
                    return
                if self._tls is not None:
                    near = self._tls.wrap_socket(near, server_side=True)
                    self._sockets.append(near)
                lane.put(near)
                return
            far = socket.create_connection(("127.0.0.1", self._behind))
            self._sockets.append(far)
            self._start(self._pump, far, near)
            self._pump(near, far)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for each in self._sockets:
            each.close()


class Host:
    """Where a service runs: it can go away and come back under the same address."""

    def __init__(self, service: Any, tls: tuple[Path, Path] | None = None) -> None:
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
            behind, context = self._server.add_insecure_port("127.0.0.1:0"), None
        else:
            certificate, key = self._tls
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            credentials = grpc.ssl_server_credentials(
                [(key.read_bytes(), certificate.read_bytes())]
            )
            behind = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()
        self._door = Door(self.port, behind, self.service.lanes, context)
        self.port = self._door.port

    def down(self) -> None:
        if self._server is not None:
            self._door.close()
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
            seen.append(result.whole())
        return result

    monkeypatch.setattr(updates, "seal", seal)
    return seen


@pytest.fixture
def went_out(monkeypatch):
    """The updates that alice has sealed, each with the number of its round."""
    seen, real = [], updates.seal

    def seal(update, **options):
        if not getattr(SERVICE, "seals", False):
            seen.append((options["offer"].number, update.widened()))
        return real(update, **options)

    monkeypatch.setattr(updates, "seal", seal)
    return seen


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(connection, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(connection, "LONGEST_WAIT_S", 0.2)
    monkeypatch.setattr(upload, "_PENDING_S", 0.01)
    monkeypatch.setattr(session, "_POLL_S", 0.01)


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

    def start_one(tls: tuple[Path, Path] | None = None) -> Host:
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
def sharded(connect):
    """sharded(2) makes a federation whose enclave has two shards, and alice, its client."""
    with ExitStack() as running:

        def start_one(count: int, **options: Any) -> tuple[ShardedService, ostraka.Client]:
            service = ShardedService(count)
            running.callback(service.down)
            lead = Host(service)
            running.callback(lead.down)
            return service, running.enter_context(connect(address=lead.address, **options))

        yield start_one


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


@pytest.fixture
def other_policy(folder) -> Callable[..., Path]:
    """other_policy(id="...") is the policy of another federation of the same authority."""

    def write(**changes: str) -> Path:
        write_policy(folder, "other.toml", **changes)
        return folder / "other.toml"

    return write


def write_policy(folder: Path, name: str = "policy.toml", **changes: str) -> None:
    values = {
        "authority": AUTHORITY.public.hex(),
        "id": ID.hex(),
        "root": PLATFORM.root_digest.hex(),
        "code": CODE.hex(),
        **changes,
    }
    (folder / name).write_text(POLICY.format(**values))


@pytest.fixture
def charter() -> Callable[..., Charter]:
    """A federation like the first one but for some fields, signed by its authority."""
    return make_charter


@pytest.fixture
def told() -> list[Any]:
    """The events of alice."""
    return []


@pytest.fixture
def kept(folder) -> MemoryFile:
    """Where alice's memory of this federation is, unless she asks for another place."""
    return MemoryFile(folder / f"alice.{ID.hex()[:16]}.memory", "alice", ID)


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
