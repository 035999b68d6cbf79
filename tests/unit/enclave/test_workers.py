"""Hostile and broken workers: each is named, and the round is finished without it."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
import pytest

from ostraka.core.gram import NumpyKernel
from ostraka.enclave.workers import Connection, Pool
from ostraka.encoding import UNSIGNED, decode, digest, encode
from ostraka.errors import WorkerGone
from ostraka.messages import Answer, ChannelAccept, ChannelOffer, ShareTile, WorkerHello
from ostraka.protocol.worker import Worker
from ostraka.transport import ostraka_pb2 as wire
from ostraka.transport.ostraka_pb2_grpc import EnclaveStub
from ostraka.worker import EnclavePin, Staff, Verifier, WorkerService

pytestmark = pytest.mark.slow  # in make test, not in make check

RNG = np.random.default_rng(0)
N, D = 5, 200
DENIED = grpc.StatusCode.PERMISSION_DENIED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
LATE = grpc.StatusCode.DEADLINE_EXCEEDED


class Hand:
    """A worker by hand: each message of it, to be said right or wrong."""

    def __init__(self, service: Any, name: str) -> None:
        self.name = name
        self.identity = service.identity(name)
        self._says: queue.SimpleQueue[Any] = queue.SimpleQueue()
        address = f"127.0.0.1:{service.port}"
        self.channel = grpc.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self.call = EnclaveStub(self.channel).Work(iter(self._says.get, None))
        self.welcome = self.hear().welcome

    def say(self, **what: Any) -> None:
        self._says.put(wire.WorkerSays(**what))

    def hear(self) -> Any:
        return next(self.call)

    def hello(self, **lies: Any) -> None:
        nonce, federation = self.welcome.nonce, self.welcome.federation
        blank = WorkerHello(nonce, federation, self.name, bytes(32), UNSIGNED)
        self.say(hello=encode(self.identity.sign(replace(blank, **lies))))

    def join(self) -> Any:
        """Be admitted. Gives the proof."""
        self.hello()
        return self.hear().proof

    def accept(self) -> Any:
        """Take the next offer as an honest worker does. Gives what computes."""
        offer = decode(ChannelOffer, self.hear().offer)
        worker = Worker(self.identity, receipt_key=self.welcome.receipt_key, kernel=NumpyKernel())
        computing, accepted = worker.accept(offer)
        self.say(accept=encode(accepted))
        return computing

    def answer(self, computing: Any) -> Answer:
        """Take all shares."""
        share = self.hear()
        computing.add(decode(ShareTile, share.share))
        return computing.answer()

    def code(self) -> grpc.StatusCode:
        """How the service has ended the stream."""
        with pytest.raises(grpc.RpcError) as caught:
            list(self.call)
        return caught.value.code()

    def close(self) -> None:
        self._says.put(None)
        self.call.cancel()
        self.channel.close()


@dataclass
class Shop:
    """A service that asks two of three workers."""

    service: Any
    speaker: Callable[..., Any]
    _ends: list[Callable[[], None]] = field(default_factory=list)

    def hand(self, name: str = "worker-1") -> Hand:
        hand = Hand(self.service, name)
        self._ends.append(hand.close)
        return hand

    def hire(self, *names: str) -> None:
        """Honest workers."""
        for name in names:
            verifier = Verifier.of(self.service.root / "policy.toml", unsafe_simulation=True)
            pin = EnclavePin(None, verifier=verifier)
            staff = Staff(name, self.service.identity(name), NumpyKernel(), pin)
            worker = WorkerService(f"127.0.0.1:{self.service.port}", staff)
            thread = threading.Thread(target=worker.run, name=name)
            thread.start()
            self._ends += [worker.stop, thread.join]
        self.await_workers(*names)

    def await_workers(self, *names: str) -> None:
        until = time.monotonic() + 60
        while not set(names) <= {each.worker for each in self.service.named("WorkerJoined")}:
            assert time.monotonic() < until
            time.sleep(0.01)

    def play(self) -> Any:
        """A whole round. Gives its receipt."""
        updates = RNG.normal(size=(N, D)).astype(np.float32)
        speakers = [self.speaker(self.service, number) for number in range(1, N + 1)]
        joined = [each.send(row) for each, row in zip(speakers, updates, strict=True)]
        return speakers[0].follow(joined[0])

    def close(self) -> None:
        for end in self._ends:
            end()


@pytest.fixture
def shop(start, speaker, caplog) -> Iterator[Callable[..., Shop]]:
    shops: list[Shop] = []

    def make(**settings: Any) -> Shop:
        settings = {"workers": 2, "tile": D, "deadline_s": 600, "measure_s": 30} | settings
        service = start(clients=N, workers=3, masking="exact", dimension=D, settings=settings)
        service.wait_for("RoundOpened")
        shops.append(Shop(service, speaker))
        return shops[-1]

    with caplog.at_level(logging.WARNING):
        yield make
    for each in shops:
        each.close()
    ours = [each for each in caplog.records if not each.name.startswith("ostraka.worker")]
    assert [each.message for each in ours] == []


def unsigned(hand: Hand) -> WorkerHello:
    welcome = hand.welcome
    return WorkerHello(welcome.nonce, welcome.federation, "worker-1", bytes(32), UNSIGNED)


HELLOS: dict[str, tuple[Callable[[Hand], None], grpc.StatusCode]] = {
    "for another nonce": (lambda hand: hand.hello(nonce=bytes(32)), DENIED),
    "for another federation": (lambda hand: hand.hello(federation=bytes(32)), DENIED),
    "in another worker's name": (lambda hand: hand.hello(worker="worker-2"), DENIED),
    "in a client's name": (lambda hand: hand.hello(worker="client-1"), DENIED),
    "in nobody's name": (lambda hand: hand.hello(worker=""), DENIED),
    "that is not signed": (
        lambda hand: hand.say(hello=encode(unsigned(hand))),
        DENIED,
    ),
    "of any bytes": (lambda hand: hand.say(hello=RNG.bytes(200)), INVALID),
    "that is an answer": (lambda hand: hand.say(answer=b"42"), INVALID),
    "that is an apology": (lambda hand: hand.say(sorry="I have no key"), INVALID),
    "that says nothing": (lambda hand: hand.say(), INVALID),
}


def test_hellos_are_refused(shop):
    here = shop()
    codes = {}
    for sentence, (attack, _) in HELLOS.items():
        hand = here.hand()
        attack(hand)
        codes[sentence] = hand.code()
    assert codes == {sentence: code for sentence, (_, code) in HELLOS.items()}
    assert not here.service.named("WorkerJoined")
    here.hire("worker-1", "worker-2")
    assert here.play().distances == "workers"


def test_workers_end_with_the_last_round(shop):
    """Each of their threads ends by itself: the enclave has said that it has finished."""
    here = shop(count=1, linger_s=0.1)
    names = ("worker-1", "worker-2", "worker-3")
    here.hire(*names)
    workers = [each for each in threading.enumerate() if each.name in names]
    assert len(workers) == 3
    here.play()
    here.service.wait_for("Finished")
    for each in workers:
        each.join(60)
        assert not each.is_alive()


def test_a_worker_that_says_no_hello_is_let_go(shop):
    here = shop(idle_s=2)
    assert here.hand().code() == LATE
    assert not here.service.named("WorkerJoined")


def chatter(hand: Hand) -> None:
    """So much that the rest is not heard."""
    for _ in range(100):
        hand.say(answer=b"blah")
    hand.hear()
    for _ in range(1000):
        hand.say(answer=b"blah")


def apologise(hand: Hand) -> None:
    hand.hear()
    hand.say(sorry="my cat ate the \x1b[2Jshares\n" + "x" * 1000)


def accept_nonsense(hand: Hand) -> None:
    hand.hear()
    hand.say(accept=RNG.bytes(100))


def accept_another_offer(hand: Hand) -> None:
    hand.hear()
    hand.say(accept=encode(ChannelAccept(bytes(32), b"", UNSIGNED)))


def accept_without_a_signature(hand: Hand) -> None:
    offer = decode(ChannelOffer, hand.hear().offer)
    hand.say(accept=encode(ChannelAccept(digest(offer), bytes(1200), UNSIGNED)))


def say_nothing(hand: Hand) -> None:
    hand.hear()


def leave_after_the_offer(hand: Hand) -> None:
    hand.hear()
    hand.call.cancel()


def leave_after_the_accept(hand: Hand) -> None:
    hand.accept()
    hand.call.cancel()


def leave_after_the_shares(hand: Hand) -> None:
    hand.answer(hand.accept())
    hand.call.cancel()


def hang_up(hand: Hand) -> None:
    """Ends its own side of the stream, and stays on the other."""
    hand.accept()
    hand._says.put(None)


def answer_nonsense(hand: Hand) -> None:
    hand.answer(hand.accept())
    hand.say(answer=RNG.bytes(100))


def answer_another_attempt(hand: Hand) -> None:
    answer = hand.answer(hand.accept())
    hand.say(answer=encode(replace(answer, attempt_id=bytes(32))))


def answer_what_does_not_open(hand: Hand) -> None:
    answer = hand.answer(hand.accept())
    hand.say(answer=encode(replace(answer, ciphertext=bytes(len(answer.ciphertext)))))


def answer_too_much(hand: Hand) -> None:
    answer = hand.answer(hand.accept())
    hand.say(answer=encode(replace(answer, ciphertext=bytes(2**20))))


FAULTS: dict[Callable[[Hand], None], tuple[str, float]] = {
    apologise: ("cannot do it", 30),
    accept_nonsense: ("sent nonsense", 30),
    accept_without_a_signature: ("did not accept the offer", 30),
    leave_after_the_offer: ("left", 30),
    leave_after_the_accept: ("left", 30),
    leave_after_the_shares: ("left", 30),
    hang_up: ("left", 30),
    answer_nonsense: ("sent nonsense", 30),
    answer_what_does_not_open: ("does not open", 30),
    answer_too_much: ("does not open", 30),
    # These are found out by the clock alone, which goes for the honest ones as well.
    chatter: ("did not answer in time", 3),
    say_nothing: ("did not answer in time", 3),
    accept_another_offer: ("did not answer in time", 3),
    answer_another_attempt: ("did not answer in time", 3),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_round_is_finished_without_a_worker_that(shop, fault):
    what, seconds = FAULTS[fault]
    here = shop(measure_s=seconds)
    here.hire("worker-2", "worker-3")
    hand = here.hand()
    hand.join()
    here.await_workers("worker-1")
    thread = threading.Thread(target=fault, args=(hand,))
    thread.start()
    receipt = here.play()
    thread.join()
    assert (receipt.participants, receipt.distances) == (N, "workers")
    attempts = [each.workers for each in here.service.named("AttemptStarted")]
    assert attempts == [("worker-1", "worker-2"), ("worker-2", "worker-3")]
    (failed,) = here.service.named("WorkerFailed")
    assert (failed.worker, what in failed.what) == ("worker-1", True)
    assert failed.what.isprintable()
    assert len(failed.what) < 400
    assert not here.service.named("WorkerLied")


def test_a_round_whose_answers_come_in_pieces(shop, monkeypatch):
    monkeypatch.setattr("ostraka.worker.session.ANSWER_PIECE", 5)  # of 76 bytes
    here = shop()
    here.hire("worker-1", "worker-2")
    assert here.play().distances == "workers"


def test_without_workers_that_answer_the_enclave_measures_by_itself(shop):
    here = shop()
    hands = [here.hand(name) for name in ("worker-1", "worker-2")]
    for hand in hands:
        hand.join()
    here.await_workers("worker-1", "worker-2")
    thread = threading.Thread(target=apologise, args=(hands[0],))
    thread.start()
    receipt = here.play()
    thread.join()
    assert (receipt.participants, receipt.distances) == (N, "inside")
    attempts = [each.workers for each in here.service.named("AttemptStarted")]
    assert attempts == [("worker-1", "worker-2"), ()]


def test_of_two_streams_of_one_worker_the_newer_one_counts(shop):
    here = shop()
    older = here.hand()
    older.join()
    here.await_workers("worker-1")
    here.hire("worker-2")
    newer = here.hand()
    newer.join()
    assert older.code() == LATE
    here.service.wait_for("WorkerJoined", 3)

    def work() -> None:
        newer.say(answer=encode(newer.answer(newer.accept())))

    thread = threading.Thread(target=work)
    thread.start()
    assert here.play().distances == "workers"
    thread.join()
    assert not here.service.named("WorkerFailed")


def test_a_worker_that_comes_too_often_is_refused(shop):
    here = shop(requests_per_minute=8)  # room for what a client asks in a round
    codes = []
    for _ in range(10):
        hand = here.hand("worker-3")
        hand.hello()
        if len(here.service.named("WorkerJoined")) >= 8:
            codes.append(hand.code())
        else:
            here.service.wait_for("WorkerJoined", len(here.service.named("WorkerJoined")) + 1)
    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
    here.hire("worker-1", "worker-2")
    assert here.play().distances == "workers"


@dataclass
class Line:
    """A connection whose other end is this test, and the loop that owns it."""

    loop: asyncio.AbstractEventLoop
    connection: Connection
    pool: Pool

    def on_loop(self, work: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(60)

    def say(self, **what: Any) -> "Future[None]":
        """As the worker. Done when there was room for it."""
        said = self.connection.heard(wire.WorkerSays(**what))
        return asyncio.run_coroutine_threadsafe(said, self.loop)

    def worker(self, seconds: float) -> Any:
        return self.pool.remote(["worker-1"], seconds)["worker-1"]


@pytest.fixture
def line() -> Iterator[Line]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    connection, pool = Connection("worker-1"), Pool(loop)
    pool.connected["worker-1"] = connection
    made = Line(loop, connection, pool)
    yield made
    made.on_loop(lambda: None)  # What was cancelled ends before the loop does.
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


SHARE = ShareTile(bytes(32), 0, b"share")
OFFER = ChannelOffer(
    bytes(32), bytes(32), b"a" * 32, bytes(32), 0, "exact", 5, 5, 5, bytes(1216), UNSIGNED
)
ACCEPT = ChannelAccept(digest(OFFER), b"secret", UNSIGNED)


def add_many(worker: Any) -> None:
    for _ in range(10):
        worker.add(SHARE)


def computing(line: Line, seconds: float) -> Any:
    """A worker that has accepted, and reads nothing more."""
    asked = line.worker(seconds)
    line.loop.call_soon_threadsafe(_accept_soon, line)
    return asked.accept(OFFER)[0]


def _accept_soon(line: Line) -> None:
    """Once the offer is there, since what is older does not count."""
    if line.connection.outgoing.empty():
        line.loop.call_soon(_accept_soon, line)
        return
    line.connection.outgoing.get_nowait()
    line.say(accept=encode(ACCEPT))


def test_a_worker_that_does_not_take_its_shares_is_given_up(line):
    worker = computing(line, seconds=2)
    with pytest.raises(WorkerGone, match="did not take its shares in time"):
        add_many(worker)
    assert line.connection.outgoing.qsize() <= 2


def test_a_worker_that_leaves_is_noticed_by_whoever_waits_to_be_heard(line):
    """Its time would not be up for an hour."""
    worker = computing(line, seconds=3600)
    threading.Timer(0.2, line.on_loop, [line.connection.end]).start()
    with pytest.raises(WorkerGone, match="left"):
        add_many(worker)


def test_a_worker_that_leaves_is_noticed_by_whoever_waits_to_hear(line):
    worker = computing(line, seconds=3600)
    threading.Timer(0.2, line.on_loop, [line.connection.end]).start()
    with pytest.raises(WorkerGone, match="left"):
        worker.answer()


def test_what_was_said_before_the_offer_is_no_answer_to_it(line):
    """An apology bears no attempt's name."""
    line.say(sorry="for the last attempt").result(60)
    assert computing(line, seconds=60) is not None


def test_nobody_is_asked_who_has_left(line):
    asked = line.worker(3600)
    line.on_loop(line.connection.end)
    with pytest.raises(WorkerGone, match="left"):
        asked.accept(OFFER)


def test_a_worker_that_chatters_fills_no_memory(line):
    waiting = [line.say(answer=bytes(1000)) for _ in range(1000)]
    line.on_loop(lambda: None)
    assert line.connection.incoming.qsize() <= 16
    assert sum(each.done() for each in waiting) <= 16
    for each in waiting:
        each.cancel()


def pieces_of(content: bytes, size: int, attempt: bytes = OFFER.attempt_id) -> list[dict[str, Any]]:
    """An answer as a worker says it, in many more messages than may wait to be read."""
    cuts = [content[start : start + size] for start in range(0, len(content), size)]
    pieces = [wire.AnswerPiece(attempt_id=attempt, data=each) for each in cuts[:-1]]
    last = encode(Answer(attempt, cuts[-1]))
    return [*({"answer_piece": each} for each in pieces), {"answer": last}]


def test_an_answer_may_come_in_pieces(line):
    content = RNG.bytes(100)
    worker = computing(line, seconds=60)
    said = [line.say(**each) for each in pieces_of(content, 3)]
    assert bytes(worker.answer().ciphertext) == content
    assert all(each.result(60) is None for each in said)


def test_the_rest_of_an_answer_that_nobody_waits_for_is_no_part_of_the_next(line):
    """A worker is asked again while its answer to the attempt before is on the way."""
    old = [line.say(**each) for each in pieces_of(RNG.bytes(60), 3, b"b" * 32)[:-1]]
    content = RNG.bytes(60)
    worker = computing(line, seconds=60)
    for each in pieces_of(content, 5):
        line.say(**each)
    assert bytes(worker.answer().ciphertext) == content
    assert all(each.result(60) is None for each in old)


def test_a_worker_that_sends_more_than_an_answer_is_given_up(line):
    worker = computing(line, seconds=60)
    endless = wire.AnswerPiece(attempt_id=OFFER.attempt_id, data=bytes(600))
    said = [line.say(answer_piece=endless) for _ in range(100)]
    with pytest.raises(WorkerGone, match="more than an answer"):
        worker.answer()
    assert not said[-1].done()
    for each in said:
        each.cancel()


def test_the_newer_connection_takes_the_place_of_the_older():
    async def main() -> None:
        pool = Pool(asyncio.get_running_loop())
        older, newer = Connection("worker-1"), Connection("worker-1")
        with pool.joined(older):
            with pool.joined(newer):
                assert older.ended
                assert pool.connected == {"worker-1": newer}
            assert newer.ended
            assert pool.connected == {}
        with pool.joined(newer), pool.joined(Connection("worker-2")):
            pool.close()
            assert all(each.outgoing.get_nowait() is None for each in pool.connected.values())

    asyncio.run(main())


def test_workers_on_their_way_are_waited_for():
    async def main() -> None:
        pool = Pool(asyncio.get_running_loop())

        async def arrive() -> None:
            for number in (1, 2):
                await asyncio.sleep(0.02)
                here.enter_context(pool.joined(Connection(f"worker-{number}")))

        async with asyncio.timeout(60):
            here = ExitStack()
            await asyncio.gather(pool.wait_for(2, 3600), arrive())
            assert list(pool.remote(["worker-3", "worker-2", "worker-1"], 1)) == [
                "worker-2",
                "worker-1",
            ]
            await pool.wait_for(3, 0.05)
            assert len(pool.connected) == 2

    asyncio.run(main())
