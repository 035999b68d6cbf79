"""The door: a flood displaces itself, the enrolled get in, and bytes pass as they came."""

import asyncio
import hashlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc
import numpy as np
import pytest

from ostraka.config import Member
from ostraka.enclave import front, passage
from ostraka.enclave.downloads import Downloads
from ostraka.enclave.front import Front, Guests, Visitor
from ostraka.enclave.lane import LaneBroken, Tickets
from ostraka.enclave.passage import Pipes
from ostraka.errors import ConfigError
from ostraka.transport import LANE, TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.dial import dial, dial_lane
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

RNG = np.random.default_rng(0)
N = 5
PATIENCE_S = 60.0
HELLO_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
CLIENT = Member("client-1", bytes(32))


# Who has a place.


def strangers(guests: Guests, address: str, count: int) -> list[Visitor]:
    visitors = [Visitor(address) for _ in range(count)]
    for each in visitors:
        assert guests.admit(each) is None
    return visitors


def test_whoever_comes_displaces_the_oldest_of_the_address_that_holds_most():
    guests = Guests(places=5)
    few, many = strangers(guests, "few", 2), strangers(guests, "many", 3)
    newest = Visitor("new")
    assert guests.admit(newest) is many[0]
    guests.leave(many[0])
    assert guests.admit(Visitor("many")) is many[1]
    guests.leave(many[1])
    assert guests.count == 5
    for each in (*few, newest):
        guests.leave(each)
        guests.leave(each)  # It may have been evicted before.
    assert guests.count == 2


def test_the_enrolled_are_not_counted_and_not_displaced():
    guests = Guests(places=2, each=2)
    one, two = strangers(guests, "here", 2)
    assert guests.prove(one, CLIENT) is None
    assert guests.admit(Visitor("here")) is None
    assert guests.admit(Visitor("here")) is two
    guests.leave(two)
    assert guests.count == 2
    guests.leave(one)
    assert guests.count == 2


def test_a_party_keeps_a_few_places_and_its_oldest_becomes_a_stranger():
    guests = Guests(places=4, each=2)
    visitors = strangers(guests, "here", 4)
    for each in visitors:
        guests.prove(each, CLIENT)
    assert [each.party for each in visitors] == [None, None, CLIENT, CLIENT]
    assert guests.count == 2


# Floods.


def rows(d: int) -> np.ndarray:
    return RNG.normal(size=(N, d)).astype(np.float32)


@contextmanager
def flood(port: int, count: int, source: str, said: bytes) -> Iterator[list[socket.socket]]:
    """This many connections of one address that say something at most, and then no more."""
    with ExitStack() as stack:
        idle = []
        for _ in range(count):
            each = socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
            idle.append(stack.enter_context(each))
            with suppress(OSError):  # It may have been displaced already.
                each.sendall(said)
        yield idle


@pytest.mark.slow
@pytest.mark.parametrize("said", [b"", HELLO_HTTP2, LANE], ids=["silent", "http2", "lane"])
@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"])
def test_1100_idle_connections_keep_no_client_out(start, speaker, source, said):
    service = start(clients=N, settings={"deadline_s": 600})
    service.wait_for("RoundOpened")
    updates = rows(100)
    early = speaker(service, 1)
    with flood(service.port, 1100, source, said) as idle:
        joined = [early.send(updates[0])]
        joined += [speaker(service, number).send(updates[number - 1]) for number in range(2, N + 1)]
        assert early.follow(joined[0]).participants == N
        idle[0].settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):
            while idle[0].recv(2**16):
                pass  # The first one has been closed.
    crowded = service.named("AddressCrowded")
    assert [each.address for each in crowded] == [source] * len(crowded)
    assert 1 <= len(crowded) < 10


@pytest.mark.slow
@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"])
def test_512_unread_downloads_keep_no_client_out(start, speaker, source):
    """A stranger has one ticket, and shows it as often as it likes."""
    d = 500_000  # more than the two sides' systems take in by themselves
    settings = {"tile": 2**16, "deadline_s": 600, "uploads": 40}
    service = start(clients=N, dimension=d, settings=settings)
    service.wait_for("RoundOpened")
    early = speaker(service, 1)
    digest = early.join().offer.model
    (whole,) = speaker(service, 2, greets=False).slices(digest)
    with ExitStack() as stack:
        unread = [stack.enter_context(early.open_lane(whole.ticket, source)) for _ in range(512)]
        clients = [early, *(speaker(service, number) for number in range(2, N + 1))]
        for each in clients:
            assert each.model(digest).shape == (d,)
        other = speaker(service, 1, greets=False)
        with other.open_lane(other.slices(digest)[0].ticket, "127.0.0.3") as lane:
            assert lane.recv(1)  # Strangers of other addresses have turns left, too.
        refused = 0
        for each in unread:
            each.setblocking(False)
            with suppress(BlockingIOError, ConnectionResetError):
                refused += each.recv(1, socket.MSG_PEEK) == b""
        assert refused == 512 - 32
        joined = [each.send(row) for each, row in zip(clients, rows(d), strict=True)]
        assert early.follow(joined[0]).participants == N


@pytest.mark.slow
def test_charters_that_nobody_reads_are_few(start, speaker, other_address):
    """They stay in memory, and a stranger has many connections to leave them on."""
    service = start(clients=1500, settings={"deadline_s": 600})  # more than gRPC takes in by itself
    service.wait_for("RoundOpened")
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    with ExitStack() as stack:
        port = stack.enter_context(other_address(service.port, "127.0.0.2"))
        unread = []
        for _ in range(6):
            address = f"127.0.0.1:{port}"
            channel = stack.enter_context(grpc.insecure_channel(address, options=options))
            ask: Any = channel.unary_stream(
                "/ostraka.v1.Enclave/GetCharter", wire.CharterRequest.SerializeToString
            )
            unread += [ask(wire.CharterRequest()) for _ in range(16)]
        until = time.monotonic() + PATIENCE_S
        while sum(each.is_active() for each in unread) > 32 and time.monotonic() < until:
            time.sleep(0.05)
        refused = [each for each in unread if not each.is_active()]
        assert len(refused) == len(unread) - 32
        assert {each.code() for each in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(speaker(service, 1).charter().federation.clients) == 1500
    # Those who hung up have given their places back.
    with other_address(service.port, "127.0.0.2") as port, dial(f"127.0.0.1:{port}") as channel:
        stub: Any = EnclaveStub(channel)
        assert stub.GetCharter(wire.CharterRequest(), timeout=PATIENCE_S).charter


# Bytes.


@contextmanager
def door(tmp_path: Any, **settings: Any) -> Iterator[tuple[int, socket.socket, Callable[..., Any]]]:
    """A door with a plain socket behind it: its port, that socket, and what runs on its loop."""
    ready = threading.Event()
    made: dict[str, Any] = {}

    async def main() -> None:
        given = {"places": 8, "idle_s": PATIENCE_S, "foretold": False} | settings
        with (
            Downloads(1, idle_s=1, most_s=1) as downloads,
            Tickets(1, idle_s=1, others=downloads.knows) as tickets,
            Front(
                folder=tmp_path,
                lanes=(tickets, downloads),
                **given | {"foretold": tickets if given["foretold"] else None},
            ) as it,
        ):
            address = it.back_address()
            if address.startswith("unix:"):
                behind = socket.socket(socket.AF_UNIX)
                behind.bind(address.removeprefix("unix:"))
                behind.listen()
                it.pass_on_to(address, 1)
            else:
                behind = socket.create_server(("127.0.0.1", 0))
                it.pass_on_to(address, behind.getsockname()[1])
            made.update(port=it.listen("127.0.0.1:0"), behind=behind, front=it)
            made.update(loop=asyncio.get_running_loop(), over=asyncio.Event())
            ready.set()
            await made["over"].wait()
            behind.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(PATIENCE_S)

    def run(work: Callable[[Front], Any]) -> Any:
        async def on_the_loop() -> Any:
            return work(made["front"])

        return asyncio.run_coroutine_threadsafe(on_the_loop(), made["loop"]).result(PATIENCE_S)

    made["behind"].settimeout(PATIENCE_S)
    try:
        yield made["port"], made["behind"], run
    finally:
        made["loop"].call_soon_threadsafe(made["over"].set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def connected(port: int, behind: socket.socket) -> tuple[socket.socket, socket.socket, Any]:
    """Both ends of a connection through the door, after a first byte, and its name behind it."""
    near = socket.create_connection(("127.0.0.1", port))
    near.settimeout(PATIENCE_S)
    near.sendall(b"!")
    far, name = behind.accept()
    far.settimeout(PATIENCE_S)
    assert far.recv(1) == b"!"
    return near, far, name


@pytest.fixture(params=["spliced", "copied", "loopback"])
def way(request, monkeypatch):
    """How bytes are passed on."""
    if request.param == "copied":
        monkeypatch.setattr(passage, "can_splice", lambda: False)
    if request.param == "loopback":
        monkeypatch.setattr(front, "_names_peers", lambda folder: False)
    if request.param != "copied" and not passage.can_splice():
        pytest.skip("this kernel does not splice")
    return request.param


def everything(source: socket.socket) -> bytes:
    whole = hashlib.sha256()
    while data := source.recv(2**16):
        whole.update(data)
    return whole.digest()


def test_bytes_pass_both_ways_and_each_side_ends_for_itself(tmp_path, way):
    up, down = os.urandom(12 * 2**20), os.urandom(8 * 2**20)
    with door(tmp_path) as (port, behind, _):
        near, far, _ = connected(port, behind)

        def send() -> None:
            near.sendall(up)
            near.shutdown(1)

        def answer() -> None:
            far.sendall(down)
            far.close()

        with near, far:
            sending = threading.Thread(target=send)
            sending.start()
            assert everything(far) == hashlib.sha256(up).digest()
            answering = threading.Thread(target=answer)
            answering.start()
            assert everything(near) == hashlib.sha256(down).digest()
            sending.join()
            answering.join()


def test_a_peer_that_does_not_read_holds_up_its_own_connection_only(tmp_path, way):
    with door(tmp_path) as (port, behind, _):
        slow, slow_far, _ = connected(port, behind)
        with slow, slow_far:
            slow_far.setblocking(False)
            sent, quiet = 0, 0
            while quiet < 20:  # until nothing more fits in between
                try:
                    sent += slow_far.send(b"x" * 2**16)
                    quiet = 0
                except BlockingIOError:
                    quiet += 1
                    time.sleep(0.01)
            other, far, _ = connected(port, behind)
            with other, far:
                far.sendall(b"y" * 2**20)
                far.close()
                assert everything(other) == hashlib.sha256(b"y" * 2**20).digest()
            got = 0
            while got < sent:
                got += len(slow.recv(2**20))
            assert got == sent


def test_a_peer_that_takes_nothing_for_too_long_is_closed(tmp_path, way):
    with door(tmp_path, idle_s=0.2) as (port, behind, _):
        near, far, _ = connected(port, behind)
        with near, far, pytest.raises((BrokenPipeError, ConnectionResetError)):
            far.sendall(b"x" * 2**26)


def test_a_peer_that_says_nothing_is_closed_and_the_server_never_hears_of_it(tmp_path):
    with door(tmp_path, idle_s=0.2) as (port, behind, _):
        silent = socket.create_connection(("127.0.0.1", port))
        silent.settimeout(PATIENCE_S)
        with silent:
            assert silent.recv(1) == b""
        behind.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            behind.accept()


@pytest.mark.parametrize("side", ["near", "far"])
def test_a_connection_that_breaks_off_ends_on_the_other_side(tmp_path, way, side):
    with door(tmp_path) as (port, behind, _):
        near, far, _ = connected(port, behind)
        broken, other = (near, far) if side == "near" else (far, near)
        # Closed with a reset, where there is such a thing.
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        broken.close()
        with other, suppress(ConnectionResetError):
            assert other.recv(1) == b""


def test_a_visitor_is_known_by_its_true_address_until_it_leaves(tmp_path, way):
    with door(tmp_path) as (port, behind, run):
        near = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.3", 0))
        near.sendall(b"!")
        far, name = behind.accept()
        peer = f"unix:{name}" if isinstance(name, str) else f"ipv4:{name[0]}:{name[1]}"
        visitor = run(lambda it: it.visitor(peer))
        assert visitor.address == "127.0.0.3"
        run(lambda it: it.prove(visitor, CLIENT))
        assert run(lambda it: it.visitor(peer)).party == CLIENT
        near.close()
        far.settimeout(PATIENCE_S)
        assert far.recv(2) == b"!"
        assert far.recv(1) == b""
        far.close()
        until = time.monotonic() + PATIENCE_S
        while run(lambda it: it.visitor(peer)).party is not None:
            assert time.monotonic() < until
        assert run(lambda it: it.visitor(peer)).address == "unknown"


def test_a_connection_is_of_whoever_has_proved_it_last_and_of_nobody_once_it_is_gone(tmp_path):
    with door(tmp_path) as (port, behind, run):
        near, far, name = connected(port, behind)
        peer = f"unix:{name}" if isinstance(name, str) else f"ipv4:{name[0]}:{name[1]}"
        visitor = run(lambda it: it.visitor(peer))
        renewed = Member(CLIENT.name, b"k" * 32)
        for party in (CLIENT, renewed):
            run(lambda it, party=party: it.prove(visitor, party))
            assert visitor.party == party
        near.close()
        assert far.recv(1) == b""
        far.close()
        while run(lambda it: it.visitor(peer)) is visitor:
            time.sleep(0.01)
        run(lambda it: it.prove(visitor, CLIENT))
        assert visitor.party == renewed


def test_what_a_displaced_connection_left_in_a_pipe_reaches_nobody_else():
    pipes = Pipes(splice=passage.can_splice())
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.setblocking(False)
        carrier = pipes.lend()
        near.send(b"secret")
        assert carrier.fill(far) == 6
        pipes.take_back(carrier)
        fresh = pipes.lend()
        assert fresh.held == 0
        near.send(b"ours")
        fresh.fill(far)
        fresh.drain(far)
        assert near.recv(100) == b"ours"
        pipes.take_back(fresh)
    pipes.close()


def test_an_address_that_is_taken_is_named(tmp_path):
    async def main() -> None:
        with (
            Tickets(1, idle_s=1) as tickets,
            Downloads(1, idle_s=1, most_s=1) as downloads,
            Front(8, folder=tmp_path, idle_s=1, lanes=(tickets, downloads)) as it,
            socket.create_server(("127.0.0.1", 0)) as by,
        ):
            address = f"127.0.0.1:{by.getsockname()[1]}"
            with pytest.raises(ConfigError, match=f"cannot listen on {address}"):
                it.listen(address)

    asyncio.run(main())


# Tickets that are shown early.


class Nothing:
    """Where no tile goes."""

    size = left = 0

    def take(self, ciphertext: memoryview) -> None: ...


def shown(port: int, ticket: bytes) -> socket.socket:
    near = socket.create_connection(("127.0.0.1", port))
    near.settimeout(PATIENCE_S)
    near.sendall(LANE + ticket)
    return near


@pytest.mark.parametrize("ahead_s", [0.0, 0.1])
def test_a_client_may_show_its_ticket_before_its_shard_has_heard_of_it(tmp_path, ahead_s):
    """Its lead tells both at the same moment, and each by its own way."""
    ticket = os.urandom(TICKET_BYTES)
    with door(tmp_path, foretold=True) as (port, _, run), shown(port, ticket) as near:
        time.sleep(ahead_s)
        stack = ExitStack()
        lane = run(
            lambda front: stack.enter_context(front._lanes[0].issue(Nothing(), None, ticket))
        )
        until = time.monotonic() + PATIENCE_S
        while not run(lambda _: lane._came.done()):
            assert time.monotonic() < until
        run(lambda _: stack.close())
        assert near.recv(1) == b""


@pytest.mark.parametrize("foretold", [True, False])
def test_a_ticket_that_nobody_has_issued_opens_nothing(tmp_path, foretold, monkeypatch):
    monkeypatch.setattr(front, "_FORETOLD_S", 0.1)
    with door(tmp_path, foretold=foretold) as (port, _, run):
        with shown(port, bytes(TICKET_BYTES)) as near:
            assert near.recv(1) == b""
        assert run(lambda front: (front._guests.count, len(front._visitors))) == (0, 0)


def test_who_waits_for_its_ticket_has_a_stranger_s_place_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(front, "_FORETOLD_S", PATIENCE_S)
    with door(tmp_path, foretold=True, places=2) as (port, _, run), ExitStack() as stack:
        tickets = [os.urandom(TICKET_BYTES) for _ in range(3)]
        waiting = [stack.enter_context(shown(port, ticket)) for ticket in tickets]
        assert waiting[0].recv(1) == b""
        until = time.monotonic() + PATIENCE_S
        while run(lambda front: front._guests.count) != 2:
            assert time.monotonic() < until
        waiting[1].setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting[1].recv(1)
        lanes = ExitStack()
        lane = run(
            lambda front: lanes.enter_context(front._lanes[0].issue(Nothing(), None, tickets[0]))
        )
        with pytest.raises(LaneBroken):  # Whoever waits for it is told at once.
            run(lambda _: lane._came.result())
        run(lambda _: lanes.close())


def test_who_has_seen_a_ticket_does_not_get_ahead_of_the_one_who_showed_it_first(tmp_path):
    """Tickets are shown before TLS begins. A listener would take a lane, and a place that is kept
    for its client."""
    ticket = os.urandom(TICKET_BYTES)
    with door(tmp_path, foretold=True) as (port, _, run), shown(port, ticket) as first:
        until = time.monotonic() + PATIENCE_S
        while not run(lambda front: front._lanes[0]._awaited):
            assert time.monotonic() < until
        for _ in range(3):
            with shown(port, ticket) as thief:
                assert thief.recv(1) == b""
        lanes = ExitStack()
        lane = run(
            lambda front: lanes.enter_context(front._lanes[0].issue(Nothing(), None, ticket))
        )
        name = first.getsockname()
        assert run(lambda _: lane._came.result()._near.getpeername()) == name
        run(lambda _: lanes.close())


@pytest.mark.parametrize("shows", [1, 2], ids=["the present model", "the model before"])
def test_a_ticket_for_a_model_is_refused_at_once(tmp_path, monkeypatch, shows):
    """Its client asks for another one, or later: it does not wait for what will not come."""
    monkeypatch.setattr(front, "_FORETOLD_S", PATIENCE_S)
    with door(tmp_path, foretold=True) as (port, _, run):

        def show(front: Front) -> bytes:
            downloads: Any = front._lanes[1]
            tickets = [downloads.show(np.zeros(8, np.float32)) for _ in range(shows)]
            return tickets[0]

        ticket = run(show)
        monkeypatch.setattr(Downloads, "claim", lambda *_: None)
        with shown(port, ticket) as near:
            assert near.recv(1) == b""


# The whole service.


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("listen", ["0.0.0.0", "[::]", "[::1]", "localhost"])
def test_the_service_listens_where_it_is_told_to(start, listen):
    if "::" in listen and not has_ipv6():
        pytest.skip("no IPv6 here")
    service = start(run=False)
    service.set(listen=f"{listen}:{service.port}")
    service.start()
    hosts = {"[::]": ["[::1]", "127.0.0.1"], "[::1]": ["[::1]"]}.get(listen, ["127.0.0.1"])
    for host in hosts:
        with grpc.insecure_channel(f"{host}:{service.port}") as channel:
            assert EnclaveStub(channel).GetStatus(wire.StatusRequest(), timeout=PATIENCE_S).json
        with dial_lane(f"{host}:{service.port}", bytes(TICKET_BYTES), seconds=PATIENCE_S) as lane:
            lane.settimeout(PATIENCE_S)
            assert lane.recv(1) == b""


def test_tls_passes_through(start, certificate):
    public, private = certificate
    service = start(run=False)
    (service.root / "tls.pem").write_bytes(public)
    (service.root / "tls.key").write_bytes(private)
    (service.root / "tls.key").chmod(0o600)
    service.set(tls_certificate="tls.pem", tls_key="tls.key", listen=f"127.0.0.1:{service.port}")
    service.start()
    credentials = grpc.ssl_channel_credentials(public)
    with grpc.secure_channel(f"localhost:{service.port}", credentials) as channel:
        assert EnclaveStub(channel).GetStatus(wire.StatusRequest(), timeout=PATIENCE_S).json
    shown = ssl.get_server_certificate(("localhost", service.port))
    assert shown.strip() == public.decode().strip()
