"""Who counts as a shard of a lead."""

import asyncio

import pytest

from ostraka.enclave import service
from ostraka.enclave.lead import Connected, Shards
from ostraka.enclave.peering import PeerChannel
from ostraka.errors import ConfigError, RoundFailed


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


def test_a_shard_that_listens_everywhere_has_to_say_where_it_is_found():
    assert service._advertised(None, "10.0.0.7:7420") == "10.0.0.7:7420"
    assert service._advertised("shard-0.example:7420", "0.0.0.0:7420") == "shard-0.example:7420"
    for heard in ("0.0.0.0:7420", "[::]:7420"):
        with pytest.raises(ConfigError, match="--advertise HOST:PORT"):
            service._advertised(None, heard)
    with pytest.raises(ConfigError, match="an address is HOST:PORT"):
        service._advertised("shard-0.example", "10.0.0.7:7420")
