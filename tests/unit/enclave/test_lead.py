"""Who counts as a shard of a lead."""

import asyncio

import pytest

from ostraka.enclave.lead import Connected, Shards
from ostraka.enclave.peering import PeerChannel
from ostraka.errors import RoundFailed


def connected(number: int) -> Connected:
    channel = PeerChannel(bytes([number]) * 32, bytes([number + 100]) * 32)
    return Connected(number, channel, asyncio.get_running_loop(), revision=1)


def test_a_shard_takes_the_place_of_no_other():
    left = []

    async def main() -> None:
        shards = Shards(2, lost=left.append)
        first, second = connected(0), connected(0)
        with shards.joined(first, 1):
            with pytest.raises(RoundFailed, match="there is a shard 0 already"):
                shards.joined(second, 1).__enter__()
            assert shards.connected == {0: first}
            assert not first.ended
            assert shards.missing == (1,)
        assert first.ended
        with shards.joined(second, 1):
            assert shards.connected == {0: second}

    asyncio.run(main())
    assert left == [0, 0]
