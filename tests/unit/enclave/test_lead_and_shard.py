"""A lead's side of a shard, and a shard's side of its lead, against whoever comes between.

Both ends of the channel are here, and a test decides what each of them says, and when.
"""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from ostraka.config import Span
from ostraka.enclave import link
from ostraka.enclave.lead import Connected, RemotePart
from ostraka.enclave.link import COMMANDS, Link
from ostraka.enclave.peering import PeerChannel
from ostraka.enclave.servicer import _require_taken
from ostraka.errors import Rejection, UpdateRejected

ROUND, UPLOAD = b"r" * 32, b"u" * 32
TICKET = b"t" * 32


class Shard:
    """A connected shard, as its lead has it, and the shard's own end of the channel."""

    def __init__(self, number: int = 0) -> None:
        keys = os.urandom(32), os.urandom(32)
        loop = asyncio.get_running_loop()
        self.near = Connected(number, PeerChannel(*keys), loop)
        self.heard: list[Any] = []
        self._far = Link(PeerChannel(*reversed(keys)), self.near.hear, COMMANDS, self._hear)

    def _hear(self, message: Any, _: list[bytearray]) -> None:
        self.heard.append(message)

    async def carried(self) -> list[Any]:
        """What the lead has said since, carried to the shard."""
        for _ in range(5):
            await asyncio.sleep(0)
        while not self.near.outgoing.empty():
            sealed = self.near.outgoing.get_nowait()
            if sealed is not None:
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
        asking = asyncio.create_task(part.grant(client, upload_id))
        await self.carried()
        self.say(link.Granted(TICKET, 0))
        return (await asking)[1]


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
