"""Hostile peers: whatever one of them sends, it is refused, and the others finish the round."""

import asyncio
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from ostraka.enclave.workers import Pool
from ostraka.encoding import UNSIGNED, encode
from ostraka.messages import Challenge, Charter, Receipt
from ostraka.transport import LANE, LENGTH, TICKET_BYTES
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub

pytestmark = pytest.mark.slow  # in make test, not in make check

RNG = np.random.default_rng(0)
N, D, TILE = 5, 1000, 128
# Meant for whoever is hostile. The honest ones meet it too, on a machine that may be slow.
SHORT_S = 3.0

BROKEN = grpc.StatusCode.ABORTED
DENIED = grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
NO_SHARDS = grpc.StatusCode.FAILED_PRECONDITION  # whatever is said to join an enclave without
LATE = grpc.StatusCode.DEADLINE_EXCEEDED
MISSING = grpc.StatusCode.NOT_FOUND
REFUSED = grpc.StatusCode.FAILED_PRECONDITION
AWAY = grpc.StatusCode.UNAVAILABLE
UNKNOWN_METHOD = grpc.StatusCode.UNIMPLEMENTED

SERVICE = "/ostraka.v1.Enclave"
METHODS = [method.name for method in wire.DESCRIPTOR.services_by_name["Enclave"].methods]


@dataclass
class Scene:
    """A service whose first round is open, and the clients of it, by number."""

    service: Any
    speaker: Callable[..., Any]
    updates: np.ndarray
    clients: dict[int | str, Any] = field(default_factory=dict)
    played: int = 0

    def client(self, who: int | str) -> Any:
        if who not in self.clients:
            self.clients[who] = self.speaker(self.service, who)
        return self.clients[who]

    @property
    def stub(self) -> Any:
        return self.client(1).stub

    def seal(self, number: int) -> Any:
        return self.client(number).join().seal(self.updates[number - 1]).sealed

    def finish(self, but: tuple[int, ...] = ()) -> Receipt:
        """The honest rest of the round."""
        here = [number for number in range(1, len(self.updates) + 1) if number not in but]
        joined = {number: self.client(number).send(self.updates[number - 1]) for number in here}
        receipts = [self.client(number).follow(joined[number]) for number in here]
        assert len(set(receipts)) == 1
        self.played += 1
        return receipts[0]

    def assert_unaffected(self) -> None:
        receipt = self.finish()
        assert receipt.participants == len(self.updates)
        assert receipt.rejected == ()
        assert not self.service.named("RoundSkipped")


def open_scene(start: Any, speaker: Any, d: int = D, clients: int = N, **settings: Any) -> Scene:
    settings = {"tile": TILE, "deadline_s": 600, "idle_s": 20} | settings
    service = start(clients=clients, dimension=d, settings=settings)
    service.wait_for("RoundOpened")
    return Scene(service, speaker, RNG.normal(size=(clients, d)).astype(np.float32))


@pytest.fixture
def _no_bug(caplog) -> Iterator[None]:
    """A bug of ours would be told in the log, and not to the peer."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [each.message for each in caplog.records] == []


@pytest.fixture
def scene(start, speaker, _no_bug) -> Callable[..., Scene]:
    return partial(open_scene, start, speaker)


@pytest.fixture(scope="module")
def one_scene(start_once, speaker_once) -> Scene:
    return open_scene(start_once, speaker_once, count=1000)


@pytest.fixture
def next_round(one_scene, _no_bug) -> Scene:
    """An open round, of a service that has seen what the tests before this one have done to it."""
    one_scene.service.wait_for("RoundOpened", one_scene.played + 1)
    return one_scene


def raw_call(scene: Scene, method: str, messages: tuple[bytes, ...] = ()) -> list[bytes]:
    """Any bytes to any method, as a stream: the wire does not tell it from a single request."""
    channel = scene.service.channel()
    with channel:
        return list(channel.stream_stream(f"{SERVICE}/{method}")(iter(messages), timeout=60))


def upload(scene: Scene, header: Any, *tiles: Any) -> list[wire.UploadReply]:
    """An upload of client 1 whose lane ends behind these tiles."""
    with scene.client(1).begin(header) as sending:
        replies = [sending.hear()]
        sending.say(*tiles)
        sending.hang_up()
        return [*replies, *sending]


def introduce(scene: Scene, challenge: Any) -> None:
    raw = challenge if isinstance(challenge, bytes) else encode(challenge)
    scene.stub.Introduce(wire.IntroduceRequest(challenge=raw), timeout=60)


def challenge_of(scene: Scene, who: str = "client-1", by: str = "client-1") -> Challenge:
    return scene.service.identity(by).sign(Challenge(b"n" * 32, who, UNSIGNED))


def signed_header(scene: Scene, **lies: Any) -> Any:
    """What client 1 itself has signed."""
    header = replace(scene.seal(1).header, **lies)
    return scene.service.identity("client-1").sign(header)


def with_tile(change: Callable[[bytes], bytes]) -> Callable[[Scene], None]:
    """An upload of client 1 with its third tile changed."""

    def attack(scene: Scene) -> None:
        sealed = scene.seal(1)
        tiles = [bytes(tile.ciphertext) for tile in sealed.tiles]
        upload(scene, sealed.header, *tiles[:2], change(tiles[2]), *tiles[3:])

    return attack


def with_order(*numbers: int) -> Callable[[Scene], None]:
    """An upload of client 1 whose tiles come in this order."""

    def attack(scene: Scene) -> None:
        sealed = scene.seal(1)
        upload(scene, sealed.header, *(sealed.tiles[number] for number in numbers))

    return attack


def foreign_tile(scene: Scene) -> None:
    """Client 1 sends what would complete the upload of client 2, which has told its id."""
    victim = scene.seal(2)
    with pytest.raises(grpc.RpcError):
        scene.client(2).upload(victim, victim.tiles[:-1])
    upload(scene, scene.seal(1).header, victim.tiles[-1])


def raw_frames(*data: bytes) -> Callable[[Scene], None]:
    """A lane of client 1 that says this, and ends."""

    def attack(scene: Scene) -> None:
        with scene.client(1).begin(scene.seal(1).header) as sending:
            sending.hear()
            sending.say_raw(b"".join(data))
            sending.hang_up()
            list(sending)

    return attack


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


REFUSALS: dict[str, tuple[Callable[[Scene], Any], grpc.StatusCode, str]] = {
    "a method that there is not": (
        lambda scene: raw_call(scene, "GiveMeTheKeys"),
        UNKNOWN_METHOD,
        "",
    ),
    "a challenge of no bytes": (lambda scene: introduce(scene, b""), INVALID, "not a Challenge"),
    "a challenge of any bytes": (lambda scene: introduce(scene, RNG.bytes(100)), INVALID, ""),
    "a challenge that is another message": (
        lambda scene: introduce(scene, scene.seal(1).header),
        INVALID,
        "not a Challenge",
    ),
    "a challenge that is not signed": (
        lambda scene: introduce(scene, Challenge(b"n" * 32, "client-1", UNSIGNED)),
        DENIED,
        "does not open",
    ),
    "a challenge signed by another client": (
        lambda scene: introduce(scene, challenge_of(scene, by="client-2")),
        DENIED,
        "does not open",
    ),
    "a challenge signed by a worker": (
        lambda scene: introduce(scene, challenge_of(scene, who="worker-1", by="worker-1")),
        DENIED,
        "does not open",
    ),
    "a challenge by nobody who is enrolled": (
        lambda scene: introduce(scene, challenge_of(scene, who="mallory")),
        DENIED,
        "does not open",
    ),
    "an upload without a header": (
        lambda scene: upload(scene, b""),
        INVALID,
        "UpdateHeader",
    ),
    "an upload that begins with a tile": (
        lambda scene: upload(scene, encode(scene.seal(1).tiles[0])),
        INVALID,
        "UpdateHeader",
    ),
    "a header of any bytes": (
        lambda scene: upload(scene, RNG.bytes(2000)),
        INVALID,
        "",
    ),
    "a header with one bit changed": (
        lambda scene: upload(scene, flip(encode(scene.seal(1).header), -100)),
        DENIED,
        "does not open",
    ),
    "a header signed by another client": (
        lambda scene: upload(scene, scene.service.identity("client-2").sign(scene.seal(1).header)),
        DENIED,
        "does not open",
    ),
    "a header by nobody who is enrolled": (
        lambda scene: upload(scene, signed_header(scene, client="mallory")),
        DENIED,
        "does not open",
    ),
    "a header of another round": (
        lambda scene: upload(scene, signed_header(scene, round_id=bytes(32))),
        REFUSED,
        "another round",
    ),
    "a header for another federation": (
        lambda scene: upload(scene, signed_header(scene, federation=bytes(32))),
        REFUSED,
        "another federation",
    ),
    "a header sealed to another round key": (
        lambda scene: upload(scene, signed_header(scene, round_key=bytes(32))),
        REFUSED,
        "another round key",
    ),
    "a header that promises other tiles": (
        lambda scene: upload(scene, signed_header(scene, tiles=10**6)),
        REFUSED,
        "wrong dimension",
    ),
    "a sealed key of any bytes": (
        lambda scene: upload(scene, signed_header(scene, sealed_key=RNG.bytes(1200))),
        REFUSED,
        "does not open",
    ),
    "an upload that breaks off before it begins": (
        lambda scene: upload(scene, scene.seal(1).header),
        BROKEN,
        "before it was complete",
    ),
    "an upload that breaks off behind a tile": (with_order(0, 1), BROKEN, "before it was complete"),
    "a tile of any bytes": (with_tile(lambda tile: RNG.bytes(len(tile))), DENIED, "tile does not"),
    "a tile with one bit changed": (with_tile(lambda tile: flip(tile, 7)), DENIED, "tile does not"),
    "a tile of another client's upload": (foreign_tile, DENIED, "tile does not open"),
    "a tile twice": (with_order(0, 0), DENIED, "tile does not open"),
    "a tile before its turn": (with_order(0, 2, 1), DENIED, "tile does not open"),
    "tiles backwards": (with_order(6, 5, 4), DENIED, "tile does not open"),
    "a tile that is too long": (with_tile(lambda tile: tile + b"x"), DENIED, "tile does not open"),
    "a tile that is too short": (with_tile(lambda tile: tile[1:]), DENIED, "tile does not open"),
    "a tile of nothing": (with_tile(lambda tile: b""), DENIED, "tile does not open"),
    "a frame that promises too much, and ends": (
        raw_frames(LENGTH.pack(2**32 - 1), b"x"),
        DENIED,
        "tile does not open",
    ),
    "a frame that promises too little, and ends": (
        raw_frames(LENGTH.pack(1), b"x"),
        DENIED,
        "tile does not open",
    ),
    "half of a frame": (
        raw_frames(LENGTH.pack(4 * TILE + 16), bytes(2 * TILE)),
        BROKEN,
        "before it was complete",
    ),
    "half of a frame's length": (raw_frames(b"\0\0"), BROKEN, "before it was complete"),
    "noise on a lane": (raw_frames(RNG.bytes(10**5)), DENIED, "tile does not open"),
    "a message above the limit": (
        lambda scene: scene.stub.Introduce(wire.IntroduceRequest(challenge=bytes(2**23))),
        EXHAUSTED,
        "larger than max",
    ),
    "an upload's request above the limit": (
        lambda scene: upload(scene, bytes(2**16)),
        INVALID,
        "too long",
    ),
    "a model that there is not": (
        lambda scene: scene.stub.GetModel(wire.ModelRequest(digest=bytes(32))),
        MISSING,
        "not the present model",
    ),
    "a model named by any bytes": (
        lambda scene: scene.stub.GetModel(wire.ModelRequest(digest=RNG.bytes(10**6))),
        MISSING,
        "not the present model",
    ),
    "a charter of any bytes": (
        lambda scene: scene.stub.Adopt(wire.AdoptRequest(charter=RNG.bytes(1000))),
        INVALID,
        "",
    ),
    "a charter that nobody signed": (
        lambda scene: scene.stub.Adopt(
            wire.AdoptRequest(charter=encode(replace(charter_of(scene), signature=UNSIGNED)))
        ),
        DENIED,
        "does not open",
    ),
    **{
        f"bytes that are no protobuf, for {method}": (
            partial(raw_call, method=method, messages=(b"\xff\xff\xff this is no protobuf",)),
            NO_SHARDS if method == "Join" else INVALID,
            "",
        )
        for method in METHODS
    },
    **{
        f"no request at all, for {method}": (
            partial(raw_call, method=method),
            NO_SHARDS if method == "Join" else INVALID,
            "",
        )
        for method in METHODS
    },
}


def charter_of(scene: Scene) -> Charter:
    return scene.client(1).charter()


@pytest.mark.parametrize("sentence", REFUSALS)
def test_it_is_refused_and_the_round_goes_on(next_round, sentence):
    attack, code, details = REFUSALS[sentence]
    here = next_round
    with pytest.raises(grpc.RpcError) as caught:
        attack(here)
    assert (caught.value.code(), details in str(caught.value.details())) == (code, True)
    here.assert_unaffected()


class Stream:
    """A stream of this side's making: it says what it is told to, when it is told to."""

    def __init__(self, method: Any, *parts: Any) -> None:
        self._parts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = method(iter(self._parts.get, None), timeout=60)
        self.say(*parts)

    def say(self, *parts: Any) -> None:
        for part in parts:
            self._parts.put(part)

    def hear(self) -> Any:
        return next(self._call)

    def ends_with(self) -> grpc.StatusCode:
        """How the service ended it."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError:
            pass
        assert self._call.details() != "Deadline Exceeded", "the service has not ended it"
        return self._call.code()

    def close(self) -> None:
        self._parts.put(None)
        self._call.cancel()


@pytest.fixture
def stream() -> Iterator[Callable[..., Stream]]:
    streams: list[Stream] = []

    def make(method: Any, *parts: Any) -> Stream:
        streams.append(Stream(method, *parts))
        return streams[-1]

    yield make
    for each in streams:
        each.close()


@pytest.fixture
def begin() -> Iterator[Callable[..., Any]]:
    """begin(client, header) is an upload that ends with the test, at the latest."""
    uploads: list[Any] = []

    def make(client: Any, header: Any, **given: Any) -> Any:
        uploads.append(client.begin(header, **given))
        return uploads[-1]

    yield make
    for each in uploads:
        each.close()


@contextmanager
def drip(say: Callable[[bytes], None], data: bytes, size: int) -> Iterator[None]:
    """So many bytes at a time, many seconds long, without falling silent."""
    over = threading.Event()

    def drop() -> None:
        for start in range(0, len(data), size):
            if over.wait(0.2):
                return
            say(data[start : start + size])

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def framed(sealed: Any) -> bytes:
    raw = [bytes(tile.ciphertext) for tile in sealed.tiles]
    return b"".join(LENGTH.pack(len(each)) + each for each in raw)


def test_a_client_that_is_granted_a_turn_and_sends_nothing_loses_its_place(scene, begin):
    here = scene(uploads=1, idle_s=SHORT_S)
    silent = begin(here.client(1), here.seal(1).header)
    assert silent.hear().HasField("granted")
    for number in range(2, N + 1):
        here.client(number).send(here.updates[number - 1])
    assert silent.ends_with() == LATE
    joined = here.client(1).send(here.updates[0])
    assert here.client(1).follow(joined).participants == N


def test_a_lane_that_falls_silent_loses_its_place(scene, begin):
    here = scene(uploads=1, idle_s=SHORT_S)
    sealed = here.seal(1)
    silent = begin(here.client(1), sealed.header)
    assert silent.hear().WhichOneof("answer") == "granted"
    silent.say(*sealed.tiles[:2])
    for number in range(2, N + 1):
        here.client(number).send(here.updates[number - 1])
    assert silent.ends_with() == LATE
    assert here.service.named("UploadRefused")[0].client == "client-1"
    assert silent.lane.recv(1) == b""
    joined = here.client(1).send(here.updates[0])
    assert here.client(1).follow(joined).participants == N


def test_a_frame_that_drips_ends(scene, begin):
    """It never falls silent; each frame has its time all the same."""
    here = scene(idle_s=SHORT_S)
    sealed = here.seal(1)
    slow = begin(here.client(1), sealed.header)
    assert slow.hear().WhichOneof("answer") == "granted"
    with drip(slow.say_raw, framed(sealed), 5):
        assert slow.ends_with() == LATE
    assert here.service.named("UploadRefused")[-1].why == "too slow"
    here.assert_unaffected()


def test_a_lane_that_trickles_ends(scene, begin):
    here = scene(tile=10, upload_s=SHORT_S)
    sealed = here.seal(1)
    slow = begin(here.client(1), sealed.header)
    assert slow.hear().WhichOneof("answer") == "granted"
    with drip(slow.say_raw, framed(sealed), 60):
        assert slow.ends_with() == LATE
    assert here.service.named("UploadRefused")[-1].why == "too slow"
    here.assert_unaffected()


def test_a_lane_that_trickles_makes_room_for_those_who_wait(scene, begin):
    here = scene(tile=10, uploads=1, idle_s=SHORT_S, upload_s=600)
    sealed = here.seal(1)
    slow = begin(here.client(1), sealed.header)
    assert slow.hear().WhichOneof("answer") == "granted"
    with drip(slow.say_raw, framed(sealed), 60):
        here.client(2).send(here.updates[1])
        assert slow.ends_with() == LATE
    again = begin(here.client(1), sealed.header)
    assert again.hear().granted.next > 0  # What has arrived is kept.
    assert again.finish(sealed) == "complete"
    for number in range(3, N + 1):
        joined = here.client(number).send(here.updates[number - 1])
    assert here.client(N).follow(joined).participants == N


@pytest.fixture
def lane_threads() -> Callable[[], int]:
    """How many threads of lanes there are that were not there before."""

    def found() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("ostraka-lane")}

    before = found()
    return lambda: len(found() - before)


def test_more_uploads_than_there_are_places_wait(scene, begin, lane_threads):
    here = scene(uploads=2)
    sealed = {number: here.seal(number) for number in range(1, N + 1)}
    uploads = {number: begin(here.client(number), each.header) for number, each in sealed.items()}
    here.service.wait_for("UploadStarted", 2)
    time.sleep(0.2)
    done: set[int] = set()
    while len(done) < N:
        started = [int(each.client[-1]) for each in here.service.named("UploadStarted")]
        assert len(set(started) - done) <= 2
        number = next(each for each in started if each not in done)
        assert uploads[number].hear().WhichOneof("answer") == "granted"
        assert uploads[number].finish(sealed[number]) == "complete"
        # One that has just ended may not be waiting for the next yet.
        assert lane_threads() <= 3
        done.add(number)
        here.service.wait_for("UploadStarted", min(N, len(done) + 2))
    assert here.service.wait_for("RoundPublished").participants == N


def test_of_two_uploads_of_one_client_the_newer_one_counts(scene, begin):
    here = scene()
    sealed = here.seal(1)
    older = begin(here.client(1), sealed.header)
    assert older.hear().WhichOneof("answer") == "granted"
    older.say(*sealed.tiles[:3])
    newer = begin(here.speaker(here.service, 1), sealed.header)
    assert newer.hear().WhichOneof("answer") == "granted"
    assert older.ends_with() == LATE
    newest = begin(here.speaker(here.service, 1), sealed.header)
    assert newest.hear().granted.next <= 3
    assert newer.ends_with() == LATE
    assert newest.finish(sealed) == "complete"
    here.service.wait_for("UploadCompleted")
    assert here.finish(but=(1,)).participants == N


# Lanes.


def closed(lane: socket.socket) -> bool:
    """Whether the other side closes it. It sends nothing over a lane."""
    lane.settimeout(60)
    try:
        return lane.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_without_a_ticket_is_closed_and_costs_no_thread(scene, lane_threads):
    here = scene()
    for said in (LANE + bytes(TICKET_BYTES), LANE + RNG.bytes(1000), b"OSTRAKA\x02", b"OPTIONS *"):
        with socket.create_connection(("127.0.0.1", here.service.port)) as stranger:
            stranger.sendall(said)
            assert closed(stranger)
    assert lane_threads() == 0
    here.assert_unaffected()


def test_half_of_a_ticket_is_waited_for_as_long_as_for_any_first_word(scene):
    here = scene(idle_s=SHORT_S)
    with ExitStack() as stack:
        waiting = []
        for length in (1, len(LANE), len(LANE) + TICKET_BYTES - 1):
            each = socket.create_connection(("127.0.0.1", here.service.port))
            waiting.append(stack.enter_context(each))
            each.sendall((LANE + bytes(TICKET_BYTES))[:length])
        assert all(map(closed, waiting))
    here.assert_unaffected()


def test_a_request_that_comes_byte_by_byte_is_a_request(scene):
    here = scene()
    sealed = here.seal(1)
    request = wire.UploadRequest(header=encode(sealed.header)).SerializeToString()
    with here.client(1).open_lane(here.client(1).ticket()) as lane:
        lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in LENGTH.pack(len(request)) + request:
            lane.sendall(bytes([byte]))
            time.sleep(0.0005)
        (size,) = LENGTH.unpack(lane.recv(LENGTH.size, socket.MSG_WAITALL))
        granted = wire.UploadReply.FromString(lane.recv(size, socket.MSG_WAITALL))
        assert granted == wire.UploadReply(granted=wire.Granted(next=0))
    here.assert_unaffected()


REQUESTS = {
    "nothing": (b"", BROKEN),
    "half of a length": (b"\0\0", BROKEN),
    "half of a request": (LENGTH.pack(100) + b"x" * 50, BROKEN),
    "an empty request": (LENGTH.pack(0), INVALID),
    "noise": (LENGTH.pack(64) + b"\xff" * 64, INVALID),
    "a request that is too long": (LENGTH.pack(2**16 + 1), INVALID),
    "the longest length": (LENGTH.pack(2**32 - 1), INVALID),
    "more than a request": (LENGTH.pack(0) + b"x", INVALID),
}


@pytest.mark.parametrize("sentence", REQUESTS)
def test_a_bad_request_ends_its_lane_and_nothing_else(next_round, sentence):
    data, code = REQUESTS[sentence]
    client = next_round.client(1)
    with client.open_lane(client.ticket()) as lane, client.begin(None, lane=lane) as upload:
        lane.sendall(data)
        lane.shutdown(socket.SHUT_WR)
        assert upload.ends_with() == code
    next_round.assert_unaffected()


def test_a_silent_lane_is_told_that_it_is_late(scene):
    here = scene(idle_s=SHORT_S)
    client = here.client(1)
    with client.open_lane(client.ticket()) as lane:
        assert client.begin(None, lane=lane).ends_with() == LATE
    here.assert_unaffected()


def test_a_ticket_that_comes_byte_by_byte_is_a_ticket(scene, begin):
    here = scene()
    sealed = here.seal(1)
    with socket.create_connection(("127.0.0.1", here.service.port)) as lane:
        lane.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in LANE + here.client(1).ticket():
            lane.sendall(bytes([byte]))
            time.sleep(0.002)
        slow = begin(here.client(1), sealed.header, lane=lane)
        assert slow.hear().HasField("granted")
        assert slow.finish(sealed) == "complete"
    assert here.finish(but=(1,)).participants == N


def test_a_ticket_serves_one_connection(scene, begin):
    here = scene()
    sealed = here.seal(1)
    ticket = here.client(1).ticket()
    ours = begin(here.client(1), sealed.header, lane=here.client(1).open_lane(ticket))
    assert ours.hear().HasField("granted")
    ours.say(sealed.tiles[0])
    with here.client(1).open_lane(ticket) as second:
        assert closed(second)
    ours.say(*sealed.tiles[1:])
    assert ours.hear().WhichOneof("answer") == "complete"
    assert here.finish(but=(1,)).participants == N


def test_a_party_s_newest_ticket_replaces_the_one_before(scene):
    here = scene()
    sealed = here.seal(1)
    old, new = here.client(1).ticket(), here.client(1).ticket()
    with here.client(1).open_lane(old) as late:
        assert closed(late)
    here.client(2).ticket()  # Another's does not.
    with here.client(1).begin(sealed.header, lane=here.client(1).open_lane(new)) as upload:
        assert upload.hear().HasField("granted")
        assert upload.finish(sealed) == "complete"
    assert here.finish(but=(1,)).participants == N


def test_what_is_overheard_of_a_ticket_opens_nothing(scene, begin):
    """Its digest alone has been on the network before it is used: a party's stream, and its upload,
    are out of the reach of who listens."""
    here = scene()
    sealed, held_back = here.seal(1), here.seal(1)
    mine = begin(here.client(1), sealed.header)
    assert mine.hear().HasField("granted")
    mine.say(sealed.tiles[0])
    announced = sha256(here.client(1).ticket()).digest()
    for overheard in (sealed, held_back):
        with here.client(2).open_lane(announced) as thief:
            begin(here.client(2), overheard.header, lane=thief)
            assert closed(thief)
    mine.say(*sealed.tiles[1:])
    assert mine.hear().WhichOneof("answer") == "complete"
    assert here.finish(but=(1,)).participants == N


def test_a_digest_has_its_length(scene):
    here = scene()
    for digest in (b"", b"d" * 31, b"d" * 33):
        with pytest.raises(grpc.RpcError) as refused:
            here.client(1).stub.AnnounceTicket(wire.TicketRequest(ticket_digest=digest), timeout=60)
        assert refused.value.code() == INVALID
    here.assert_unaffected()


def test_a_server_that_starts_again_ends_the_uploads_of_before(scene, begin, monkeypatch):
    """What limits them is gone with it: they would hold threads that nobody counts."""
    servers: list[Any] = []
    real = grpc.aio.server

    def capture(**options: Any) -> Any:
        servers.append(real(**options))
        return servers[-1]

    monkeypatch.setattr(grpc.aio, "server", capture)
    here = scene(uploads=1)
    sealed = here.seal(1)
    before = begin(here.client(1), sealed.header)
    assert before.hear().HasField("granted")
    loop = here.service._loop
    asyncio.run_coroutine_threadsafe(servers[-1].stop(None), loop).result(60)
    here.service.wait_for("ServerRestarted")
    assert closed(before.lane)


def test_a_newer_lane_ends_the_one_before_and_goes_on_with_its_upload(scene, begin):
    here = scene()
    sealed = here.seal(1)
    older = begin(here.client(1), sealed.header)
    assert older.hear().HasField("granted")
    older.say(*sealed.tiles[:2])
    newer = begin(here.client(1), sealed.header)
    assert newer.hear().HasField("granted")
    assert older.ends_with() == LATE
    assert newer.finish(sealed) == "complete"
    assert here.finish(but=(1,)).participants == N


def test_a_refusal_arrives_while_the_other_side_goes_on_sending(scene, begin):
    here = scene()
    sealed = here.seal(1)
    talking = begin(here.client(1), sealed.header)
    assert talking.hear().HasField("granted")
    talking.say_raw(RNG.bytes(10**7))
    assert talking.ends_with() == DENIED
    assert here.client(1).upload(sealed)[-1].WhichOneof("answer") == "complete"
    assert here.finish(but=(1,)).participants == N


def test_a_client_that_disappears_half_way_comes_again(scene, begin):
    here = scene()
    sealed = here.seal(1)
    lost = begin(here.client(1), sealed.header)
    assert lost.hear().WhichOneof("answer") == "granted"
    lost.say(*sealed.tiles[:4])
    lost.lane.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    lost.lane.close()  # with a reset
    assert "ended" in here.service.wait_for("UploadRefused").why
    assert here.client(1).upload(sealed)[-1].WhichOneof("answer") == "complete"
    assert here.finish(but=(1,)).participants == N


def test_bytes_behind_the_last_frame_are_read_by_nobody(scene, begin):
    here = scene()
    sealed = here.seal(1)
    talking = begin(here.client(1), sealed.header)
    assert talking.hear().WhichOneof("answer") == "granted"
    talking.say_raw(framed(sealed) + RNG.bytes(10**6))
    assert talking.hear().WhichOneof("answer") == "complete"
    assert closed(talking.lane)
    assert here.finish(but=(1,)).participants == N


def test_a_thief_of_a_ticket_spoils_one_lane_and_nothing_of_the_upload(scene, begin):
    here = scene()
    sealed = here.seal(1)
    ticket = here.client(1).ticket()
    thief = begin(here.client(1), sealed.header, lane=here.client(1).open_lane(ticket))
    assert thief.hear().HasField("granted")
    thief.say_raw(framed(sealed)[:600] + RNG.bytes(2000))
    assert thief.ends_with() == DENIED
    with here.client(1).open_lane(ticket) as robbed:
        assert closed(robbed)
    replies = here.client(1).upload(sealed)
    assert replies[0].granted.next == 1  # The first tile was a true one, whoever brought it.
    assert replies[-1].WhichOneof("answer") == "complete"
    assert here.finish(but=(1,)).participants == N


def test_the_service_s_end_ends_lanes_and_their_threads(scene, begin, lane_threads):
    here = scene()
    sealed = here.seal(1)
    halfway = begin(here.client(1), sealed.header)
    assert halfway.hear().WhichOneof("answer") == "granted"
    halfway.say(*sealed.tiles[:2])
    while not lane_threads():
        time.sleep(0.01)
    here.service.crash()
    assert closed(halfway.lane)
    assert lane_threads() == 0


def test_a_replayed_header_changes_nothing(scene):
    here = scene()
    replaced = here.seal(1)
    with pytest.raises(grpc.RpcError):
        here.client(1).upload(replaced, replaced.tiles[:2])
    sealed = here.seal(1)
    with pytest.raises(grpc.RpcError):
        here.client(1).upload(sealed, sealed.tiles[:4])
    with pytest.raises(grpc.RpcError) as caught:
        here.client(2).upload(replaced)  # The name is in the header; who carries it is no matter.
    assert (caught.value.code(), caught.value.details()) == (REFUSED, "sent twice")
    replies = here.client(1).upload(sealed, sealed.tiles[4:])
    assert [each.WhichOneof("answer") for each in replies] == ["granted", "complete"]
    replies = here.client(2).upload(sealed, [])
    assert [each.WhichOneof("answer") for each in replies] == ["granted", "complete"]
    assert replies[0].granted.next == 8
    assert here.finish(but=(1,)).participants == N


def test_a_replayed_challenge_is_answered_for_its_own_nonce_alone(scene):
    here = scene()
    request = wire.IntroduceRequest(challenge=encode(challenge_of(here)))
    first, again = (here.client(2).stub.Introduce(request).introduction for _ in range(2))
    assert first == again
    here.assert_unaffected()


def test_a_revoked_client_is_refused_by_name(start, speaker):
    service = start(clients=N + 1, run=False)
    text = service.config.read_text()
    service.config.write_text(
        text.replace('name = "client-6"\n', 'name = "client-6"\nrevoked = "its key was stolen"\n')
    )
    service.sign()
    service.start()
    service.wait_for("RoundOpened")
    here = Scene(service, speaker, RNG.normal(size=(N, 100)).astype(np.float32))
    with pytest.raises(grpc.RpcError) as caught:
        here.client(6).introduce()
    assert caught.value.code() == DENIED
    header = replace(here.seal(1).header, client="client-6")
    with pytest.raises(grpc.RpcError) as caught:
        upload(here, service.identity("client-6").sign(header))
    assert caught.value.code() == DENIED
    refused = [(each.client, "revoked" in each.why) for each in service.named("UploadRefused")]
    assert refused == [("client-6", True)] * 2
    with pytest.raises(grpc.RpcError):
        upload(here, header)
    assert "does not open" in service.named("UploadRefused")[2].why
    here.assert_unaffected()


def test_a_client_that_asks_too_often_waits_alone(scene):
    here = scene(requests_per_minute=6)
    codes = []
    for _ in range(8):
        try:
            here.client(1).introduce()
        except grpc.RpcError as error:
            codes.append((error.code(), error.details()))
    assert codes == [(EXHAUSTED, "more than 6 requests a minute")] * 2
    for number in range(2, N + 1):
        here.client(number).send(here.updates[number - 1])
    assert set(here.service.named("UploadCompleted")[-1].client) <= set("client-5")


def test_strangers_cannot_fill_the_log_or_the_terminal(scene):
    here = scene(requests_per_minute=6)
    stranger = here.speaker(here.service, 1, greets=False)
    for number in range(12):
        header = signed_header_by_a_stranger(here, f"\x1b[2J\n{number}" + "x" * 1000)
        with stranger.begin(header) as refused, pytest.raises(grpc.RpcError):
            refused.hear()
    refused = here.service.named("UploadRefused")
    assert len(refused) == 6
    assert {each.why for each in refused} == {"not enrolled"}
    assert all(each.client.isprintable() and len(each.client) <= 64 for each in refused)


def signed_header_by_a_stranger(scene: Scene, name: str) -> Any:
    if "sealed" not in scene.clients:
        scene.clients["sealed"] = scene.seal(1)
    return replace(scene.clients["sealed"].header, client=name)


def ask_outcome(scene: Scene, number: int, round_id: bytes) -> str | None:
    request = wire.OutcomeRequest(number=number, round_id=round_id)
    return str(scene.stub.AwaitOutcome(request, timeout=60).WhichOneof("outcome"))


def test_outcomes_of_rounds_that_there_are_not(scene):
    here = scene()
    for number in (0, 1, 2, 2**63 - 1, 2**63, 2**64 - 1):
        assert ask_outcome(here, number, bytes(32)) == "void"
        assert ask_outcome(here, number, bytes(10**6)) == "void"
    here.assert_unaffected()
    assert ask_outcome(here, 1, b"") == "certified"
    assert ask_outcome(here, 2, bytes(32)) == "void"


def test_chains_from_rounds_that_there_are_not(scene):
    here = scene()
    here.assert_unaffected()
    for after, links in ((0, ["charter", "certified"]), (1, []), (2, ["charter"])):
        chain = list(here.stub.GetChain(wire.ChainRequest(after=after)))
        assert [each.WhichOneof("link") for each in chain] == links
    for after in (2**63 - 1, 2**63, 2**64 - 1):
        chain = list(here.stub.GetChain(wire.ChainRequest(after=after)))
        assert [each.WhichOneof("link") for each in chain] == ["charter"]


def test_one_address_cannot_take_all_the_places_of_strangers(scene, other_address):
    """Here a hostile client, who knows the round's id, waits for its outcome again and again."""
    here = scene()
    round_id = here.client(1).join().offer.round_id
    request = wire.OutcomeRequest(number=1, round_id=round_id)
    with other_address(here.service.port) as port, ExitStack() as stack:
        channels = [stack.enter_context(own_channel(port)) for _ in range(3)]
        hostile = EnclaveStub(channels[-1])
        waiting = [
            EnclaveStub(channel).AwaitOutcome.future(request)
            for channel in channels
            for _ in range(11)
        ]
        refused = threading.Event()
        for each in waiting:
            each.add_done_callback(lambda _: refused.set())
        assert refused.wait(60)
        assert [each.code() for each in waiting if each.done()] == [EXHAUSTED]
        with pytest.raises(grpc.RpcError) as caught:
            hostile.GetStatus(wire.StatusRequest(), timeout=60)
        assert caught.value.code() == EXHAUSTED
        here.assert_unaffected()
    assert here.stub.GetStatus(wire.StatusRequest()).json


def own_channel(port: int) -> grpc.Channel:
    """A connection of its own: within a process, gRPC would share them.

    It takes in 64 KiB by itself, and not more and more if the machine is slow.
    """
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    return grpc.insecure_channel(f"127.0.0.1:{port}", options=options)


HELLO_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def test_silent_connections_are_closed(scene):
    here = scene(idle_s=SHORT_S)
    with ExitStack() as stack:
        silent = []
        for hello in (b"", b"GET / HTTP/1.1\r\n\r\n", HELLO_HTTP2[:20], HELLO_HTTP2):
            each = socket.create_connection(("127.0.0.1", here.service.port))
            silent.append(stack.enter_context(each))
            each.settimeout(60)
            each.sendall(hello)
        for each in silent:
            with suppress(ConnectionResetError):  # which is an end as well
                while each.recv(2**16):
                    pass
    here.assert_unaffected()


def test_requests_that_do_not_come_are_not_waited_for(scene, stream):
    here = scene(idle_s=SHORT_S)
    with here.service.channel() as channel:
        silent = {name: stream(channel.stream_stream(f"{SERVICE}/{name}")) for name in METHODS}
        ends = {name: each.ends_with() for name, each in silent.items()}
    assert ends == dict.fromkeys(METHODS, LATE) | {"Join": NO_SHARDS}
    here.assert_unaffected()


def rest_of(lane: socket.socket) -> int:
    """How many bytes still come before it ends."""
    count = 0
    with suppress(ConnectionResetError):  # which is an end as well
        while taken := len(lane.recv(2**20)):
            count += taken
    return count


def test_readers_that_never_read_do_not_starve_the_others(scene):
    """The model is larger than what the system takes in by itself."""
    d = 4_000_000
    here = scene(d=d, tile=2**16, uploads=2, idle_s=SHORT_S)
    digest = here.client(1).join().offer.model
    stranger = here.speaker(here.service, 3, greets=False)
    (whole,) = stranger.slices(digest)
    with ExitStack() as stack:
        readers = [stack.enter_context(stranger.open_lane(whole.ticket)) for _ in range(2)]
        for reader in readers:  # Then both places of strangers are taken.
            assert len(reader.recv(1)) == 1
        assert here.client(2).model(digest).shape == (d,)
        assert stranger.model(digest).shape == (d,)
        here.assert_unaffected()
        # Somebody has made room. Who reads on before its own time is over gets the rest.
        assert any(rest_of(reader) < 4 * d - 1 for reader in readers)


def test_a_ticket_of_an_older_model_opens_nothing(scene):
    here = scene()
    first = here.client(1).join().offer.model
    stranger = here.speaker(here.service, 3, greets=False)
    tickets = [stranger.slices(first)[0].ticket, here.client(2).slices(first)[0].ticket]
    receipt = here.finish()
    assert here.client(1).model(receipt.model).shape == (D,)
    for ticket in tickets:
        with stranger.open_lane(ticket) as lane:
            assert rest_of(lane) == 0
    here.service.wait_for("RoundOpened", 2)
    here.assert_unaffected()


def test_a_party_s_ticket_is_good_for_one_lane(scene):
    """It travels in the clear. Who listens would else have the places and turns of the enrolled."""
    here = scene()
    digest = here.client(1).join().offer.model
    (whole,) = here.client(1).slices(digest)
    for sent in (4 * D, 0):
        with here.client(2).open_lane(whole.ticket) as lane:
            assert rest_of(lane) == sent
    older, newer = (here.client(1).slices(digest)[0].ticket for _ in range(2))
    for ticket, sent in ((older, 0), (newer, 4 * D)):
        with here.client(1).open_lane(ticket) as lane:
            assert rest_of(lane) == sent
    here.assert_unaffected()


def test_a_client_waits_for_a_round_a_few_times_at_once(scene, monkeypatch):
    """Between two rounds, challenges are held until the next one opens."""
    go_on, refused = threading.Event(), threading.Semaphore(0)

    async def wait_for_workers(*_: Any) -> None:
        await asyncio.to_thread(go_on.wait, 60)

    monkeypatch.setattr(Pool, "wait_for", wait_for_workers)
    here = scene(masking="exact")
    for number in range(1, N + 1):
        here.client(number).send(here.updates[number - 1])
    here.service.wait_for("RoundClosed")
    request = wire.IntroduceRequest(challenge=encode(challenge_of(here)))
    asking = [here.stub.Introduce.future(request, timeout=60) for _ in range(11)]
    for each in asking:
        each.add_done_callback(lambda _: refused.release())
    for _ in range(3):
        assert refused.acquire(timeout=60)
    go_on.set()
    codes = [each.code() for each in asking]
    assert codes.count(EXHAUSTED) == 3  # The others are told of the outcome, or of the next round.


def test_a_server_that_ends_is_started_again_and_the_round_goes_on(scene, monkeypatch):
    """gRPC 1.84 and 1.85 end a server for good when a method's name is not UTF-8."""
    servers: list[grpc.aio.Server] = []
    real = grpc.aio.server

    def capture(**options: Any) -> grpc.aio.Server:
        servers.append(real(**options))
        return servers[-1]

    monkeypatch.setattr(grpc.aio, "server", capture)
    here = scene()
    asyncio.run_coroutine_threadsafe(servers[0].stop(None), here.service._loop).result(60)
    here.service.wait_for("ServerRestarted")
    here.assert_unaffected()
    assert len(servers) == 2


def test_a_method_whose_name_is_no_text(scene):
    here = scene()
    path = f"{SERVICE}/".encode() + b"\xff\xfe"
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path)]
    fields += [(b":authority", b"enclave"), (b"te", b"trailers")]
    fields += [(b"content-type", b"application/grpc")]
    block = b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields
    )
    frame = len(block).to_bytes(3, "big") + bytes([1, 5, 0, 0, 0, 1]) + block
    with socket.create_connection(("127.0.0.1", here.service.port)) as hostile:
        hostile.settimeout(60)
        hostile.sendall(HELLO_HTTP2 + frame)
        said = b""
        while b"\x00\x00\x00\x01" not in said[50:]:  # anything about that call
            said += hostile.recv(2**16)
    here.assert_unaffected()
