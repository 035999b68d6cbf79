"""Fuzzed messages, truncated streams and broken connections at the open port of a real enclave.

Whatever comes, the enclave neither crashes nor hangs nor grows, and honest clients finish the round
that was open all the time.
"""

import asyncio
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from ostraka.attestation.claims import Attested
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.files import read_identity
from ostraka.messages import (
    Answer,
    Challenge,
    ChannelAccept,
    Charter,
    ClientHello,
    Confirmation,
    Introduction,
    Proposal,
    WorkerHello,
)
from ostraka.protocol.client import Client
from ostraka.transport import LANE, LENGTH, TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

N, F, D = 6, 1, 1000
HOSTILE = f"client-{N}"
SERVICE = "/ostraka.v1.Enclave"
METHODS = [method.name for method in wire.DESCRIPTOR.services_by_name["Enclave"].methods]
AT_A_TIME = 48
PATIENCE_S = 60.0
GLANCE_S = 0.3


# Mutations of bytes. Each takes a generator and a message's bytes.


def flip_bits(rng, data):
    raw = np.frombuffer(data, np.uint8).copy()
    for bit in rng.integers(8 * len(raw), size=rng.integers(1, 4)):
        raw[bit // 8] ^= 1 << bit % 8
    return raw.tobytes()


def truncate(rng, data):
    return data[: rng.integers(len(data))]


def extend(rng, data):
    return data + rng.bytes(rng.integers(1, 40))


def cut_out(rng, data):
    start, stop = np.sort(rng.integers(len(data) + 1, size=2))
    return data[:start] + data[stop:]


def double(rng, data):
    start, stop = np.sort(rng.integers(len(data) + 1, size=2))
    return data[:stop] + data[start:]


def lie_about_a_length(rng, data):
    """Length prefixes of our own encoding are eight bytes, most of them zero."""
    start = max(0, data.find(bytes(6), rng.integers(len(data))))
    return data[:start] + rng.bytes(8) + data[start + 8 :]


def noise(rng, data):
    return rng.bytes(rng.integers(300))


def bulk(rng, data):
    return rng.bytes(200_000)


MUTATIONS = (flip_bits, truncate, extend, cut_out, double, lie_about_a_length, noise, bulk)


def pick(rng, options):
    return options[rng.integers(len(options))]


def mutate(rng, data):
    return pick(rng, MUTATIONS)(rng, data) if data else noise(rng, data)


@dataclass
class Talk:
    """One stream of messages to one method. cut: it is broken off behind the last of them.

    lane: what goes over an upload's lane, if a ticket is given: the request, and tiles.
    """

    method: str
    messages: list[bytes]
    cut: bool
    lane: list[bytes]


TICKET = bytes(TICKET_BYTES)  # that a conversation announces
ON_A_LANE = "on a lane"  # what is said there, beside the methods

# What a call of asyncio raises when the other side has ended it. The last one has no public name.
ENDED = (
    grpc.RpcError,
    asyncio.InvalidStateError,
    asyncio.CancelledError,
    cygrpc.ExecuteBatchError,
)


def fuzz(rng, genuine):
    """A genuine conversation of an enrolled client or a worker, with something wrong in it."""
    method = pick(rng, METHODS)
    messages = list(genuine[pick(rng, METHODS) if rng.random() < 0.05 else method])
    change = rng.random()
    if change < 0.7:
        place = rng.integers(len(messages))
        messages[place] = mutate(rng, messages[place])
    elif change < 0.8:
        rng.shuffle(messages)
    elif change < 0.9:
        messages.insert(rng.integers(len(messages) + 1), pick(rng, messages))
    messages = messages[: rng.integers(len(messages) + 1)] or messages
    lane = list(genuine[ON_A_LANE])
    place = rng.integers(len(lane))
    lane[place] = mutate(rng, lane[place])
    return Talk(method, messages, rng.random() < 0.2, lane)


async def bring(port, ticket, said):
    """What a lane is told, with a glance at the answer to each, before it is broken off."""
    answers = b""
    with suppress(OSError):
        reader, lane = await asyncio.open_connection("127.0.0.1", port)
        lane.write(LANE + ticket)
        for each in said:
            lane.write(each)
            await lane.drain()
            with suppress(TimeoutError):
                async with asyncio.timeout(GLANCE_S):
                    answers += await reader.read(2**16)
        lane.close()
    assert b"service failed" not in answers, said


async def converse(channel, talk, port):
    """How the conversation ended."""
    # Whoever asks rightly for the outcome waits for the round to end.
    patience = GLANCE_S if talk.method == "AwaitOutcome" else PATIENCE_S
    call = channel.stream_stream(f"{SERVICE}/{talk.method}")(timeout=patience)
    try:
        for message in talk.messages:
            await call.write(message)
        if talk.cut:
            call.cancel()
        else:
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                if talk.method == "AnnounceTicket":
                    await bring(port, TICKET, talk.lane)
    except ENDED:
        pass
    return await call.code(), str(await call.details())


def worker_hello(nonce, federation):
    return WorkerHello(nonce, federation, "worker-1", bytes(32), UNSIGNED)


async def work_badly(channel, identity, genuine, rng):
    """An enrolled worker that has proved itself, and then says anything at all."""
    call = channel.stream_stream(f"{SERVICE}/Work")(timeout=PATIENCE_S)
    with suppress(*ENDED):
        welcome = wire.EnclaveSays.FromString(await call.read()).welcome
        hello = identity.sign(worker_hello(welcome.nonce, welcome.federation))
        await call.write(wire.WorkerSays(hello=encode(hello)).SerializeToString())
        for message in genuine["Work"][1:]:
            await call.write(mutate(rng, message))
    call.cancel()
    return await call.code(), str(await call.details())


async def send_fuzzed(address, genuine, identity, rng, count):
    """So many messages, in conversations of one or more. Counts how those ended."""
    channels = [own_channel(address) for _ in range(8)]
    port = int(address.rpartition(":")[2])
    ends: Counter[str] = Counter()
    sent = 0

    async def keep_talking(channel):
        nonlocal sent
        while sent < count:
            talk = fuzz(rng, genuine)
            sent += len(talk.messages)
            start = time.monotonic()
            if talk.method == "Work" and rng.random() < 0.5:
                code, details = await work_badly(channel, identity, genuine, rng)
            else:
                code, details = await converse(channel, talk, port)
            assert time.monotonic() - start < PATIENCE_S, (talk.method, code)
            assert "service failed" not in details, talk
            assert "Unexpected" not in details, talk
            ends[code.name] += 1

    await asyncio.gather(*(keep_talking(channels[i % 8]) for i in range(AT_A_TIME)))
    for channel in channels:
        await channel.close()
    return ends


def own_channel(address):
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


# HTTP/2 by hand, for what no library would send.

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 1, 4


def frame(kind, payload=b"", *, flags=0, stream=0):
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def setting(name, value):
    return name.to_bytes(2) + value.to_bytes(4)


def literal(name, value):
    """A header field, neither indexed nor compressed."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def headers(method):
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": f"{SERVICE}/{method}".encode(),
        b":authority": b"enclave",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    return b"".join(literal(*each) for each in fields.items())


def message(data):
    return b"\0" + len(data).to_bytes(4) + data


OPEN = PREFACE + frame(SETTINGS)


def call(rng, stream=1):
    return frame(HEADERS, headers(pick(rng, METHODS)), flags=END_HEADERS, stream=stream)


def random_frames(rng):
    frames = (
        frame(
            int(rng.integers(12)),
            rng.bytes(rng.integers(100)),
            flags=int(rng.integers(256)),
            stream=int(rng.integers(4)),
        )
        for _ in range(rng.integers(1, 30))
    )
    return OPEN + b"".join(frames)


BROKEN = {
    "a lane with any ticket": lambda rng: LANE + rng.bytes(rng.integers(1, 500)),
    "half of a ticket": lambda rng: (LANE + rng.bytes(TICKET_BYTES))[: rng.integers(40)],
    "a lane of another version": lambda rng: LANE[:-1] + b"\xff" + rng.bytes(100),
    "any bytes": lambda rng: rng.bytes(rng.integers(1, 5000)),
    "another protocol": lambda rng: b"GET / HTTP/1.1\r\nHost: enclave\r\n\r\n",
    "a TLS hello": lambda rng: b"\x16\x03\x01\x02\x00\x01" + rng.bytes(512),
    "half a greeting": lambda rng: PREFACE[: rng.integers(1, len(PREFACE))],
    "a greeting and no more": lambda rng: OPEN,
    "a flood of settings": lambda rng: OPEN + frame(SETTINGS) * 2000,
    "settings of any bytes": lambda rng: PREFACE + frame(SETTINGS, rng.bytes(rng.integers(100))),
    "a window of no size": lambda rng: (
        PREFACE
        + frame(SETTINGS, setting(4, 0))
        + call(rng)
        + frame(DATA, message(b""), flags=END_STREAM, stream=1)
    ),
    "a window that overflows": lambda rng: OPEN + frame(WINDOW, b"\x7f\xff\xff\xff") * 2,
    "a flood of pings": lambda rng: OPEN + frame(PING, bytes(8)) * 2000,
    "a flood of resets": lambda rng: (
        OPEN
        + b"".join(
            call(rng, stream) + frame(RESET, bytes(4), stream=stream) for stream in range(1, 400, 2)
        )
    ),
    "huge headers": lambda rng: (
        OPEN
        + frame(HEADERS, headers("GetStatus"), stream=1)
        + frame(CONTINUATION, rng.bytes(16_000), stream=1) * 20
    ),
    "headers without an end": lambda rng: (
        OPEN
        + frame(HEADERS, headers("GetStatus"), stream=1)
        + frame(CONTINUATION, literal(b"x", b"y" * 100), stream=1) * 500
    ),
    "headers that do not decode": lambda rng: (
        OPEN + frame(HEADERS, rng.bytes(rng.integers(1, 300)), flags=END_HEADERS, stream=1)
    ),
    "a call without a request": lambda rng: OPEN + call(rng),
    "half a request": lambda rng: (
        OPEN + call(rng) + frame(DATA, message(bytes(1000))[:100], stream=1)
    ),
    "half a frame": lambda rng: OPEN + call(rng) + b"\x00\x40\x00\x00\x00\x00\x00\x00\x01half",
    "a frame above the limit": lambda rng: (
        OPEN + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(99)
    ),
    "a message above the limit": lambda rng: (
        OPEN + call(rng) + frame(DATA, b"\0\xff\xff\xff\xff" + bytes(9000), stream=1)
    ),
    "a message that says it is compressed": lambda rng: (
        OPEN + call(rng) + frame(DATA, b"\1\0\0\0\5abcde", flags=END_STREAM, stream=1)
    ),
    "data of no stream": lambda rng: OPEN + frame(DATA, rng.bytes(100), stream=7),
    "any frames": random_frames,
}


async def connect_badly(port, rng, kept):
    """One broken connection. Some are left open, as many as there is room for."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return
    with suppress(OSError):
        writer.write(pick(rng, list(BROKEN.values()))(rng))
        await writer.drain()
        if rng.random() < 0.5:
            async with asyncio.timeout(0.02):
                await reader.read(2**16)
    if len(kept) < 100 and rng.random() < 0.3:
        kept.append(writer)
    else:
        with suppress(OSError):
            writer.transport.abort() if rng.random() < 0.5 else writer.close()


async def send_broken(port, rng, count):
    kept: list[asyncio.StreamWriter] = []
    left = iter(range(count))

    async def keep_connecting():
        for _ in left:
            with suppress(TimeoutError):
                await connect_badly(port, rng, kept)

    await asyncio.gather(*(keep_connecting() for _ in range(16)))
    return kept


def conversations(deployment):
    """What an enrolled client and a worker would say, for each method, and on a lane."""
    identity = read_identity(deployment.key(HOSTILE))
    challenge = identity.sign(Challenge(b"n" * 32, HOSTILE, UNSIGNED))
    introduce = wire.IntroduceRequest(challenge=encode(challenge))
    with grpc.insecure_channel(deployment.address) as channel:
        stub = EnclaveStub(channel)
        charter = stub.GetCharter(wire.CharterRequest()).charter
        told = decode(Introduction, stub.Introduce(introduce).introduction)
    attested = Attested(
        told.offer.key, told.receipt_key, told.offer.federation, told.evidence.kind, bytes(32)
    )
    client = Client(HOSTILE, identity, decode(Charter, charter).federation)
    sealed = client.join(told.offer, attested).seal(np.ones(D, np.float32)).sealed
    tiles = [bytes(tile.ciphertext) for tile in sealed.tiles]
    frames = b"".join(LENGTH.pack(len(tile)) + tile for tile in tiles)
    work = [
        wire.WorkerSays(hello=encode(worker_hello(bytes(32), bytes(32)))),
        wire.WorkerSays(accept=encode(ChannelAccept(bytes(32), bytes(1200), UNSIGNED))),
        wire.WorkerSays(answer=encode(Answer(bytes(32), bytes(500)))),
        wire.WorkerSays(sorry="no"),
    ]
    federation, offer = client.federation, told.offer
    proposal = identity.sign(
        Proposal(federation.id, 1, offer.previous, b"o" * 32, b"c" * 32, UNSIGNED)
    )
    vote = identity.sign(Confirmation(federation.id, 1, digest(proposal), HOSTILE, UNSIGNED))
    hello = identity.sign(ClientHello(federation.id, bytes(32), HOSTILE, UNSIGNED))
    said: dict[str, list[Any]] = {
        "GetCharter": [wire.CharterRequest()],
        "Greet": [wire.GreetRequest(hello=encode(hello))],
        "Introduce": [introduce],
        "Prove": [wire.ProveRequest(challenge=encode(challenge))],
        "Confirm": [wire.ConfirmRequest(confirmation=encode(vote))],
        "Remind": [wire.RemindRequest(proposal=encode(proposal))],
        "AnnounceTicket": [wire.TicketRequest(ticket_digest=sha256(TICKET).digest())],
        "AwaitOutcome": [wire.OutcomeRequest(number=1, round_id=told.offer.round_id)],
        "GetChain": [wire.ChainRequest(after=1)],
        "GetModel": [wire.ModelRequest(digest=told.offer.model)],
        "Work": work,
        "Join": [
            wire.ShardSays(hello=bytes(400)),
            wire.ShardSays(sealed=wire.Sealed(messages=[bytes(1000)])),
        ],
        "Adopt": [wire.AdoptRequest(charter=charter)],
        "GetStatus": [wire.StatusRequest()],
    }
    assert said.keys() == set(METHODS)
    raw = {method: [each.SerializeToString() for each in said[method]] for method in said}
    request = wire.UploadRequest(header=encode(sealed.header)).SerializeToString()
    return raw | {ON_A_LANE: [LENGTH.pack(len(request)) + request, frames]}


def resident_mib(process):
    status = Path(f"/proc/{process.child.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
def test_fuzzed_messages_and_broken_connections(deploy, logged, scale, capsys):
    deployment = deploy(
        clients=N,
        f=F,
        workers=3,
        dimension=D,
        settings={
            "workers": 2,
            "tile": 300,
            "count": 1,
            "deadline_s": 3600,
            "idle_s": 5,
            "requests_per_minute": 10**6,
        },
    )
    enclave = deployment.enclave()
    for number in (2, 3):
        deployment.worker(number)
    updates = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
    # This client waits for the outcome all the time.
    clients = [deployment.client(1, updates[0], timeout=3600)]
    enclave.wait_for("UploadCompleted")
    genuine = conversations(deployment)
    identity = read_identity(deployment.key("worker-1"))
    rng = np.random.default_rng(2021)

    def attack(count):
        async def main():
            broken = await send_broken(deployment.port, rng, count // 10)
            ends = await send_fuzzed(deployment.address, genuine, identity, rng, count)
            for writer in broken:
                writer.close()
            return ends

        return asyncio.run(main())

    attack(300)  # What the allocator and the libraries take once is not growth.
    before, count, start = resident_mib(enclave), scale(3_000, 100_000), time.monotonic()
    ends = attack(count)
    assert enclave.child.poll() is None
    after = resident_mib(enclave)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{count} messages, {count // 10} broken connections in "
            f"{time.monotonic() - start:.0f} s; {before:.0f} MiB before, {after:.0f} after; "
            f"{dict(ends)}"
        )
    assert after - before < 50
    assert ends["OK"]

    clients += [deployment.client(number, updates[number - 1]) for number in range(2, N + 1)]
    for client in clients[: N - 1]:
        client.wait_for("done 1 True")
    enclave.wait_for("RoundPublished")
    (published,) = logged(enclave, "RoundPublished")
    assert published["participants"] >= N - 1
    rejected = {each["client"] for each in logged(enclave, "ClientRejected")}
    assert rejected <= {HOSTILE}
    assert logged(enclave, "AttemptStarted")[-1]["workers"] == ["worker-2", "worker-3"]
    assert enclave.stop() == 0
    assert not [line for line in enclave.lines if '"level": "error"' in line or '"trace":' in line]
