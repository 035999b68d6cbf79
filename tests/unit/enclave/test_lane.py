"""Lanes: frames go into one memory, each call decides about its own, and TLS is TLS there too."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from ostraka.client.connection import Connection, Patience
from ostraka.client.upload import Upload
from ostraka.config import Member
from ostraka.enclave import lane
from ostraka.enclave.downloads import Downloads
from ostraka.enclave.front import Front
from ostraka.enclave.lane import Gate, Lane, LaneBroken, Tickets
from ostraka.errors import ConfigError, OpenError, StorageFull
from ostraka.transport import LANE, LENGTH, TICKET_BYTES

PATIENCE_S = 60.0
SIZE, COUNT = 100, 5
TILES = [bytes([index]) * SIZE for index in range(COUNT)]
FRAMES = [LENGTH.pack(SIZE) + tile for tile in TILES]


class Kept:
    """What has arrived of one upload. fails: raised in place of a tile. each: a tile's size."""

    def __init__(self, fails: dict[int, Exception] | None = None, each: int = SIZE) -> None:
        self._each = each
        self.tiles: list[bytes] = []
        self.memory: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.taking = threading.Event()
        self._fails = fails or {}

    @property
    def size(self) -> int:
        return self._each if len(self.tiles) < COUNT else 0

    @property
    def left(self) -> int:
        return COUNT - len(self.tiles)

    def take(self, ciphertext: memoryview) -> None:
        self.taking.set()
        assert self.gate.wait(PATIENCE_S)
        self.memory.add(id(ciphertext.obj))
        if len(self.tiles) in self._fails:
            raise self._fails[len(self.tiles)]
        self.tiles.append(bytes(ciphertext))


def run(work: Callable[[Tickets], Awaitable[None]], *, idle_s: float = PATIENCE_S) -> None:
    async def main() -> None:
        with Tickets(2, idle_s=idle_s) as tickets:
            await work(tickets)

    asyncio.run(main())


def connected(opened: Lane, gone: Callable[[], None] = lambda: None) -> socket.socket:
    """The peer's side of a connection that has shown the ticket."""
    near, far = socket.socketpair()
    far.settimeout(PATIENCE_S)
    opened.connect(near, gone)
    return far


@pytest.fixture(params=["the kernel waits", "it does not"])
def way(request, monkeypatch):
    """How frames are read."""
    assert lane.kernel_waits(), "what is tested here is what the kernel does"
    if request.param == "it does not":
        monkeypatch.setattr(lane, "kernel_waits", lambda: False)


@pytest.mark.usefixtures("way")
def test_tiles_arrive_in_order_and_in_one_memory():
    kept, gone = Kept(), []

    async def work(tickets: Tickets) -> None:
        with tickets.issue(kept, None) as opened, connected(opened, lambda: gone.append(1)) as far:
            far.sendall(b"".join(FRAMES))
            await opened.received()
            assert far.recv(1) == b""

    run(work)
    assert (kept.tiles, len(kept.memory), gone) == (TILES, 1, [1])


class Sized(Kept):
    """Tiles of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self._sizes = sizes

    @property
    def size(self) -> int:
        return self._sizes[len(self.tiles)] if self.left else 0

    @property
    def left(self) -> int:
        return len(self._sizes) - len(self.tiles)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("last", [1, 40_000, 60_000])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("pieces", [[], [1], [60_003], [100_000], [150_000]])
def test_no_frame_waits_for_more_than_will_come(count, last, pieces):
    """The kernel wakes a lane's thread for whole frames. The peer sends all it has, in pieces that
    end anywhere, and then nothing: no thread may sleep on what is already there."""
    sizes = [60_000] * (count - 1) + [last]
    kept = Sized(sizes)
    sent = b"".join(LENGTH.pack(size) + bytes([at]) * size for at, size in enumerate(sizes))

    async def work(tickets: Tickets) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as far,
            tickets.issue(kept, None) as opened,
        ):
            near, _ = server.accept()
            near.setblocking(False)
            opened.connect(near, lambda: None)
            receiving = asyncio.create_task(opened.received())
            for start, end in pairwise([0, *pieces, len(sent)]):
                await asyncio.to_thread(far.sendall, sent[start:end])
                await asyncio.sleep(0.01)
            await asyncio.wait_for(receiving, PATIENCE_S / 4)

    run(work)
    assert [len(tile) for tile in kept.tiles] == sizes


def test_a_ticket_is_known_once_and_only_while_its_call_lasts():
    async def work(tickets: Tickets) -> None:
        with tickets.issue(Kept(), None) as one, tickets.issue(Kept(), None) as two:
            assert len({one.ticket, two.ticket, bytes(TICKET_BYTES)}) == 3
            assert len(one.ticket) == TICKET_BYTES
            assert one.ticket.hex() not in repr(one)
            assert tickets.claim(bytes(TICKET_BYTES)) is None
            assert tickets.claim(one.ticket) is one
            assert tickets.claim(one.ticket) is None
        assert tickets.claim(two.ticket) is None

    run(work)


def test_a_connection_that_comes_as_its_call_ends_is_closed():
    gone: list[int] = []

    async def work(tickets: Tickets) -> None:
        with tickets.issue(Kept(), None) as opened:
            far = connected(opened, lambda: gone.append(1))
        with far:
            assert far.recv(1) == b""

    run(work)
    assert gone == [1]


def test_a_connection_that_never_comes_is_not_waited_for():
    async def work(tickets: Tickets) -> None:
        with tickets.issue(Kept(), None) as opened, pytest.raises(TimeoutError):
            await opened.received()

    run(work, idle_s=0.05)


FAULTS: dict[str, tuple[bytes, type[Exception]]] = {
    "an end before the first frame": (b"", LaneBroken),
    "an end within a length": (FRAMES[0] + b"\0\0", LaneBroken),
    "an end within a tile": (FRAMES[0] + FRAMES[1][:-1], LaneBroken),
    "an end between two frames": (FRAMES[0], LaneBroken),
    "a frame that is too long": (FRAMES[0] + LENGTH.pack(SIZE + 1) + bytes(SIZE + 1), OpenError),
    "a frame that is too short": (FRAMES[0] + LENGTH.pack(SIZE - 1) + bytes(SIZE - 1), OpenError),
    "a frame of nothing": (FRAMES[0] + LENGTH.pack(0), OpenError),
    "a frame without end": (FRAMES[0] + b"\xff" * 4, OpenError),
}


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("sentence", FAULTS)
def test_a_fault_ends_the_call_and_what_came_before_it_counts(sentence):
    said, error = FAULTS[sentence]
    kept = Kept()

    async def work(tickets: Tickets) -> None:
        with tickets.issue(kept, None) as opened, connected(opened) as far:
            far.sendall(said)
            far.shutdown(socket.SHUT_WR)
            with pytest.raises(error):
                await opened.received()
            with suppress(ConnectionResetError):
                assert far.recv(1) == b""

    run(work)
    assert kept.tiles == TILES[: len(said) // len(FRAMES[0])][:1]


def test_what_the_enclave_refuses_is_what_the_call_ends_with():
    kept = Kept({3: StorageFull("no room")})

    async def work(tickets: Tickets) -> None:
        with tickets.issue(kept, None) as opened, connected(opened) as far:
            far.sendall(b"".join(FRAMES))
            with pytest.raises(StorageFull):
                await opened.received()

    run(work)
    assert kept.tiles == TILES[:3]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("said", [b"", FRAMES[0], FRAMES[0] + FRAMES[1][:50]])
def test_a_silent_peer_is_not_waited_for(said):
    async def work(tickets: Tickets) -> None:
        with tickets.issue(Kept(), None) as opened, connected(opened) as far:
            far.sendall(said)
            with pytest.raises(TimeoutError):
                await opened.received()

    run(work, idle_s=0.1)


def test_a_sender_that_is_too_fast_is_held_up_and_loses_nothing():
    """Nothing is kept for it but what the kernel holds and one frame."""
    kept = Kept(each=2**18)
    kept.gate.clear()
    data = b"".join(LENGTH.pack(2**18) + bytes([index]) * 2**18 for index in range(COUNT)) * 20

    async def work(tickets: Tickets) -> None:
        with tickets.issue(kept, None) as opened, connected(opened) as far:
            receiving = asyncio.create_task(opened.received())
            far.setblocking(False)
            sent, quiet = 0, 0
            while quiet < 20:  # until nothing more fits in between
                try:
                    sent += far.send(data[sent : sent + 2**16])
                    quiet = 0
                except BlockingIOError:
                    quiet += 1
                    await asyncio.sleep(0.01)
            assert sent < len(data) / 4
            assert kept.tiles == []
            kept.gate.set()
            far.settimeout(PATIENCE_S)
            with suppress(ConnectionError):  # It ends when it has all that it wants.
                await asyncio.to_thread(far.sendall, data[sent:])
            await receiving

    run(work)
    assert [tile[0] for tile in kept.tiles] == list(range(COUNT))


@pytest.mark.usefixtures("way")
def test_a_peer_that_drips_has_its_time_for_each_frame_and_not_for_each_byte():
    """It never falls silent for as long as it may."""
    kept, over = Kept(), threading.Event()

    def drip(far: socket.socket) -> None:
        for byte in b"".join(FRAMES):
            if over.wait(0.02):
                return
            with suppress(OSError):
                far.sendall(bytes([byte]))

    async def work(tickets: Tickets) -> None:
        with tickets.issue(kept, None) as opened, connected(opened) as far:
            dripping = threading.Thread(target=drip, args=(far,))
            dripping.start()
            with pytest.raises(TimeoutError):
                await opened.received()
            over.set()
            dripping.join()

    run(work, idle_s=0.5)
    assert kept.tiles == []


@pytest.mark.parametrize("times", [1, 3])
def test_a_call_that_is_cancelled_waits_for_the_tile_in_hand(times):
    """The client's next call begins then, and nothing must arrive behind its back.

    times: a turn may end, a newer call may come, and the service may stop, all at once.
    """
    kept = Kept()

    async def work(tickets: Tickets) -> None:
        kept.gate.clear()
        with tickets.issue(kept, None) as opened, connected(opened) as far:
            far.sendall(b"".join(FRAMES))
            receiving = asyncio.create_task(opened.received())
            await asyncio.to_thread(kept.taking.wait, PATIENCE_S)
            for _ in range(times):
                receiving.cancel()
                await asyncio.sleep(0.05)
            assert not receiving.done()
            kept.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            before = len(kept.tiles)
            await asyncio.sleep(0.05)
            assert len(kept.tiles) == before

    run(work)


@pytest.mark.usefixtures("way")
def test_a_cancelled_call_wakes_a_thread_that_waits_for_its_peer():
    async def work(tickets: Tickets) -> None:
        with tickets.issue(Kept(), None) as opened, connected(opened) as far:
            receiving = asyncio.create_task(opened.received())
            await asyncio.sleep(0.05)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            assert far.recv(1) == b""

    run(work)
    assert not [each for each in threading.enumerate() if each.name.startswith("ostraka-lane")]


# The gate.


@contextmanager
def started(*work: Callable[[], None]) -> Iterator[list[threading.Thread]]:
    """Threads that must have ended when the block has."""
    threads = [threading.Thread(target=each) for each in work]
    yield threads
    for each in threads:
        each.join(PATIENCE_S)
        assert not each.is_alive()


def until(true: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S / 0.001)):
        if true():
            return
        time.sleep(0.001)
    raise AssertionError("this did not become true")


@pytest.mark.parametrize("places", [1, 2, 3])
def test_who_waits_at_the_gate_is_let_in_by_order(places):
    gate, order = Gate(places), []
    for _ in range(places):
        gate.enter()

    def work(number: int) -> Callable[[], None]:
        def enter() -> None:
            gate.enter()
            order.append(number)
            gate.leave()

        return enter

    with started(*map(work, range(8))) as threads:
        for number, each in enumerate(threads, 1):
            each.start()
            until(lambda: gate.waiting == number)  # noqa: B023 (it is called at once)
        assert order == []
        gate.leave()
    assert order == list(range(8))
    gate.enter()  # The place that all of them had is free again.
    assert gate.waiting == 0


@pytest.mark.parametrize("places", [1, 3])
def test_no_more_pass_the_gate_than_it_has_places(places):
    gate, inside, most, lock = Gate(places), 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            gate.enter()
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0)
            with lock:
                inside -= 1
            gate.leave()

    with started(*[work] * 12) as threads:
        for each in threads:
            each.start()
    assert (inside, gate.waiting) == (0, 0)
    assert 0 < most <= places


class Crowd:
    """Uploads that come over lanes of their own. readers: how many of them are read at a time."""

    def __init__(self, receivers: list[Kept], tickets: Tickets, stack: ExitStack) -> None:
        lanes = [stack.enter_context(tickets.issue(each, None)) for each in receivers]
        self.peers = [stack.enter_context(connected(each)) for each in lanes]
        self.calls = [asyncio.ensure_future(each.received()) for each in lanes]


def run_crowd(
    receivers: list[Kept],
    work: Callable[[Crowd], Awaitable[None]],
    *,
    readers: int = 1,
    idle_s: float = PATIENCE_S,
) -> None:
    async def main() -> None:
        with (
            Tickets(len(receivers), idle_s=idle_s, readers=readers) as tickets,
            ExitStack() as stack,
        ):
            await work(Crowd(receivers, tickets, stack))

    asyncio.run(main())


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("readers", [1, 2])
def test_so_many_lanes_are_read_at_a_time(readers):
    lock, inside, most = threading.Lock(), 0, 0

    class Counted(Kept):
        def take(self, ciphertext: memoryview) -> None:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.001)
            super().take(ciphertext)
            with lock:
                inside -= 1

    receivers: list[Kept] = [Counted() for _ in range(8)]

    async def work(crowd: Crowd) -> None:
        for peer in crowd.peers:
            peer.sendall(b"".join(FRAMES))
        await asyncio.gather(*crowd.calls)

    run_crowd(receivers, work, readers=readers)
    assert [each.tiles for each in receivers] == [TILES] * 8
    assert 0 < most <= readers


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("said", [b"", FRAMES[0][:2], FRAMES[0], FRAMES[0] + FRAMES[1][:50]])
def test_a_lane_that_has_fallen_silent_holds_no_other_up(said):
    receivers = [Kept(), Kept()]

    async def work(crowd: Crowd) -> None:
        silent, other = crowd.peers
        silent.sendall(said)
        await asyncio.sleep(0.02)
        other.sendall(b"".join(FRAMES))
        await crowd.calls[1]
        assert not crowd.calls[0].done()
        silent.sendall(b"".join(FRAMES)[len(said) :])
        await crowd.calls[0]

    run_crowd(receivers, work)
    assert [each.tiles for each in receivers] == [TILES, TILES]


@pytest.mark.usefixtures("way")
def test_slow_and_fast_lanes_together_lose_nothing():
    receivers = [Kept() for _ in range(6)]
    sent = b"".join(FRAMES)

    async def drip(peer: socket.socket, each: int, pause_s: float) -> None:
        for start in range(0, len(sent), each):
            peer.sendall(sent[start : start + each])
            await asyncio.sleep(pause_s)

    async def work(crowd: Crowd) -> None:
        paces = [(len(sent), 0.0), (7, 0.0), (53, 0.002), (SIZE, 0.005), (SIZE + 4, 0.01)]
        dripping = [drip(peer, *pace) for peer, pace in zip(crowd.peers[1:], paces, strict=True)]
        await asyncio.gather(*dripping, *crowd.calls[1:])
        crowd.peers[0].sendall(sent)
        await crowd.calls[0]

    run_crowd(receivers, work, readers=2)
    assert [each.tiles for each in receivers] == [TILES] * 6


@pytest.mark.usefixtures("way")
def test_a_refusal_behind_the_gate_frees_its_place():
    receivers = [Kept({1: StorageFull("no room")}), Kept({0: OpenError("tile")}), Kept()]

    async def work(crowd: Crowd) -> None:
        for peer in crowd.peers:
            peer.sendall(b"".join(FRAMES))
        one, two, three = await asyncio.gather(*crowd.calls, return_exceptions=True)
        assert isinstance(one, StorageFull)
        assert isinstance(two, OpenError)
        assert three is None

    run_crowd(receivers, work)
    assert receivers[2].tiles == TILES


@pytest.mark.usefixtures("way")
def test_a_lane_that_waits_for_its_place_is_not_late():
    holds, waits = receivers = [Kept(), Kept()]
    holds.gate.clear()

    async def work(crowd: Crowd) -> None:
        crowd.peers[0].sendall(b"".join(FRAMES))
        await asyncio.to_thread(holds.taking.wait, PATIENCE_S)
        crowd.peers[1].sendall(b"".join(FRAMES))
        await asyncio.sleep(1.0)
        assert not waits.taking.is_set()
        holds.gate.set()
        await asyncio.gather(*crowd.calls)

    run_crowd(receivers, work, idle_s=0.3)
    assert waits.tiles == TILES


@pytest.mark.usefixtures("way")
def test_a_call_that_is_cancelled_ends_when_its_thread_has_its_place():
    holds, _ = receivers = [Kept(), Kept()]
    holds.gate.clear()

    async def work(crowd: Crowd) -> None:
        crowd.peers[0].sendall(b"".join(FRAMES))
        await asyncio.to_thread(holds.taking.wait, PATIENCE_S)
        await asyncio.sleep(0.02)
        crowd.calls[1].cancel()
        await asyncio.sleep(0.02)
        holds.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await crowd.calls[1]
        await crowd.calls[0]

    run_crowd(receivers, work)
    assert holds.tiles == TILES


@pytest.mark.usefixtures("way")
def test_a_lane_that_is_always_full_lets_others_in_after_a_stretch(monkeypatch):
    gates, order = [], []

    def make(places: int) -> Gate:
        gates.append(Gate(places))
        return gates[0]

    class Ordered(Kept):
        def take(self, ciphertext: memoryview) -> None:
            super().take(ciphertext)
            order.append(receivers.index(self))

    monkeypatch.setattr(lane, "Gate", make)
    monkeypatch.setattr(lane, "_STRETCH", 2)
    receivers: list[Kept] = [Ordered(), Ordered()]
    receivers[0].gate.clear()

    async def work(crowd: Crowd) -> None:
        crowd.peers[0].sendall(b"".join(FRAMES))
        await asyncio.to_thread(receivers[0].taking.wait, PATIENCE_S)
        crowd.peers[1].sendall(b"".join(FRAMES))
        await asyncio.to_thread(until, lambda: gates[0].waiting == 1)
        receivers[0].gate.set()
        await asyncio.gather(*crowd.calls)

    run_crowd(receivers, work)
    assert order[:6] == [0, 0, 1, 1, 0, 0]


# At the door.


@pytest.mark.parametrize("party", [None, Member("client-1", bytes(32))])
def test_a_stranger_s_lane_gives_way_to_a_flood_and_a_party_s_does_not(tmp_path, party):
    kept = Kept()

    def connect(port: int, stack: ExitStack) -> socket.socket:
        return stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))

    async def work(tickets: Tickets) -> None:
        with (
            Downloads(1, idle_s=PATIENCE_S, most_s=PATIENCE_S) as downloads,
            Front(4, folder=tmp_path, idle_s=PATIENCE_S, lanes=(tickets, downloads)) as front,
            tickets.issue(kept, party) as opened,
            ExitStack() as stack,
        ):
            front.pass_on_to(front.back_address(), 1)  # where nobody is
            port = front.listen("127.0.0.1:0")
            ours = connect(port, stack)
            ours.sendall(LANE + opened.ticket + FRAMES[0])
            receiving = asyncio.create_task(opened.received())
            await asyncio.to_thread(kept.taking.wait, PATIENCE_S)
            for _ in range(6):
                connect(port, stack)
            await asyncio.sleep(0.05)
            if party is None:
                with pytest.raises(LaneBroken):
                    await receiving
            else:
                ours.sendall(b"".join(FRAMES[1:]))
                await receiving

    run(work)
    assert (kept.size == 0) is (party is not None)


# TLS.


@contextmanager
def secured(start: Any, certificate: Any, **settings: Any) -> Iterator[tuple[Any, Path]]:
    service = start(clients=5, dimension=1000, run=False, settings={"tile": 128, **settings})
    public, private = certificate
    (service.root / "tls.pem").write_bytes(public)
    (service.root / "tls.key").write_bytes(private)
    (service.root / "tls.key").chmod(0o600)
    service.set(tls_certificate="tls.pem", tls_key="tls.key")
    service.start()
    service.wait_for("RoundOpened")
    yield service, service.root / "tls.pem"


@contextmanager
def client_of(service: Any, ca: Path, speaker_of: Any) -> Iterator[tuple[Connection, Any]]:
    """A connection as this package makes it, and a client by hand that speaks over it."""
    with Connection(
        f"localhost:{service.port}",
        tls_ca=ca,
        patience=Patience(PATIENCE_S),
        tell=lambda event: None,
    ) as connection:
        yield connection, speaker_of(service, connection.stub)


@pytest.fixture
def by_hand(speaker):
    """A client by hand over any stub."""

    def make(service: Any, stub: Any) -> Any:
        made = speaker(service, 1, greets=False)
        made.stub = stub
        return made

    return make


UPDATE = np.random.default_rng(0).normal(size=1000).astype(np.float32)


def test_an_upload_over_tls(start, by_hand, certificate):
    with secured(start, certificate) as (service, ca), client_of(service, ca, by_hand) as each:
        connection, client = each
        joined = client.join()
        upload = Upload(1, joined.sealing(joined.encode(UPDATE)).sealed)
        upload.stream(connection)
        upload.end()
        assert service.wait_for("UploadCompleted").client == "client-1"


def tls_lane(port: int, ticket: bytes, ca: Path) -> ssl.SSLSocket:
    near = socket.create_connection(("localhost", port), PATIENCE_S)
    near.sendall(LANE + ticket)
    context = ssl.create_default_context(cafile=str(ca))
    return context.wrap_socket(near, server_hostname="localhost")


DENIED = grpc.StatusCode.PERMISSION_DENIED
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
NO_WORD = grpc.StatusCode.OK

OVER_TLS: dict[str, tuple[Callable[[socket.socket], socket.socket], grpc.StatusCode]] = {
    "silence": (lambda near: near, LATE),
    "an end": (lambda near: closing(near), NO_WORD),  # noqa: PLW0108 (it comes below)
    "noise within TLS": (lambda near: said(near, b"x" * 5000), DENIED),
}


def said(near: socket.socket, data: bytes) -> socket.socket:
    near.sendall(data)
    return near


def closing(near: socket.socket) -> socket.socket:
    near.shutdown(socket.SHUT_RDWR)
    return near


BEFORE_TLS = {
    "a request without TLS": LENGTH.pack(7) + b"request",
    "no handshake": b"",
    "half of a handshake": b"\x16\x03\x01\x02\0",
}


@pytest.mark.slow
def test_what_is_wrong_over_tls_ends_the_lane_and_the_next_one_goes_on(start, by_hand, certificate):
    with (
        secured(start, certificate, idle_s=2.0) as (service, ca),
        client_of(service, ca, by_hand) as (connection, client),
    ):
        joined = client.join()
        sealing = joined.sealing(joined.encode(UPDATE)).sealed
        for data in BEFORE_TLS.values():
            with client.open_lane(client.ticket()) as near:
                near.sendall(data)
                with suppress(ConnectionResetError):
                    assert near.recv(1) == b""  # There is no TLS to say anything over.
        for sentence, (attack, code) in OVER_TLS.items():
            lane = tls_lane(service.port, client.ticket(), ca)
            with client.begin(sealing.header, lane=lane) as upload:
                assert upload.hear().HasField("granted")
                attack(lane)
                assert (sentence, upload.ends_with()) == (sentence, code)
        upload = Upload(1, sealing)
        upload.stream(connection)
        upload.end()
        assert service.wait_for("UploadCompleted").client == "client-1"


def test_a_lane_is_opened_to_whom_the_certificate_vouches_for(start, by_hand, certificate):
    with (
        secured(start, certificate) as (service, ca),
        client_of(service, ca, by_hand) as (_, client),
        Connection(
            f"127.0.0.1:{service.port}",  # The certificate is for localhost.
            tls_ca=ca,
            patience=Patience(PATIENCE_S),
            tell=lambda event: None,
        ) as other,
        other.lanes() as lanes,
        pytest.raises(grpc.RpcError, match="no lane to"),
    ):
        lanes.open(client.ticket())


def test_a_key_that_is_not_the_certificate_s_is_told_at_the_start(start, certificate):
    service = start(run=False)
    (service.root / "tls.pem").write_bytes(certificate[0])
    (service.root / "tls.key").write_bytes(b"no key")
    (service.root / "tls.key").chmod(0o600)
    service.set(tls_certificate="tls.pem", tls_key="tls.key")
    with pytest.raises(ConfigError, match=r"tls\.pem and .*tls\.key are no certificate"):
        service.start()


def test_a_lane_that_is_stopped_while_it_reads_takes_no_more(monkeypatch):
    """Its peer sends on as fast as it is read: its turn is over all the same."""
    near, far = socket.socketpair()
    kept = Kept()
    with near, far:
        line = lane.Line(near, idle_s=PATIENCE_S, tls=None, waits=lane.kernel_waits())
        real = line._read

        def read(rest: memoryview) -> int:
            if len(kept.tiles) == 2:
                # `recv_into` is under way, and comes back with a whole frame.
                monkeypatch.setattr(line, "_near", Stopping(near, line))
            return real(rest)

        monkeypatch.setattr(line, "_read", read)
        far.sendall(b"".join(FRAMES))
        with pytest.raises(LaneBroken):
            lane.receive(line, kept)
    assert len(kept.tiles) <= 3


class Stopping:
    """A socket on which a line is stopped while it reads."""

    def __init__(self, near: socket.socket, line: Any) -> None:
        self._near, self._line = near, line

    def recv_into(self, *arguments: Any) -> int:
        taken = self._near.recv_into(*arguments)
        self._line._near = self._near
        self._line.stop()
        return taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._near, name)
