"""The limits by themselves, without a network."""

import asyncio

import pytest

from ostraka.enclave.limits import Newest, Rate, Share, TooMany, Turns, neighbourhood


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spend(rate, peer, times):
    """How many of so many requests were granted."""
    granted = 0
    for _ in range(times):
        try:
            rate.spend(peer)
            granted += 1
        except TooMany:
            pass
    return granted


def test_a_peer_has_its_burst_and_then_so_many_a_minute():
    clock = Clock()
    rate = Rate(60, clock)
    assert spend(rate, "a", 100) == 60
    clock.now = 10.0
    assert spend(rate, "a", 100) == 10
    clock.now = 10_000.0
    assert spend(rate, "a", 100) == 60


def test_what_is_refused_costs_nothing():
    clock = Clock()
    rate = Rate(60, clock)
    spend(rate, "a", 1000)
    clock.now = 1.0
    assert spend(rate, "a", 10) == 1


def test_peers_do_not_spend_for_each_other():
    rate = Rate(3, Clock())
    assert [spend(rate, peer, 5) for peer in ("a", "b", "a")] == [3, 3, 0]


def test_the_longest_silent_peers_are_forgotten_first():
    rate = Rate(2, Clock())
    assert spend(rate, "first", 2) == 2
    for number in range(4095):
        rate.spend(str(number))
    assert spend(rate, "first", 2) == 0  # This was asked anew, and is remembered the longest now.
    for number in range(10_000):
        rate.spend(f"more {number}")
    assert len(rate._buckets) == 4096
    assert spend(rate, "first", 2) == 2


def test_a_share_is_held_by_name_and_given_back():
    share = Share(2)
    with share.of("a"), share.of("a"), share.of("b"):
        with pytest.raises(TooMany, match="more than 2 at a time"), share.of("a"):
            raise AssertionError("not reached")
        with share.of("b"):
            pass
    with share.of("a"), share.of("a"):
        pass
    assert share._held == {}


def test_a_share_is_given_back_by_whoever_fails():
    share = Share(1)
    for _ in range(3):
        with pytest.raises(KeyError), share.of("a"):
            raise KeyError
    assert share._held == {}


async def hold(turns, log, name, until):
    """Take a turn, and hold it until told to let go, or until it is taken away."""
    try:
        async with turns.turn():
            log.append(f"{name} begins")
            await until.wait()
        log.append(f"{name} is done")
    except TimeoutError:
        log.append(f"{name} makes room")


def scripted(script):
    """Runs script(log, start) where start(turns, name) gives a task and what ends it."""

    async def main():
        log: list[str] = []
        tasks: list[asyncio.Task[None]] = []

        def start(turns, name):
            until = asyncio.Event()
            tasks.append(asyncio.create_task(hold(turns, log, name, until)))
            return tasks[-1], until

        async with asyncio.timeout(60):
            await script(log, start)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return log

    return asyncio.run(main())


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_others_wait_in_line_and_come_in_that_order():
    async def script(log, start):
        turns = Turns(2, turn_s=100, most_s=100)
        started = {name: start(turns, name) for name in "abcd"}
        await settle()
        assert log == ["a begins", "b begins"]
        started["b"][1].set()
        await settle()
        started["c"][1].set()
        await settle()
        assert log[2:] == ["b is done", "c begins", "c is done", "d begins"]

    scripted(script)


def test_nobody_makes_room_while_nobody_waits():
    async def script(log, start):
        turns = Turns(2, turn_s=0, most_s=100)
        first, _ = start(turns, "a")
        start(turns, "b")
        await asyncio.sleep(0.05)
        assert not first.done()

    assert scripted(script) == ["a begins", "b begins"]


def test_the_oldest_makes_room_for_whoever_waits():
    async def script(log, start):
        turns = Turns(2, turn_s=0.05, most_s=100)
        oldest, _ = start(turns, "a")
        start(turns, "b")
        await settle()
        third, _ = start(turns, "c")
        await oldest
        await settle()
        assert log == ["a begins", "b begins", "a makes room", "c begins"]
        await asyncio.sleep(0.1)
        assert not third.done()

    scripted(script)


def test_whoever_comes_in_while_others_wait_has_its_turn_and_no_more():
    async def script(log, start):
        turns = Turns(1, turn_s=0.02, most_s=100)
        tasks = [start(turns, name)[0] for name in "abc"]
        await asyncio.gather(*tasks[:2])
        await settle()

    assert scripted(script) == [
        "a begins",
        "a makes room",
        "b begins",
        "b makes room",
        "c begins",
    ]


def test_a_turn_ends_in_any_case():
    async def script(log, start):
        task, _ = start(Turns(1, turn_s=100, most_s=0.02), "a")
        await task

    assert scripted(script) == ["a begins", "a makes room"]


def test_a_place_is_given_back_by_whoever_is_cancelled():
    async def script(log, start):
        turns = Turns(1, turn_s=100, most_s=100)
        first, _ = start(turns, "a")
        await settle()
        waiting, _ = start(turns, "b")
        await settle()
        waiting.cancel()
        first.cancel()
        await settle()
        start(turns, "c")
        await settle()

    assert scripted(script) == ["a begins", "c begins"]


def test_the_newest_stream_begins_when_the_older_ones_have_ended():
    async def main():
        newest, log, leaving = Newest(), [], asyncio.Event()

        async def stream(name, slow=False):
            try:
                async with newest.of("client", proved=True):
                    log.append(f"{name} begins")
                    try:
                        await asyncio.Event().wait()
                    finally:
                        if slow:
                            await leaving.wait()
                        log.append(f"{name} ends")
            except TimeoutError:
                log.append(f"{name} is replaced")

        async with asyncio.timeout(60):
            tasks = [asyncio.create_task(stream("first", slow=True))]
            await settle()
            for name in ("second", "third"):
                tasks.append(asyncio.create_task(stream(name)))
                await settle()
            assert log == ["first begins", "second is replaced"]
            leaving.set()
            await settle()
            assert log[2:] == ["first ends", "first is replaced", "third begins"]
            async with newest.of("another client", proved=False):
                pass
            tasks[-1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert newest._streams == {}

    asyncio.run(main())


HOSTS = {
    "192.0.2.7": "192.0.2.7",
    "2001:db8::1": "2001:db8::/64",
    "2001:db8::ffff": "2001:db8::/64",
    "2001:db8:0:1::1": "2001:db8:0:1::/64",
    "fe80::1%eth0": "fe80::/64",
    "::ffff:192.0.2.7": "192.0.2.7",
    "": "",
}


@pytest.mark.parametrize("host", HOSTS)
def test_neighbours_are_those_who_can_have_each_others_address(host):
    assert neighbourhood(host) == HOSTS[host]
