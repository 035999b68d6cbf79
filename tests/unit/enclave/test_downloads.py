"""Download lanes: the model goes out as it lies in memory, and nobody keeps the others waiting."""

import asyncio
import gc
import os
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial

import numpy as np
import pytest

from ostraka.arrays import Spares
from ostraka.client.connection import Connection, Patience
from ostraka.client.download import download
from ostraka.config import Member
from ostraka.enclave import downloads as downloading
from ostraka.enclave import lane
from ostraka.enclave.downloads import Download, Downloads
from ostraka.enclave.front import Front
from ostraka.enclave.lane import Tickets
from ostraka.transport import LANE, TICKET_BYTES
from ostraka.transport.dial import dial_lane

PATIENCE_S = 60.0
SHORT_S = 0.2  # for whoever does not read
D = 2**21  # more than the two sides' systems take in by themselves
MODEL = np.random.default_rng(0).normal(size=D).astype("<f4")
RAW = MODEL.tobytes()
ALICE, BOB = Member("alice", bytes(32)), Member("bob", bytes(32))


def run(
    work: Callable[[Downloads], Awaitable[None]], *, places: int = 2, idle_s: float = PATIENCE_S
) -> None:
    async def main() -> None:
        with Downloads(places, idle_s=idle_s, most_s=PATIENCE_S) as downloads:
            await work(downloads)

    asyncio.run(main())


class Peer:
    """The peer's side of a lane that it has opened. gone: its connection was closed."""

    def __init__(self, opened: Download | None) -> None:
        assert opened is not None
        near, self.far = socket.socketpair()
        near.setblocking(False)
        self.far.settimeout(PATIENCE_S)
        self.gone = asyncio.Event()
        self.opened = opened
        opened.connect(near, self.gone.set)

    def read(self) -> bytes:
        """All that comes, and the end behind it."""
        whole = bytearray()
        with self.far, suppress(ConnectionResetError):
            while data := self.far.recv(2**20):
                whole += data
        return bytes(whole)

    async def reads(self) -> bytes:
        return await asyncio.to_thread(self.read)


def opened(downloads: Downloads, party: Member | None = None, address: str = "here") -> Peer:
    return Peer(downloads.claim(downloads.ticket(MODEL, party), address))


@pytest.fixture(params=["the kernel waits", "it does not"])
def way(request, monkeypatch):
    """How bytes are sent."""
    assert lane.kernel_waits(), "what is tested here is what the kernel does"
    if request.param == "it does not":
        monkeypatch.setattr(downloading, "kernel_waits", lambda: False)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("party", [None, ALICE])
def test_a_model_arrives_as_it_is_and_then_its_lane_ends(party):
    async def work(downloads: Downloads) -> None:
        peer = opened(downloads, party)
        assert await peer.reads() == RAW
        await peer.gone.wait()

    run(work)


def test_strangers_share_a_ticket_and_a_party_has_one_for_one_lane():
    async def work(downloads: Downloads) -> None:
        common = downloads.show(MODEL)
        assert len(common) == TICKET_BYTES
        assert downloads.ticket(MODEL, None) == downloads.show(MODEL) == common
        own, others = downloads.ticket(MODEL, ALICE), downloads.ticket(MODEL, BOB)
        assert len({common, own, others}) == 3
        assert downloads.claim(bytes(TICKET_BYTES), "here") is None
        for _ in range(2):
            first = downloads.claim(common, "here")
            assert first is not None
            assert first.party is None
        mine = downloads.claim(own, "here")
        assert mine is not None
        assert mine.party == ALICE
        assert downloads.claim(own, "here") is None
        newest = [downloads.ticket(MODEL, BOB) for _ in range(3)][-1]
        assert downloads.claim(others, "here") is None
        assert downloads.claim(newest, "here") is not None

    run(work)


def test_tickets_of_an_older_model_open_nothing():
    async def work(downloads: Downloads) -> None:
        assert downloads.claim(bytes(TICKET_BYTES), "here") is None  # There is no model yet.
        older = [downloads.ticket(MODEL, party) for party in (None, ALICE)]
        newer = MODEL + 1
        ticket = downloads.ticket(newer, None)
        assert [downloads.claim(each, "here") for each in older] == [None, None]
        assert await Peer(downloads.claim(ticket, "here")).reads() == newer.tobytes()

    run(work)


def test_a_model_that_is_being_sent_is_that_of_its_ticket():
    """Another may be published meanwhile, into memory that is used again."""
    spares = Spares()

    async def work(downloads: Downloads) -> None:
        vector = spares.take(D)
        vector[:] = MODEL
        peer = Peer(downloads.claim(downloads.ticket(vector, None), "here"))
        began = await asyncio.to_thread(peer.far.recv, 2**10)
        downloads.show(MODEL + 1)
        del vector
        gc.collect()
        other = spares.take(D)
        other[:] = 0
        assert began + await peer.reads() == RAW
        await peer.gone.wait()
        peer.opened, where = None, other.ctypes.data  # type: ignore[assignment]
        gc.collect()
        again = spares.take(D)
        again[:] = 1  # And it comes back, once nobody reads it.
        assert again.ctypes.data != where
        assert not spares._free

    run(work)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("taken", [0, 1, 2**20])
def test_a_peer_that_does_not_read_is_cut_off_and_its_turn_is_free(taken):
    async def work(downloads: Downloads) -> None:
        peer = opened(downloads)
        if taken:
            await asyncio.to_thread(peer.far.recv, taken)
        await asyncio.wait_for(peer.gone.wait(), PATIENCE_S)
        # The next one may be slow, on a slow machine.
        downloads._line = partial(downloads._line, idle_s=PATIENCE_S)
        with peer.far:
            assert await opened(downloads).reads() == RAW

    run(work, places=1, idle_s=SHORT_S)


@pytest.mark.usefixtures("way")
def test_a_peer_that_drips_has_to_take_a_part_in_its_time():
    over = threading.Event()

    def drip(far: socket.socket) -> None:
        with suppress(OSError):
            while not over.wait(0.02) and far.recv(10):
                pass

    async def work(downloads: Downloads) -> None:
        peer = opened(downloads)
        with peer.far:
            dripping = asyncio.create_task(asyncio.to_thread(drip, peer.far))
            await asyncio.wait_for(peer.gone.wait(), PATIENCE_S)
            over.set()
            await dripping

    run(work, idle_s=SHORT_S)


@pytest.mark.usefixtures("way")
def test_a_peer_that_has_all_and_does_not_end_is_ended():
    """It is a turn until then: the system may still hold much that the peer does not take."""

    async def work(downloads: Downloads) -> None:
        short = MODEL[:1000].copy()  # which the system takes at once
        peer = Peer(downloads.claim(downloads.ticket(short, None), "here"))
        with peer.far:
            got = b""
            while len(got) < short.nbytes:
                got += await asyncio.to_thread(peer.far.recv, 2**20)
            assert got == short.tobytes()
            await asyncio.wait_for(peer.gone.wait(), PATIENCE_S)

    run(work, idle_s=SHORT_S)


def test_a_peer_that_is_gone_costs_nobody_a_turn():
    async def work(downloads: Downloads) -> None:
        for _ in range(3):
            peer = opened(downloads)
            peer.far.close()
            await asyncio.wait_for(peer.gone.wait(), PATIENCE_S)
        assert await opened(downloads).reads() == RAW

    run(work, places=1)


def test_strangers_do_not_take_the_turns_of_the_enrolled():
    async def work(downloads: Downloads) -> None:
        unread = [opened(downloads, address=f"there-{each}") for each in range(4)]
        assert await opened(downloads, ALICE).reads() == RAW
        for each in unread:
            each.far.close()
            await each.gone.wait()

    run(work)


def test_one_address_has_only_so_many_lanes_and_so_has_a_party():
    async def work(downloads: Downloads) -> None:
        common = downloads.show(MODEL)
        strangers = [downloads.claim(common, "here") for _ in range(40)]
        assert sum(each is not None for each in strangers) == 32
        assert downloads.claim(common, "there") is not None
        own = [downloads.claim(downloads.ticket(MODEL, ALICE), "here") for _ in range(10)]
        assert sum(each is not None for each in own) == 8
        assert downloads.claim(downloads.ticket(MODEL, BOB), "here") is not None
        first = Peer(own[0])
        first.far.close()
        await first.gone.wait()
        assert downloads.claim(downloads.ticket(MODEL, ALICE), "here") is not None

    run(work)


def test_who_waits_in_line_holds_no_thread_and_can_be_cut():
    async def work(downloads: Downloads) -> None:
        first = opened(downloads)
        assert await asyncio.to_thread(first.far.recv, 1) == RAW[:1]
        waiting = [opened(downloads) for _ in range(5)]
        for _ in range(10):
            await asyncio.sleep(0)
        names = [each.name for each in threading.enumerate()]
        assert len([each for each in names if each.startswith("ostraka-download")]) == 1
        for each in waiting[:4]:
            each.opened.cut()
            await each.gone.wait()
            assert await each.reads() == b""
        assert RAW[:1] + await first.reads() == RAW
        assert await waiting[4].reads() == RAW

    run(work, places=1)


def test_a_turn_ends_when_others_wait_for_it():
    """A peer that takes its parts in time, and no more, has a turn as long as all others."""
    over = threading.Event()

    def slowly(far: socket.socket) -> None:
        with suppress(OSError):
            while not over.wait(0.01) and far.recv(2**15):
                pass

    async def work(downloads: Downloads) -> None:
        downloads._strangers.turns._turn_s = 0.0
        first = opened(downloads)
        reading = asyncio.create_task(asyncio.to_thread(slowly, first.far))
        assert await opened(downloads).reads() == RAW
        await first.gone.wait()
        over.set()
        await reading
        first.far.close()

    run(work, places=1)


def test_a_service_that_ends_does_not_wait_for_its_readers(tmp_path):
    async def main() -> None:
        with (
            ExitStack() as stack,  # Peers are there for longer than the service.
            Tickets(1, idle_s=PATIENCE_S) as tickets,
            Downloads(1, idle_s=600, most_s=600) as downloads,
            Front(4, folder=tmp_path, idle_s=600, lanes=(tickets, downloads)) as front,
        ):
            front.pass_on_to(front.back_address(), 1)
            port = front.listen("127.0.0.1:0")
            for _ in range(3):
                far = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
                stack.enter_context(far)
                far.sendall(LANE + downloads.show(MODEL))
            while len(front._visitors) < 3:
                await asyncio.sleep(0.01)

    asyncio.run(main())


@pytest.mark.parametrize("taken", [len(RAW), 1000])
def test_a_lane_that_has_ended_holds_no_model(tmp_path, taken):
    """Its memory is for the next round, and must not wait until Python looks for cycles."""
    spares = Spares()

    async def work(downloads: Downloads) -> None:
        model = spares.take(D)
        model[:] = MODEL
        ticket = downloads.show(model)
        with (
            Tickets(1, idle_s=PATIENCE_S) as tickets,
            Front(4, folder=tmp_path, idle_s=PATIENCE_S, lanes=(tickets, downloads)) as front,
        ):
            port = front.listen("127.0.0.1:0")
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as far:
                far.sendall(LANE + ticket)
                await asyncio.to_thread(far.recv, taken, socket.MSG_WAITALL)
            while front._visitors:
                await asyncio.sleep(0.01)
            downloads.show(MODEL)
            del model
            assert spares._free

    gc.collect()
    gc.disable()
    try:
        run(work)
    finally:
        gc.enable()


@pytest.mark.parametrize("ends", [True, False])
def test_nothing_is_kept_for_a_peer_that_has_no_place_any_more(tmp_path, ends):
    """One that says something, or ends its side, and reads nothing. The model is so short that the
    system takes all of it."""
    short = MODEL[: 2**14 - 100]

    async def work(downloads: Downloads) -> None:
        with (
            Tickets(1, idle_s=PATIENCE_S) as tickets,
            Front(4, folder=tmp_path, idle_s=PATIENCE_S, lanes=(tickets, downloads)) as front,
            socket.socket() as far,
        ):
            far.settimeout(PATIENCE_S)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**12)
            far.connect(("127.0.0.1", front.listen("127.0.0.1:0")))
            far.sendall(LANE + downloads.show(short) + (b"" if ends else b"?"))
            if ends:
                far.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                await asyncio.to_thread(far.recv, 1, socket.MSG_PEEK)
            while front._visitors:
                await asyncio.sleep(0.01)
            came = 0
            with suppress(ConnectionResetError):
                while data := far.recv(2**20):
                    came += len(data)
            assert came < short.nbytes

    run(work)


@pytest.mark.parametrize("party", [None, ALICE])
def test_a_stranger_s_lane_gives_way_to_a_flood_and_a_party_s_does_not(tmp_path, party):
    async def work(downloads: Downloads) -> None:
        with (
            Tickets(1, idle_s=PATIENCE_S) as tickets,
            Front(4, folder=tmp_path, idle_s=PATIENCE_S, lanes=(tickets, downloads)) as front,
            ExitStack() as stack,
        ):
            front.pass_on_to(front.back_address(), 1)  # where nobody is
            port = front.listen("127.0.0.1:0")

            def connect() -> socket.socket:
                return stack.enter_context(
                    socket.create_connection(("127.0.0.1", port), PATIENCE_S)
                )

            ours = connect()
            ours.sendall(LANE + downloads.ticket(MODEL, party))
            assert await asyncio.to_thread(ours.recv, 1) == RAW[:1]
            for _ in range(6):
                connect()
            await asyncio.sleep(0.05)

            def read() -> int:
                count = 1
                with suppress(ConnectionResetError):
                    while taken := len(ours.recv(2**20)):
                        count += taken
                return count

            came = await asyncio.to_thread(read)
            assert (came == len(RAW)) is (party is not None)

    run(work)


@pytest.mark.parametrize("turn_s", [PATIENCE_S, None])
def test_who_waits_for_a_turn_waits_for_the_handshake_too(tmp_path, certificate, turn_s):
    public, private = tmp_path / "tls.pem", tmp_path / "tls.key"
    for path, content in zip((public, private), certificate, strict=True):
        path.write_bytes(content)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(public, private)

    async def main() -> None:
        with (
            Tickets(1, idle_s=PATIENCE_S) as tickets,
            Downloads(1, idle_s=15 * SHORT_S, most_s=PATIENCE_S, tls=tls) as downloads,
            Front(4, folder=tmp_path, idle_s=PATIENCE_S, lanes=(tickets, downloads)) as front,
        ):
            port = front.listen("127.0.0.1:0")
            ticket = downloads.show(MODEL)
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as first:
                first.sendall(LANE + ticket)
                await asyncio.sleep(SHORT_S)  # It has the only turn, and does not shake hands.
                opening = asyncio.to_thread(
                    dial_lane,
                    f"localhost:{port}",
                    ticket,
                    tls_ca=public,
                    seconds=SHORT_S,
                    turn_s=turn_s,
                )
                if turn_s is None:
                    with pytest.raises(TimeoutError):
                        await opening
                else:
                    with await opening as second:
                        assert await asyncio.to_thread(second.recv, 1) == RAW[:1]

    asyncio.run(main())


# Of a whole service.


@pytest.fixture
def secured(start, certificate):
    """A service with TLS, and its certificate."""
    service = start(clients=5, dimension=1000, run=False, settings={"idle_s": 2.0})
    public, private = certificate
    (service.root / "tls.pem").write_bytes(public)
    (service.root / "tls.key").write_bytes(private)
    (service.root / "tls.key").chmod(0o600)
    service.set(tls_certificate="tls.pem", tls_key="tls.key")
    service.start()
    service.wait_for("RoundOpened")
    return service, service.root / "tls.pem"


@pytest.mark.slow
def test_a_model_over_tls(secured, speaker):
    service, ca = secured
    with Connection(
        f"localhost:{service.port}",
        tls_ca=ca,
        patience=Patience(PATIENCE_S),
        tell=lambda event: None,
    ) as connection:
        by_hand = speaker(service, 1, greets=False)
        by_hand.stub = connection.stub
        joined = by_hand.join()
        federation = joined.client.federation
        model = download(connection, joined.offer.model, federation)
        assert model.shape == (1000,)
        (whole,) = by_hand.slices(joined.offer.model)
        # Without a ticket there is no handshake, and with one there has to be one, in time.
        for ticket, answered in ((bytes(TICKET_BYTES), b""), (whole.ticket, b"")):
            with by_hand.open_lane(ticket) as silent, suppress(ConnectionResetError):
                assert silent.recv(1) == answered
        with by_hand.open_lane(whole.ticket) as plain, suppress(ConnectionResetError):
            plain.sendall(os.urandom(100))
            assert model.tobytes()[:16] not in plain.recv(2**16)
        context = ssl.create_default_context(cafile=str(ca))
        with (
            by_hand.open_lane(whole.ticket) as near,
            context.wrap_socket(near, server_hostname="localhost") as inside,
        ):
            assert inside.recv(4) == model.tobytes()[:4]
