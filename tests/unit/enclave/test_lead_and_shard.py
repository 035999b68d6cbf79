"""A lead's side of a shard, and a shard's side of its lead, against whoever comes between.

Both ends of the channel are here, and a test decides what each of them says, and when.
"""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from ostraka.config import LEAF_VALUES, Federation, Manifest, Member, Span, Terms, cut_into_spans
from ostraka.core import optimiser
from ostraka.crypto.identity import Identity
from ostraka.enclave import link
from ostraka.enclave.downloads import Downloads
from ostraka.enclave.engine import Engine
from ostraka.enclave.lane import Lane, LaneBroken, Tickets
from ostraka.enclave.lead import Connected, RemotePart, Shards
from ostraka.enclave.link import COMMANDS, Link
from ostraka.enclave.peering import PeerChannel
from ostraka.enclave.servicer import Servicer, _require_taken
from ostraka.enclave.shard import Finished, Settings, ShardService
from ostraka.enclave.storage.models import SliceFiles, Slices
from ostraka.encoding import UNSIGNED
from ostraka.errors import (
    ConfigError,
    MalformedMessage,
    Rejection,
    RemoteProtocolError,
    RoundFailed,
    StateError,
    UpdateRejected,
)
from ostraka.messages import Charter, joined_digest
from ostraka.protocol.enclave import Begun, Memory, Threads
from ostraka.transport import FINISHED, TICKET_BYTES

ROUND, UPLOAD = b"r" * 32, b"u" * 32
TICKET = b"t" * 32
PATIENCE_S = 60.0
D = 2 * LEAF_VALUES
CLIENTS = tuple(Member(f"client-{i}", bytes([i]) * 32) for i in range(4))
TERMS = Terms(Manifest.flat(D), f=0, distances="inside", tile=LEAF_VALUES // 2)
FEDERATION = Federation(TERMS, CLIENTS, (), b"a" * 32, b"i" * 32, revision=2)
POLICY = f"""\
version = 1
evidence = ["simulation"]
unsafe_simulation = true

[simulation]
root = ["{bytes(32).hex()}"]
mrenclave = ["{bytes(32).hex()}"]
"""


class Shard:
    """A connected shard, as its lead has it, and the shard's own end of the channel."""

    def __init__(self, number: int = 0) -> None:
        keys = os.urandom(32), os.urandom(32)
        loop = asyncio.get_running_loop()
        self.near = Connected(number, PeerChannel(*keys), loop)
        self.heard: list[Any] = []
        self._far = Link(PeerChannel(*reversed(keys)), self.near.hear, COMMANDS, self._hear)

    def hear(self, sealed: bytes) -> None:
        self._far.hear(sealed)

    def _hear(self, message: Any, _: list[bytearray]) -> None:
        self.heard.append(message)

    async def carried(self) -> list[Any]:
        """What the lead has said since, carried to the shard."""
        for _ in range(5):
            await asyncio.sleep(0)
        while self.near.outgoing._sealed:
            for sealed in await self.near.outgoing.take():
                self._far.hear(sealed)
        said, self.heard = self.heard, []
        return said

    def say(self, message: Any) -> None:
        self._far.say(message)

    def part(self) -> RemotePart:
        context: Any = SimpleNamespace(round_id=ROUND)
        return RemotePart(self.near, context, Span(0, 64, 16))

    async def granted(self, part: RemotePart, client: str, upload_id: bytes = UPLOAD) -> Any:
        """What will become of the lane that a client has been granted."""
        lane = part.grant(client, upload_id, own=True)
        await self.carried()
        assert await lane.taken() == 0
        return lane.settled


class Joining:
    """A lead that lets a shard in, which says each thing when the test lets it."""

    def __init__(self, revision: int = 2) -> None:
        self.shard = Shard()
        self.shard.near.revision = revision
        self.engine: Any = SimpleNamespace(
            shards=Shards(1),
            federation=FEDERATION,
            published=0,
            state=SimpleNamespace(last_state=Slices(bytes(32))),
            enclave=SimpleNamespace(model=bytes(32)),
            file=SimpleNamespace(limits=SimpleNamespace(idle_s=PATIENCE_S)),
            tell=lambda event: None,
        )
        servicer: Any = Servicer.__new__(Servicer)
        servicer.engine = self.engine
        self._ended = asyncio.Event()
        self.call = asyncio.create_task(
            servicer._serve_shard(self.shard.near, self._requests(), self)
        )

    async def _requests(self) -> AsyncIterator[Any]:
        while not self._ended.is_set():
            await self._ended.wait()
        nothing: tuple[Any, ...] = ()
        for said in nothing:
            yield said

    async def write(self, said: Any) -> None:
        for sealed in said.sealed.messages:
            self.shard.hear(sealed)

    async def says(self, message: Any) -> None:
        await asyncio.sleep(0)  # The call has begun by then.
        self.shard.say(message)

    async def hears(self) -> list[Any]:
        """What the lead says next."""
        for _ in range(20):
            await asyncio.sleep(0)
        said, self.shard.heard = self.shard.heard, []
        return said

    async def end(self) -> None:
        self._ended.set()
        await self.call


def begun(client: str, upload_id: bytes = UPLOAD) -> Begun:
    return Begun(client, upload_id, bytes(32), 1.0, 0.0, os.urandom(32), bytes(32))


class Serving:
    """A shard's service, with what it says to its lead. Use it on an event loop."""

    def __init__(self, folder: Any, threads: int = 1) -> None:
        self.tickets = Tickets(threads, idle_s=PATIENCE_S)
        self.downloads = Downloads(threads, idle_s=PATIENCE_S, most_s=PATIENCE_S)
        self.said: list[Any] = []
        file: Any = SimpleNamespace(
            state=folder,
            storage=SimpleNamespace(spool_mib=64),
            rounds=SimpleNamespace(measure_s=PATIENCE_S),
            initial_model=lambda: (None, np.zeros(D, np.float32)),
        )
        charter: Any = SimpleNamespace(federation=FEDERATION)
        platform: Any = SimpleNamespace(provider=None, code_id=bytes(32))
        self.service = ShardService(
            Settings(folder, "127.0.0.1:1", 0),
            file,
            charter,
            platform=platform,
            tell=self.said.append,
            tickets=self.tickets,
            downloads=self.downloads,
            memory=Memory(),
            threads=Threads(),
        )
        said: Any = SimpleNamespace(say=lambda *said: self.said.append(said[0]))
        self.service._link = said
        self.service._identity = Identity.generate()

    async def ask(self, message: Any) -> Any:
        return (await self.service._answer(message, []))[0]

    async def tell(self, message: Any) -> None:
        await self.service._obey(message)

    async def open(self, round_id: bytes = ROUND) -> None:
        span = cut_into_spans(TERMS.tiling, 2)[0]
        await self.ask(link.Restore(span.start, span.length, 0, bytes(32), bytes(32), ()))
        await self.ask(link.Open(1, round_id))

    async def lane(self, client: str, *, own: bool = True) -> tuple[Lane, socket.socket]:
        """A lane that a client has connected to, and the client's end of it."""
        ticket = os.urandom(TICKET_BYTES)
        await self.tell(link.Grant(ROUND, client, UPLOAD, own, ticket, begun(client)))
        while (lane := self.tickets.claim(ticket)) is None:
            await asyncio.sleep(0)
        near, far = socket.socketpair()
        lane.connect(near, lambda: None)
        while not lane._reading:
            await asyncio.sleep(0)
        return lane, far


def run(test):
    return lambda: asyncio.run(test())


@run
async def test_a_client_that_takes_anothers_upload_id_does_not_take_its_verdict():
    """Ids are public. One who has seen another's would keep its call from ever being answered."""
    shard = Shard()
    part = shard.part()
    honest = await shard.granted(part, "honest")
    thief = await shard.granted(part, "thief")
    shard.say(link.Taken("honest", UPLOAD, 1.0, 0.0, True))
    assert honest.done()
    assert honest.result().client == "honest"
    assert not thief.done()


@run
async def test_who_still_sends_when_a_round_is_closed_is_told_so():
    """The shard ends its lanes, and says nothing of them: what it has is no part of the round."""
    shard = Shard()
    part = shard.part()
    slow = await shard.granted(part, "slow")
    part.stop()
    assert slow.done()
    with pytest.raises(UpdateRejected) as refused:
        _require_taken("slow", slow.result())
    assert refused.value.reason is Rejection.LATE


@run
async def test_a_lane_ends_with_its_call():
    """A client whose turn is over would else keep a thread of the shard, tile by tile."""
    shard = Shard()
    part = shard.part()
    servicer: Any = Servicer.__new__(Servicer)
    servicer.engine = SimpleNamespace(shards=SimpleNamespace(parts=(part,)))

    async def say(**answer: Any) -> None: ...

    header: Any = SimpleNamespace(client="client-0", upload_id=UPLOAD)
    talk: Any = SimpleNamespace(say=say)
    call = asyncio.create_task(servicer._receive_at_shards(header, talk, own=True))
    (grant,) = await shard.carried()
    assert grant == link.Grant(ROUND, "client-0", UPLOAD, True, grant.ticket)
    call.cancel()
    with suppress(asyncio.CancelledError):
        await call
    assert await shard.carried() == [link.Cut(ROUND, "client-0", UPLOAD)]


@run
async def test_a_shard_hears_of_an_upload_with_its_first_lane():
    shard = Shard()
    part = shard.part()
    first, other = begun("client-0"), begun("client-0", b"o" * 32)
    part.begin(first)
    part.grant("client-0", UPLOAD, own=True)
    part.begin(other)
    part.grant("client-0", UPLOAD, own=True)  # A late call of the upload before it.
    part.grant("client-0", other.upload_id, own=True)
    part.grant("client-0", other.upload_id, own=True)
    grants = [each for each in await shard.carried() if isinstance(each, link.Grant)]
    assert [each.begun for each in grants] == [first, None, other, None]


@run
async def test_an_upload_that_comes_again_is_asked_for_what_is_missing():
    """Once it was granted a lane, its shard alone knows how far it has come."""
    shard = Shard()
    part = shard.part()
    first = part.grant("client-0", UPLOAD, own=True)
    await shard.carried()
    part.cut("client-0", UPLOAD)
    again = part.grant("client-0", UPLOAD, own=True)
    cut, resume, grant = await shard.carried()
    assert (cut, resume) == (
        link.Cut(ROUND, "client-0", UPLOAD),
        link.Resume(ROUND, "client-0", UPLOAD),
    )
    assert grant.ticket == again.ticket != first.ticket
    shard.say(link.Resumed(3))
    assert await again.taken() == 3
    other = part.grant("client-0", b"o" * 32, own=True)
    assert [type(each) for each in await shard.carried()] == [link.Grant]
    assert await other.taken() == 0


@run
async def test_an_upload_that_comes_again_to_a_shard_that_leaves_is_broken_off():
    shard = Shard()
    part = shard.part()
    part.grant("client-0", UPLOAD, own=True)
    again = part.grant("client-0", UPLOAD, own=True)
    shard.near.end()
    with pytest.raises(RoundFailed, match="shard 0 has left"):
        await again.taken()
    broken = await again.settled
    assert (broken.client, broken.code, broken.why) == ("client-0", "gone", "shard 0 has left")
    with pytest.raises(RoundFailed, match="shard 0 has left"):
        part.grant("client-1", UPLOAD, own=True)


@run
async def test_a_shard_that_has_no_room_ends_the_call_before_others_have_all_tiles():
    """Its client would else send all that it has to the others, for nothing."""
    shards = [Shard(0), Shard(1)]
    servicer: Any = Servicer.__new__(Servicer)
    servicer.engine = SimpleNamespace(
        shards=SimpleNamespace(parts=[each.part() for each in shards])
    )

    async def say(**answer: Any) -> None: ...

    header: Any = SimpleNamespace(client="client-0", upload_id=UPLOAD)
    talk: Any = SimpleNamespace(say=say)
    call = asyncio.create_task(servicer._receive_at_shards(header, talk, own=True))
    for each in shards:
        await each.carried()
    shards[1].say(link.Broken("client-0", UPLOAD, "broken", "no room"))
    with pytest.raises(LaneBroken, match="no room"):
        await asyncio.wait_for(call, PATIENCE_S)
    assert [type(each) for each in await shards[0].carried()] == [link.Cut]


def test_a_shard_tells_how_far_an_upload_has_come(tmp_path):
    async def test() -> None:
        serving = Serving(tmp_path, threads=1)
        await serving.open()
        _, far = await serving.lane("client-0")
        resumed = await serving.ask(link.Resume(ROUND, "client-0", UPLOAD))
        with far, serving.tickets:
            far.settimeout(PATIENCE_S)
            assert resumed == link.Resumed(0)
            assert far.recv(1) == b""  # The older lane has ended by then.
            round_: Any = serving.service._round
            arrival = round_.opened.part.upload("client-0", UPLOAD)
            arrival.next = 10**6
            assert (await serving.ask(link.Resume(ROUND, "client-0", UPLOAD))).taken == 10**6
            assert [type(each) for each in serving.said] == [link.Taken]
            await serving.tell(link.Grant(ROUND, "client-0", UPLOAD, True, TICKET))
            await asyncio.sleep(0)
            assert serving.tickets.claim(TICKET) is None  # There is nothing left to bring.
            await serving.service._give_up()

    asyncio.run(test())


def test_no_lane_outlives_its_round(tmp_path):
    """Orders come several at a time: the newest lane may end before it has begun, and the one
    before it is no less to be waited for."""

    async def test() -> None:
        serving = Serving(tmp_path)
        await serving.open()
        _, far = await serving.lane("client-0")
        round_: Any = serving.service._round
        (older,) = round_.tasks
        other = b"o" * 32
        new = begun("client-0", other)
        await serving.tell(link.Grant(ROUND, "client-0", other, True, TICKET, new))
        await serving.tell(link.Stop(False))
        with far:
            assert older.done()
            assert not round_.tasks

    asyncio.run(test())


@pytest.mark.parametrize("round_id", [ROUND, b"o" * 32], ids=["this round", "another"])
def test_a_lane_for_an_upload_that_a_shard_does_not_have_is_broken_at_once(tmp_path, round_id):
    """It had no room for it, or has opened another round. Its client would wait for nothing."""

    async def test() -> None:
        serving = Serving(tmp_path)
        await serving.open()
        await serving.tell(link.Grant(round_id, "client-0", UPLOAD, True, TICKET))
        (broken,) = serving.said
        assert (broken.client, broken.upload_id, broken.code) == ("client-0", UPLOAD, "broken")
        await serving.service._give_up()

    asyncio.run(test())


def test_a_lane_that_is_cut_gives_its_thread_back(tmp_path):
    async def test() -> None:
        serving = Serving(tmp_path, threads=1)
        await serving.open()
        _, far = await serving.lane("client-0")
        await serving.tell(link.Cut(ROUND, "client-0", UPLOAD))
        with far, serving.tickets:
            free = asyncio.wrap_future(serving.tickets._threads.submit(int))
            assert await asyncio.wait_for(free, PATIENCE_S / 2) == 0
            _, again = await serving.lane("client-0")
            again.close()
            await serving.service._give_up()

    asyncio.run(test())


@pytest.mark.parametrize("own", [True, False])
def test_who_brings_anothers_header_to_a_shard_has_no_place_of_that_client(tmp_path, own):
    async def test() -> None:
        serving = Serving(tmp_path)
        await serving.open()
        lane, far = await serving.lane("client-0", own=own)
        assert lane.party == (CLIENTS[0] if own else None)
        far.close()
        await serving.service._give_up()

    asyncio.run(test())


@run
async def test_a_shard_that_was_admitted_under_an_older_revision_takes_no_part():
    """A host that holds up what a shard says could else have it work under revoked terms: with
    workers that were taken from the roster since, or with a masking that was given up."""
    joining = Joining()
    await joining.says(link.Ready("127.0.0.1:1"))
    assert [type(each) for each in await joining.hears()] == [link.Restore]
    joining.engine.federation = replace(FEDERATION, revision=3)
    await joining.says(link.Restored((), TICKET))
    with pytest.raises(RoundFailed, match="revision"):
        await asyncio.wait_for(joining.call, PATIENCE_S)
    assert not joining.engine.shards.connected


@run
async def test_a_shard_that_joins_while_a_model_is_published_serves_that():
    """Else no client finds it there before the next is published."""
    joining = Joining()
    joining.engine.published = 1  # The ledger has it, and the lead itself follows in a moment.
    await joining.says(link.Ready("127.0.0.1:1"))
    (restore,) = await joining.hears()
    joining.engine.enclave.model = b"m" * 32
    await joining.says(link.Restored((), TICKET))
    (again,) = await joining.hears()
    assert (restore.model, again.model) == (bytes(32), b"m" * 32)
    await joining.says(link.Restored((), TICKET))
    await joining.hears()
    assert joining.engine.shards.complete
    await joining.end()


@pytest.mark.parametrize("address", ["", "nowhere", "host:1\n", "h" * 2**20 + ":1"])
def test_a_shard_with_an_address_that_is_none_takes_no_part(address):
    """Every client would be sent it, with every upload."""

    async def test() -> None:
        joining = Joining()
        await joining.says(link.Ready(address))
        with pytest.raises(RoundFailed, match="address"):
            await asyncio.wait_for(joining.call, PATIENCE_S)

    asyncio.run(test())


@run
async def test_a_shard_that_leaves_while_others_open_a_round_ends_it():
    """Nobody would bring it its tiles, and the round would last until its deadline."""
    shards, here = Shards(2), [Shard(0), Shard(1)]
    shards.connected = {at: each.near for at, each in enumerate(here)}
    enclave: Any = SimpleNamespace(
        model=joined_digest(D, []), next_number=1, new_round_id=lambda: ROUND
    )
    opening = asyncio.create_task(shards.open_round(enclave, TERMS))
    for each in here:
        await each.carried()
    here[0].say(link.Opened(None))
    here[0].near.end()
    here[1].say(link.Opened(None))
    with pytest.raises(RoundFailed, match="shard 0 has left"):
        await opening
    assert not shards.parts


def test_a_shard_that_loses_its_lead_ends_what_it_computes_before_it_joins_again(tmp_path):
    """The next round has its rows in the same memory. A thread that went on would mask them by the
    lengths of the rows that were there before, and one worker could read them through Gaussian
    noise; and it would find that honest workers lie."""

    async def test() -> None:
        serving = Serving(tmp_path)
        await serving.open()
        commands: asyncio.Queue[Any] = asyncio.Queue()
        begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

        def measure() -> None:
            begun.set()
            assert go_on.wait(PATIENCE_S)
            ended.set()

        round_: Any = serving.service._round
        rows: list[link.Upload] = []
        round_.cohort, round_.digest = round_.opened.close([]), link.cohort_digest(ROUND, rows)
        round_.columns = SimpleNamespace(measure=measure)
        commands.put_nowait((link.Measure(ROUND, round_.digest, ()), []))
        working = asyncio.create_task(serving.service._work(commands))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        working.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not working.done()
        go_on.set()
        await asyncio.gather(working, return_exceptions=True)
        assert ended.is_set()

    asyncio.run(test())


REVISIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "another roster": ({"clients": CLIENTS[:3]}, False),
    "another policy for shards": ({"shard_policy": "version = 1"}, True),
    "another tile": ({"terms": replace(TERMS, tile=LEAF_VALUES // 4)}, True),
}


@pytest.mark.parametrize("what", REVISIONS)
def test_shards_prove_themselves_again_after(what):
    """A shard that was let in by the older policy need not meet the newer one, and one that has its
    span in tiles of another length takes every client for a liar."""
    changes, again = REVISIONS[what]

    async def test() -> None:
        shards, shard = Shards(1), Shard()
        shards.connected[0] = shard.near
        newer = replace(FEDERATION, revision=3, **changes)
        shards.adopt(Charter(newer, UNSIGNED), FEDERATION)
        assert [type(each) for each in await shard.carried()] == [link.Adopt]
        assert shard.near.ended is again
        assert shards.complete is not again

    asyncio.run(test())


@pytest.mark.parametrize(
    "changes",
    [{"terms": replace(TERMS, tile=D), "shard_policy": POLICY}, {"shard_policy": ""}],
    ids=["tiles that cannot be divided", "no policy for shards"],
)
def test_a_lead_adopts_no_revision_that_its_shards_cannot_work_under(changes):
    """It would end, and whenever it is started again."""
    newer = replace(FEDERATION, revision=3, **changes)
    lead: Any = SimpleNamespace(
        enclave=SimpleNamespace(require_adoptable=lambda charter: None),
        require_room=lambda federation: None,
        shards=Shards(2),
    )
    with pytest.raises(ConfigError):
        Engine._require_fit(lead, Charter(newer, UNSIGNED))
    Engine._require_fit(lead, Charter(replace(FEDERATION, shard_policy=POLICY), UNSIGNED))


def test_the_name_of_a_slice_tells_its_host_nothing(tmp_path):
    """It is there before the outcome is held. By a digest of what is in it, a null step would have
    the name of the slice before it, and a guess at an outcome could be tried without confirming
    it."""
    files = SliceFiles(tmp_path, bytes(32))
    state = optimiser.start(np.arange(8, dtype=np.float32), TERMS.optimiser)
    keys = [os.urandom(32) for _ in range(3)]
    names = [files.save(number, 0, key, state) for number, key in zip((1, 2, 2), keys, strict=True)]
    assert names[0] == names[1] == names[2]
    shown = [path.name.split("-")[-1] for path in tmp_path.iterdir()]
    assert len(set(shown)) == 3
    for number, key in zip((1, 2, 2), keys, strict=True):
        assert np.array_equal(files.load(number, names[0], key).model, state.model)
    files.prune(2, names[2], keys[2])
    assert len(list(tmp_path.iterdir())) == 2
    assert np.array_equal(files.load(2, names[2], keys[2]).model, state.model)
    with pytest.raises(StateError, match="is missing"):
        files.load(2, names[1], keys[1])


@run
async def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_ones():
    shard = Shard()
    late, next_ = shard.near.ask(link.Open(1, ROUND)), shard.near.ask(link.Open(2, ROUND))
    late.cancel()
    shard.say(link.Opened(1.0))
    assert not next_.done()
    shard.say(link.Failed("why\nround published"))
    with pytest.raises(RoundFailed, match="why") as failed:
        next_.result()
    assert str(failed.value).isprintable()
    with pytest.raises(MalformedMessage, match="not asked"):
        shard.say(link.Opened(3.0))


@pytest.mark.parametrize("lead", [True, False])
def test_a_shard_believes_its_lead_alone_that_all_rounds_are_over(tmp_path, lead):
    """How a stream ends is anyone's word who carries it. A shard that believed it would not come
    again."""

    class Ended:
        async def read(self) -> Any:
            return grpc.aio.EOF

        async def code(self) -> Any:
            return grpc.StatusCode.FAILED_PRECONDITION

        async def details(self) -> str:
            return FINISHED

    async def test() -> None:
        service = Serving(tmp_path).service
        commands: asyncio.Queue[Any] = asyncio.Queue()
        if lead:
            service._heard(commands, link.Stop(finished=True), [])
        with pytest.raises(Finished if lead else RemoteProtocolError):
            await service._read(Ended())

    asyncio.run(test())
