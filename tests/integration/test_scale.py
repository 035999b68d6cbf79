"""A thousand clients in one round, and a large model: what the enclave takes for it stays small.

Run as a program, this file is the clients: light senders in one process, whose updates are sealed
by the real client role. Figures are printed, and added to the file that OSTRAKA_FIGURES names.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka import federation_file
from ostraka.attestation.claims import Attested
from ostraka.config import default_tile
from ostraka.core import rules
from ostraka.enclave.budget import mib, needs
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.files import read_identity
from ostraka.merkle import is_under
from ostraka.messages import (
    Certified,
    Challenge,
    Charter,
    ClientHello,
    Introduction,
    Proposal,
)
from ostraka.protocol.client import Client
from ostraka.transport import LANE, LENGTH, TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

TILE_BYTES = 4 * default_tile(10**6)
LOST, TRIES = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE), 5


def row(number, d, n, f):
    """Client `number`'s update, from 1: the honest ones lie together, the last f oppose them."""
    centre = np.random.default_rng(0).normal(size=d)
    update = centre + 0.3 * np.random.default_rng(number).normal(size=d)
    return (update if number <= n - f else -3 * update).astype(np.float32)


def honest_mean(d, n, f):
    return sum(row(number, d, n, f).astype(np.float64) for number in range(1, n - f + 1)) / (n - f)


class Sender:
    """One client: a connection of its own, and its part of a round."""

    def __init__(self, address, root, name):
        self.channel = grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.stub = EnclaveStub(self.channel)
        self.address = address
        self.name = name
        self.identity = read_identity(root / "keys" / f"{name}.key")

    async def greet(self, federation):
        """Prove that the connection is this client's."""
        nonce = (await self.stub.Greet(wire.GreetRequest())).nonce
        hello = self.identity.sign(ClientHello(federation.id, nonce, self.name, UNSIGNED))
        await self.stub.Greet(wire.GreetRequest(hello=encode(hello)))

    async def join(self, federation, held=b""):
        """held: the digest of the charter, if this client has it."""
        await self.greet(federation)
        challenge = self.identity.sign(Challenge(os.urandom(32), self.name, UNSIGNED))
        self.ticket = os.urandom(TICKET_BYTES)
        announced = sha256(self.ticket).digest()
        request = wire.IntroduceRequest(
            challenge=encode(challenge), holds=held, ticket_digest=announced
        )
        reply = await self.stub.Introduce(request)
        told = decode(Introduction, reply.introduction)
        attested = Attested(
            told.offer.key, told.receipt_key, told.offer.federation, told.evidence.kind, bytes(32)
        )
        return Client(self.name, self.identity, federation).join(told.offer, attested)

    async def upload(self, sealed):
        talk, lane = await self._open(self.address, self.ticket)
        request = wire.UploadRequest(header=encode(sealed.header)).SerializeToString()
        lane.write(LENGTH.pack(len(request)) + request)
        shards = (await self._hear(talk, "granted")).shards
        opened = [lane]
        for shard in shards:
            opened.append((await self._open(shard.address, shard.ticket))[1])
        for each, span in zip(opened[1:] or opened, sealed.spans, strict=True):
            await self._send(each, sealed, span)
        await self._hear(talk, "complete")
        for each in opened:
            each.close()

    async def _open(self, address, ticket):
        host, _, port = address.rpartition(":")
        reader, lane = await asyncio.open_connection(host, int(port))
        lane.write(LANE + ticket)
        return reader, lane

    async def _hear(self, talk, kind):
        (size,) = LENGTH.unpack(await talk.readexactly(LENGTH.size))
        reply = wire.UploadReply.FromString(await talk.readexactly(size))
        assert reply.WhichOneof("answer") == kind, reply
        return getattr(reply, kind)

    async def _send(self, lane, sealed, span):
        """The tiles of one shard, or all of them."""
        memory = memoryview(bytearray(sealed.largest))
        for index in range(span.first, span.first + span.tiling.count):
            size = sealed.put(index, memory)
            lane.write(LENGTH.pack(size) + memory[:size])
            await lane.drain()

    async def model(self, digested):
        """The model (d,), from whoever has it."""
        reply = await self.stub.GetModel(wire.ModelRequest(digest=digested))
        parts = []
        for each in reply.slices:
            host, _, port = (each.address or self.address).rpartition(":")
            reader, lane = await asyncio.open_connection(host, int(port))
            lane.write(LANE + each.ticket)
            parts.append(await reader.readexactly(4 * each.length))
            lane.close()
        return np.frombuffer(b"".join(parts), "<f4")

    async def read_chain(self, number):
        """The certified receipt of this number, which is too long for the answer about it."""
        async for link in self.stub.GetChain(wire.ChainRequest(after=number - 1)):
            if link.WhichOneof("link") == "certified":
                return link.certified
        raise AssertionError(number)

    async def confirm(self, joined, leaf, *, once=False):
        """Wait for the round's certified receipt, and confirm it on the way, if it waits for that.

        Gives the answer's bytes, and how many bytes each part of confirming took. once: do not wait
        for others to confirm.
        """
        offer = joined.offer
        taken: Counter[str] = Counter()
        request = wire.OutcomeRequest(
            number=offer.number, round_id=offer.round_id, leaf=leaf, voter=self.name
        )
        while True:
            reply = await self.stub.AwaitOutcome(request)
            match reply.WhichOneof("outcome"):
                case "certified":
                    return reply.certified, taken
                case "published":
                    return await self.read_chain(offer.number), taken
                case "proposed" if once:
                    return b"", taken + await self._vote(joined.client, leaf, reply.proposed)
                case "proposed":
                    taken += await self._vote(joined.client, leaf, reply.proposed)
                case other:
                    assert other == "pending"

    async def _vote(self, client, leaf, proposed):
        proposal = decode(Proposal, proposed.proposal)
        assert proposed.included
        assert is_under(proposal.cohort, leaf, proposed.path)
        confirmation = encode(client.vote(proposal).confirmation())
        await self.stub.Confirm(wire.ConfirmRequest(confirmation=confirmation))
        return Counter(
            confirmations=1,
            proposal_bytes=len(proposed.proposal),
            path_bytes=sum(map(len, proposed.path)),
            confirmation_bytes=len(confirmation),
        )


async def send_all(address, root, n, f, at_a_time):
    """A round of n clients. All are connected before any of them sends; so many seal at a time."""
    senders = [Sender(address, root, f"client-{number}") for number in range(1, n + 1)]
    reply = await senders[0].stub.GetCharter(wire.CharterRequest())
    federation = decode(Charter, reply.charter).federation
    d, gate = federation.terms.dimension, asyncio.Semaphore(at_a_time)
    joined = await asyncio.gather(*(sender.join(federation) for sender in senders))

    async def send(number):
        sender, join = senders[number - 1], joined[number - 1]
        async with gate:
            submitted = join.sealing(join.encode(row(number, d, n, f)))
            await sender.upload(submitted.sealed)
        leaf = submitted.leaf
        del submitted  # It is large, and not needed any more.
        return await sender.confirm(join, leaf)

    ended = await asyncio.gather(*(send(number) for number in range(1, n + 1)))
    say("certified")
    ((content, _), *_) = ended
    assert {each for each, _ in ended} == {content}
    taken = sum((each for _, each in ended), Counter(certificates_bytes=n * len(content)))
    certified = decode(Certified, content)
    receipt = joined[0].client.follow(certified).last
    np.save(root / "model.npy", await senders[0].model(receipt.model))
    for sender in senders:
        await sender.channel.close()
    assert certified.certificate is not None
    taken["votes"] = len(certified.certificate.votes)
    say("confirmed", json.dumps(taken))
    say("receipt", receipt.participants, receipt.kept, len(receipt.rejected))


async def send_some(address, root, n, f, first, last, at_a_time):  # noqa: PLR0917
    """The clients from `first` to `last`: so many at a time are connected, each by itself.

    Each comes three times: to send, to confirm, and for the certified receipt.
    """
    everybody, gate = range(first, last + 1), asyncio.Semaphore(at_a_time)
    greeter = Sender(address, root, f"client-{first}")
    charter = decode(Charter, (await greeter.stub.GetCharter(wire.CharterRequest())).charter)
    federation, held = charter.federation, digest(charter)
    d, retried = federation.terms.dimension, Counter[str]()

    async def by_turns(what, work):
        async def once(number):
            sender = Sender(address, root, f"client-{number}")
            try:
                return await work(sender, number)
            finally:
                await sender.channel.close()

        async def turn(number):
            """A connection may be lost, one in some thousands. Clients come again."""
            async with gate:
                for _ in range(TRIES):
                    try:
                        return await once(number)
                    except grpc.aio.AioRpcError as lost:
                        if lost.code() not in LOST:
                            raise
                        retried[what] += 1
                raise AssertionError(f"{number} has lost {TRIES} connections")

        done = await asyncio.gather(*map(turn, everybody))
        say(what)
        return dict(zip(everybody, done, strict=True))

    async def send(sender, number):
        join = await sender.join(federation, held)
        submitted = join.sealing(join.encode(row(number, d, n, f)))
        await sender.upload(submitted.sealed)
        return join, submitted.leaf

    async def confirm(sender, number):
        await sender.greet(federation)
        return await sender.confirm(*sent[number], once=True)

    async def receive(sender, number):
        await sender.greet(federation)
        content, taken = await sender.confirm(*sent[number])
        assert not taken["confirmations"]
        return sha256(content).digest(), content if number == first else b""

    sent = await by_turns("sent", send)
    voted = await by_turns("voted", confirm)
    received = await by_turns("certified", receive)
    assert len({digested for digested, _ in received.values()}) == 1
    taken = sum((each for _, each in voted.values()), Counter(clients=len(everybody)))
    certified = decode(Certified, received[first][1])
    taken += Counter({f"retried, {what}": count for what, count in retried.items()})
    taken["certificate_bytes"] = len(received[first][1])
    assert certified.certificate is not None
    taken["votes"] = len(certified.certificate.votes)
    receipt = sent[first][0].client.follow(certified).last
    np.save(root / f"model-{first}.npy", await greeter.model(receipt.model))
    say("confirmed", json.dumps(taken))
    say("receipt", receipt.participants, receipt.kept, len(receipt.rejected))


def say(*words):
    print(*words, flush=True)  # noqa: T201


def seconds_to_open(n, d, threads):
    """AES-256-GCM over all updates, tile by tile, each with its own key and already in memory.

    By as many threads as the enclave has, at a time when it rests. The median of five.
    """
    tiles = -(-4 * d // TILE_BYTES)
    keys = [AESGCM(os.urandom(32)) for _ in range(n)]
    plain = np.random.default_rng(1).bytes(TILE_BYTES)
    sealed = [
        [key.encrypt(i.to_bytes(12, "big"), plain, bytes(32)) for i in range(tiles)] for key in keys
    ]

    def open_rows(thread):
        out = bytearray(TILE_BYTES)
        for key, row_tiles in list(zip(keys, sealed, strict=True))[thread::threads]:
            for i, tile in enumerate(row_tiles):
                key.decrypt_into(i.to_bytes(12, "big"), tile, bytes(32), out)

    with ThreadPoolExecutor(threads) as pool:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(open_rows, range(threads)))
            times.append(time.perf_counter() - start)
    return sorted(times)[2]


# A thousand clients on two cores: their keys and seals alone take minutes where others run, too.
PLAY_S = 900.0


class Watch(threading.Thread):
    """Notes the processor time of a process, many times a second."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self._process = process
        self._noted: list[tuple[float, float]] = []
        self._done = threading.Event()

    def run(self):
        while not self._done.wait(0.005):
            self._noted.append((time.time(), self._process.cpu_s))

    def stop(self):
        self._done.set()
        self.join()

    def cpu_at(self, moment):
        """What the process had used by then, on a line between the notes before and after."""
        moments, used = zip(*self._noted, strict=True)
        return float(np.interp(moment, moments, used))


@dataclass
class Played:
    """One round, and what it took."""

    enclave: Any
    seconds: float  # from the first client's start to the model in its hands
    close: float  # from the last byte of an update to the published model
    confirm: float  # from the proposal to the published model
    cpu: dict[str, float]  # of the enclave: the whole round, and parts of it
    taken: dict[str, int]  # by confirming: counts, and bytes of all clients
    stages: dict[str, float]

    @property
    def confirm_share(self):
        """Of the enclave's CPU: to hold an outcome and its model, to have it confirmed, to publish.

        Ratios of one process in one round hardly depend on the machine, and on what else it does.
        """
        return (self.cpu["hold"] + self.cpu["confirm and publish"]) / self.cpu["round"]

    def figures(self, **more):
        return {
            "peak_mib": round(self.enclave.rss_mib, 1),
            "round_s": round(self.seconds, 2),
            "close_s": round(self.close, 3),
            "stages_s": self.stages,
            "confirm_s": round(self.confirm, 3),
            "cpu_s": {part: round(seconds, 3) for part, seconds in self.cpu.items()},
            "confirm_share": round(self.confirm_share, 4),
            "confirmed": self.taken,
            "bytes_each": self.bytes_each,
            **more,
            "load": os.getloadavg()[0],
        }

    @property
    def bytes_each(self):
        sizes = {name: size for name, size in self.taken.items() if name.endswith("_bytes")}
        return {name: size // self.taken["clients"] for name, size in sizes.items()}


def assert_robust(deployment, *, n, f, d):
    """The default rule shortens a few of the honest updates a little, and weighs f by next to 0."""
    off = np.load(deployment.root / "model.npy") - (honest := honest_mean(d, n, f))
    assert np.linalg.norm(off) < 5e-4 * np.linalg.norm(honest)


def play(deployment, logged, *, n, f, at_a_time, kept=None):
    """A round of n senders and two workers. kept: how many have a weight; all, unless given."""
    enclave = deployment.enclave()
    watch = Watch(enclave)
    watch.start()
    deployment.workers()
    enclave.wait_for("WorkerJoined", after=enclave.wait_for("WorkerJoined"))
    begun, start = enclave.cpu_s, time.perf_counter()
    arguments = (deployment.address, str(deployment.root), str(n), str(f), str(at_a_time))
    senders = deployment.spawn("senders", __file__, *arguments)
    senders.wait_for("certified", seconds=PLAY_S)
    ended = enclave.cpu_s
    senders.wait_for(f"receipt {n} {kept or n} 0", seconds=PLAY_S)
    elapsed = time.perf_counter() - start
    watch.stop()
    enclave.wait_for("RoundPublished")
    (attempt,) = logged(enclave, "AttemptStarted")
    assert attempt["workers"] == ["worker-1", "worker-2"]
    assert len(logged(enclave, "UploadCompleted")) == n
    last_in = when(logged(enclave, "UploadCompleted")[-1])
    proposed = when(logged(enclave, "RoundProposed")[0])
    published = when(logged(enclave, "RoundPublished")[0])
    (timed,) = logged(enclave, "RoundTimed")
    stages = {name.removesuffix("_s"): timed[name] for name in timed if name.endswith("_s")}
    (taken,) = (line.split(" ", 1)[1] for line in senders.lines if line.startswith("confirmed"))
    hold = watch.cpu_at(proposed) - watch.cpu_at(proposed - stages["hold"])
    return Played(
        enclave,
        elapsed,
        close=published - last_in,
        confirm=published - proposed,
        cpu={
            "round": ended - begun,
            "hold": min(hold, stages["hold"]),  # One thread does it.
            "confirm and publish": watch.cpu_at(published) - watch.cpu_at(proposed),
            "show it to all": ended - watch.cpu_at(published),
        },
        taken={"clients": n} | json.loads(taken),
        stages=stages,
    )


def when(event):
    return datetime.fromisoformat(event["time"]).timestamp()


def report(capsys, **figures):
    with capsys.disabled():
        say(f"\n{json.dumps(figures)}")
    if (path := os.environ.get("OSTRAKA_FIGURES")) is not None:
        with Path(path).open("a") as file:
            file.write(f"{json.dumps(figures)}\n")


@pytest.mark.slow
@pytest.mark.parametrize("n", [150, pytest.param(1000, marks=pytest.mark.soak)])
def test_many_clients_in_one_round(deploy, logged, capsys, n):
    d, f = 100_000, n // 5
    deployment = deploy(
        clients=n,
        f=f,
        dimension=d,
        settings={"count": 1, "deadline_s": 1800, "connections": 4096, "memory_mib": 32},
    )
    played = play(deployment, logged, n=n, f=f, at_a_time=n)
    report(capsys, test="many clients", clients=n, dimension=d, **played.figures())
    assert n >= played.taken["confirmations"] >= played.taken["votes"] >= (n + f) // 2 + 1
    assert_robust(deployment, n=n, f=f, d=d)
    assert played.enclave.rss_mib < 400
    assert played.enclave.stop() == 0


@pytest.mark.slow
def test_many_clients_of_whom_a_rule_selects(deploy, logged):
    n, f, d = 150, 30, 10_000
    deployment = deploy(
        clients=n,
        f=f,
        dimension=d,
        composition=rules.compose(rules.PAPER),
        settings={"count": 1, "deadline_s": 1800, "connections": 4096},
    )
    play(deployment, logged, n=n, f=f, at_a_time=n, kept=n - f)
    model = np.load(deployment.root / "model.npy")
    np.testing.assert_allclose(model, honest_mean(d, n, f), rtol=1e-5, atol=1e-6)


@pytest.mark.soak
def test_a_large_model(deploy, logged, capsys):
    n, f, d, threads, budget = 64, 12, 3_500_000, 2, 384  # MiB, for some of the rows
    deployment = deploy(
        clients=n,
        f=f,
        dimension=d,
        settings={
            "count": 1,
            "deadline_s": 600,
            "sketch": 16_384,
            "threads": threads,
            "memory_mib": budget,
        },
    )
    played = play(deployment, logged, n=n, f=f, at_a_time=2)
    peak = played.enclave.rss_mib
    ratio = {}
    for count in (1, threads):
        aes = seconds_to_open(n, d, count)
        ratio[f"aes_open_s, {count} threads"] = round(aes, 3)
        ratio[f"ratio to it, {count} threads"] = round(played.close / aes, 1)
    report(capsys, test="large model", clients=n, dimension=d, **played.figures(**ratio))
    assert_robust(deployment, n=n, f=f, d=d)
    assert peak < budget + 320
    assert played.confirm_share <= 0.05
    assert played.enclave.stop() == 0


@pytest.mark.soak
@pytest.mark.parametrize("shards", [1, 2], ids=["one enclave", "two shards"])
@pytest.mark.parametrize("workers", [0, 2], ids=["measured inside", "two workers"])
def test_ten_thousand_clients(deploy, logged, capsys, workers, shards):
    """On a sketch, in one enclave or by a lead and its shards.

    20,000 descriptors are enough: not all clients are connected at a time.
    """
    n, d, processes = int(os.environ.get("OSTRAKA_CLIENTS", "10000")), 20_000, 2
    f, rows_mib = n // 5, 1024
    deployment = deploy(
        clients=n,
        f=f,
        dimension=d,
        workers=workers,
        shards=shards,
        masking="exact" if workers else "none",
        composition=rules.compose(rules.PAPER),
        settings={
            "count": 1,
            "deadline_s": 7200,
            "measure_s": 3600,
            "linger_s": 3600,
            "sketch": 4096,
            "connections": 4096,
            "memory_mib": rows_mib,
        },
    )
    enclave = deployment.enclave()
    parts = [deployment.shard(number) for number in range(shards if shards > 1 else 0)]
    if deployment.workers():
        enclave.wait_for("WorkerJoined", after=enclave.wait_for("WorkerJoined"))
    federation = federation_file.load(deployment.config).federation()
    budget_mib = mib(needs(federation).total) + rows_mib
    start, share = time.perf_counter(), -(-n // processes)
    senders = [
        deployment.spawn(
            f"senders-{first}",
            *(__file__, deployment.address, str(deployment.root), str(n), str(f)),
            *map(str, (first, min(first + share - 1, n), 200)),
        )
        for first in range(1, n + 1, share)
    ]
    reached = {}
    for what in ("sent", "voted", "certified", f"receipt {n} {n - f} 0"):
        for each in senders:
            each.wait_for(what, seconds=7200)
        reached[what.split()[0]] = round(time.perf_counter() - start, 1)
        with capsys.disabled():
            say(f"\n{what} after {reached[what.split()[0]]} s, {enclave.rss_mib:.0f} MiB")
    (attempt,) = logged(enclave, "AttemptStarted")
    assert attempt["workers"] == ["worker-1", "worker-2"][:workers]
    (timed,) = logged(enclave, "RoundTimed")
    told = [line.partition(" ") for each in senders for line in each.lines]
    taken = [json.loads(figures) for what, _, figures in told if what == "confirmed"]
    report(
        capsys,
        test="ten thousand clients",
        clients=n,
        dimension=d,
        workers=workers,
        peak_mib=round(enclave.rss_mib),
        shards_peak_mib=[round(each.rss_mib) for each in parts],
        budget_mib=budget_mib,
        seconds=reached,
        cpu_s=round(enclave.cpu_s),
        stages_s={name: timed[name] for name in timed if name.endswith("_s")},
        confirmed=taken,
        load=os.getloadavg()[0],
    )
    models = [np.load(path) for path in deployment.root.glob("model-*.npy")]
    assert len(models) == processes
    for model in models:
        np.testing.assert_allclose(model, honest_mean(d, n, f), rtol=1e-4, atol=1e-5)
    assert min(each["votes"] for each in taken) >= (n + f) // 2 + 1
    assert max(each.rss_mib for each in (enclave, *parts)) < budget_mib
    assert enclave.stop() == 0


if __name__ == "__main__":
    address, root, *counts = sys.argv[1:]
    play_part = send_all if len(counts) == len(("n", "f", "at a time")) else send_some
    asyncio.run(play_part(address, Path(root), *map(int, counts)))
