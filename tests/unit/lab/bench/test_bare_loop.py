"""The bare loop receives every tile and opens it, over TLS as well."""

import socket

import pytest
from cryptography.exceptions import InvalidTag

from ostraka.errors import LocalProtocolError
from ostraka_lab.bench import bare_loop
from ostraka_lab.bench.bare_loop import Tiles
from ostraka_lab.bench.service_rounds import KEY, write_certificate

SIZE = 5000


@pytest.mark.parametrize("with_tls", [False, True])
def test_every_run_has_its_seconds(with_tls, tmp_path):
    tls: tuple[str, ...] = ()
    if with_tls:
        tls = (str(write_certificate(tmp_path)), str(tmp_path / KEY))
    figures = bare_loop.measure(30, SIZE, 2, 2, lambda *_: None, tls=tls)
    assert figures["bytes"] == 30 * SIZE
    for what in ("open", "loop"):
        for seconds in figures[what].values():
            assert len(seconds) == 2
            assert min(seconds) > 0


def test_two_processes_make_the_same_tiles(monkeypatch):
    monkeypatch.setattr(bare_loop, "_LARGEST", 3 * SIZE)
    tiles = list(Tiles(7, SIZE))
    assert tiles == list(Tiles(7, SIZE))
    assert len(set(tiles)) == 3
    assert tiles[:3] == tiles[3:6]
    assert all(len(tile) == SIZE for tile in tiles)


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
