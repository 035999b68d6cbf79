"""The bare loop receives every tile and opens it, over TLS as well."""

import socket
import threading

import pytest
from cryptography.exceptions import InvalidTag

from ostraka.errors import LocalProtocolError
from ostraka_lab.bench import bare_loop
from ostraka_lab.bench.bare_loop import Tiles, Traffic
from ostraka_lab.bench.service_rounds import KEY, write_certificate

SIZE = 5000


@pytest.mark.parametrize("with_tls", [False, True])
def test_every_run_has_its_seconds(with_tls, tmp_path):
    tls: tuple[str, ...] = ()
    if with_tls:
        tls = (str(write_certificate(tmp_path)), str(tmp_path / KEY))
    figures = bare_loop.measure(Traffic(10, 3, SIZE, 2), 2, lambda *_: None, tls=tls)
    assert figures["bytes"] == 30 * SIZE
    for what in ("open", "loop"):
        for seconds in figures[what].values():
            assert len(seconds) == 2
            assert min(seconds) > 0


def test_tiles_are_different_as_far_as_there_is_room_for_them(monkeypatch):
    monkeypatch.setattr(bare_loop, "_LARGEST", 3 * SIZE)
    tiles = Tiles(7, SIZE)
    assert [tiles.number(place) for place in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert len(set(tiles._sealed)) == 3
    assert all(len(tile) == SIZE for tile in tiles._sealed)


def test_every_sender_sends_all_of_its_tiles_sealed():
    traffic = Traffic(senders=3, tiles=2, size=SIZE, repeat=1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        sending = threading.Thread(target=bare_loop.send, args=(port, traffic))
        sending.start()
        connections = [bare_loop._accept(listening, ()) for _ in range(3)]
        bare_loop._loop(connections, traffic)
        for connection in connections:
            connection.close()
        sending.join()


def test_senders_are_shared_out_among_processes():
    for senders in (1, 7, 8, 9, 64, 100):
        shares = [each.senders for each in Traffic(senders, 2, SIZE, 1).shares]
        assert sum(shares) == senders
        assert len(shares) <= 8
        assert min(shares) >= 1


def test_what_is_not_what_was_sealed_is_not_opened():
    tiles = Tiles(2, SIZE)
    tiles.open(range(2))
    tiles._sealed.reverse()
    with pytest.raises(InvalidTag):
        tiles.open(range(2))


@pytest.mark.parametrize("fill", [bare_loop._fill, bare_loop._fill_in_parts])
def test_a_sender_that_ends_early_is_noticed(fill):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(b"half")
        with pytest.raises(LocalProtocolError, match="ended early"):
            fill(ours, memoryview(bytearray(8)))
