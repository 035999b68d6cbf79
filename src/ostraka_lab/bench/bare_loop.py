"""What opening alone costs, and a bare loop that receives over loopback and opens.

python -m ostraka_lab.bench.bare_loop TILES TILE_BYTES THREADS REPEAT [CERTIFICATE KEY]
python -m ostraka_lab.bench.bare_loop send PORT TILES TILE_BYTES REPEAT [CERTIFICATE]

`ostraka bench service` measures a whole service by these two. The loop is the least that a service
can do with Python's sockets: one connection at a time, one buffer, one tile after the other.
"""

import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.crypto.aead import TAG_BYTES, nonce
from ostraka.errors import LocalProtocolError
from ostraka_lab.bench.machine import Cost, measured
from ostraka_lab.bench.process import Begin, Figures, report

_KEY = bytes(32)  # Nothing here is secret.
_CONTEXT = bytes(32)
_LARGEST = 2**28  # bytes of different ciphertext: more than fits into a cache
_LOCALHOST = "127.0.0.1"
_PATIENCE_S = 60.0


class Tiles:
    """Sealed tiles of one size, again and again: two processes make the same without exchanging."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        different = min(count, max(1, _LARGEST // size))
        plain, cipher = bytes(size - TAG_BYTES), AESGCM(_KEY)
        self._sealed = [cipher.encrypt(nonce(i), plain, _CONTEXT) for i in range(different)]

    def number(self, place: int) -> int:
        """Which of the different tiles comes at this place."""
        return place % len(self._sealed)

    def __iter__(self) -> Iterator[bytes]:
        return (self._sealed[self.number(place)] for place in range(self.count))

    def open(self, places: range) -> None:
        """Open what comes at these places, into a buffer that stays in the cache."""
        cipher, out = AESGCM(_KEY), bytearray(self.size - TAG_BYTES)
        for place in places:
            number = self.number(place)
            cipher.decrypt_into(nonce(number), self._sealed[number], _CONTEXT, out)


def measure(
    tiles: int, size: int, threads: int, repeat: int, begin: Begin, *, tls: tuple[str, ...] = ()
) -> Figures:
    """CPU and wall seconds of every run. tls: the files of a certificate and of its key."""
    begin("opening and the bare loop", 0, 1)
    made = Tiles(tiles, size)
    opened = [_open(made, threads) for _ in range(repeat)]
    received = list(_receive(made, repeat, tls))
    return {
        "bytes": tiles * size,
        "open": {"cpu_s": [run.cpu_s for run in opened], "wall_s": [run.wall_s for run in opened]},
        "loop": {
            "cpu_s": [run.cpu_s for run in received],
            "wall_s": [run.wall_s for run in received],
        },
    }


def _open(tiles: Tiles, threads: int) -> Cost:
    parts = [range(first, tiles.count, threads) for first in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        _, cost = measured(lambda: list(pool.map(tiles.open, parts)))
    return cost


def _receive(tiles: Tiles, repeat: int, tls: tuple[str, ...]) -> Iterator[Cost]:
    """Receive all tiles from another process and open them: one connection a run."""
    with socket.create_server((_LOCALHOST, 0)) as listening, _sender(listening, tiles, repeat, tls):
        listening.settimeout(_PATIENCE_S)
        for _ in range(repeat):
            connection = _accept(listening, tls)
            with connection:
                _, cost = measured(partial(_loop, connection, tiles))
            yield cost


def _accept(listening: socket.socket, tls: tuple[str, ...]) -> socket.socket:
    connection, _ = listening.accept()
    connection.settimeout(None)  # A timeout would make each call two.
    if not tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls)
    return context.wrap_socket(connection, server_side=True)


def _loop(connection: socket.socket, tiles: Tiles) -> None:
    cipher, out = AESGCM(_KEY), bytearray(tiles.size - TAG_BYTES)
    sealed = memoryview(bytearray(tiles.size))
    fill = _fill_in_parts if isinstance(connection, ssl.SSLSocket) else _fill
    for place in range(tiles.count):
        fill(connection, sealed)
        cipher.decrypt_into(nonce(tiles.number(place)), sealed, _CONTEXT, out)


def _fill(connection: socket.socket, buffer: memoryview) -> None:
    if connection.recv_into(buffer, 0, socket.MSG_WAITALL) != len(buffer):
        raise LocalProtocolError("the bare loop's sender ended early")


def _fill_in_parts(connection: socket.socket, buffer: memoryview) -> None:
    """TLS gives one record at a time."""
    while buffer:
        got = connection.recv_into(buffer)
        if not got:
            raise LocalProtocolError("the bare loop's sender ended early")
        buffer = buffer[got:]


@contextlib.contextmanager
def _sender(
    listening: socket.socket, tiles: Tiles, repeat: int, tls: tuple[str, ...]
) -> Iterator[None]:
    """Another process that sends, and ends with the block."""
    port = listening.getsockname()[1]
    words = [str(each) for each in (port, tiles.count, tiles.size, repeat)]
    process = subprocess.Popen(  # noqa: S603 (this interpreter, and arguments of our own)
        [sys.executable, "-m", "ostraka_lab.bench.bare_loop", "send", *words, *tls[:1]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
        process.wait(_PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def send(port: int, tiles: Tiles, repeat: int, *, certificate: str | None = None) -> None:
    """Send all tiles, once for every run."""
    for _ in range(repeat):
        with _dial(port, certificate) as connection:
            for tile in tiles:
                connection.sendall(tile)
            # Until the other side closes: a socket that is closed with something unread, such as
            # TLS's session tickets, throws away what it has not sent.
            connection.recv(1)


def _dial(port: int, certificate: str | None) -> socket.socket:
    connection = socket.create_connection((_LOCALHOST, port))
    if certificate is None:
        return connection
    context = ssl.create_default_context(cafile=certificate)
    return context.wrap_socket(connection, server_hostname=_LOCALHOST)


def main(*arguments: str) -> int:
    if arguments[0] == "send":
        port, count, size, repeat = map(int, arguments[1:5])
        send(port, Tiles(count, size), repeat, certificate=next(iter(arguments[5:]), None))
        return 0
    count, size, threads, repeat = map(int, arguments[:4])
    return report(partial(measure, count, size, threads, repeat, tls=arguments[4:]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
