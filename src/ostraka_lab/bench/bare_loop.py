"""What opening alone costs, and a bare loop that receives over loopback and opens.

python -m ostraka_lab.bench.bare_loop THREADS SENDERS TILES TILE_BYTES REPEAT [CERTIFICATE KEY]
python -m ostraka_lab.bench.bare_loop send PORT SENDERS TILES TILE_BYTES REPEAT [CERTIFICATE]

`ostraka bench service` measures a whole service by these two. The loop is the least that a service
can do with Python's sockets: one thread, one buffer, one connection after the other. What sends to
it is what sends to the service: as many clients in as many processes, each on a connection of its
own, which seal one tile after the other. So both have the same load beside them.
"""

import contextlib
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ostraka.crypto.aead import TAG_BYTES, nonce
from ostraka.errors import LocalProtocolError
from ostraka.transport.dial import hold_back
from ostraka_lab.bench.machine import Cost, measured
from ostraka_lab.bench.process import CLIENT_PROCESSES, Begin, Figures, report

_KEY = bytes(32)  # Nothing here is secret.
_CONTEXT = bytes(32)
_LARGEST = 2**28  # bytes of different ciphertext: more than fits into a cache
_LOCALHOST = "127.0.0.1"
_PATIENCE_S = 60.0
_GO = b"!"


class Tiles:
    """Sealed tiles of one size, again and again."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        different = min(count, max(1, _LARGEST // size))
        plain, cipher = bytes(size - TAG_BYTES), AESGCM(_KEY)
        self._sealed = [cipher.encrypt(nonce(i), plain, _CONTEXT) for i in range(different)]

    def number(self, place: int) -> int:
        """Which of the different tiles comes at this place."""
        return place % len(self._sealed)

    def open(self, places: range) -> None:
        """Open what comes at these places, into a buffer that stays in the cache."""
        cipher, out = AESGCM(_KEY), bytearray(self.size - TAG_BYTES)
        for place in places:
            number = self.number(place)
            cipher.decrypt_into(nonce(number), self._sealed[number], _CONTEXT, out)


@dataclass(frozen=True)
class Traffic:
    """What is sent in each run. tiles: of each sender. size: of a sealed tile."""

    senders: int
    tiles: int
    size: int
    repeat: int

    @property
    def bytes(self) -> int:
        return self.senders * self.tiles * self.size

    @property
    def words(self) -> list[str]:
        """It as arguments of a command."""
        return [str(each) for each in (self.senders, self.tiles, self.size, self.repeat)]

    @property
    def shares(self) -> list["Traffic"]:
        """What each process sends."""
        each = -(-self.senders // CLIENT_PROCESSES)
        firsts = range(0, self.senders, each)
        return [replace(self, senders=min(each, self.senders - first)) for first in firsts]


def measure(traffic: Traffic, threads: int, begin: Begin, *, tls: tuple[str, ...] = ()) -> Figures:
    """CPU and wall seconds of every run. tls: the files of a certificate and of its key."""
    begin("opening and the bare loop", 0, 1)
    made = Tiles(traffic.senders * traffic.tiles, traffic.size)
    opened = [_open(made, threads) for _ in range(traffic.repeat)]
    received = list(_receive(traffic, tls))
    return {
        "bytes": traffic.bytes,
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


def _receive(traffic: Traffic, tls: tuple[str, ...]) -> Iterator[Cost]:
    """Receive all tiles from other processes and open them: once for every run."""
    everyone = range(traffic.senders)
    with socket.create_server((_LOCALHOST, 0), backlog=traffic.senders) as listening:
        listening.settimeout(_PATIENCE_S)
        with _sending(listening.getsockname()[1], traffic, tls[:1]):
            for _ in range(traffic.repeat):
                with contextlib.ExitStack() as held:
                    lines = [held.enter_context(_accept(listening, tls)) for _ in everyone]
                    _, cost = measured(partial(_loop, lines, traffic))
                yield cost


def _accept(listening: socket.socket, tls: tuple[str, ...]) -> socket.socket:
    connection, _ = listening.accept()
    connection.settimeout(None)  # A timeout would make each call two.
    if not tls:
        return connection
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*tls)
    return context.wrap_socket(connection, server_side=True)


def _loop(connections: list[socket.socket], traffic: Traffic) -> None:
    cipher, out = AESGCM(_KEY), bytearray(traffic.size - TAG_BYTES)
    sealed = memoryview(bytearray(traffic.size))
    for connection in connections:
        connection.sendall(_GO)
    for connection in connections:
        fill = _fill_in_parts if isinstance(connection, ssl.SSLSocket) else _fill
        for number in range(traffic.tiles):
            fill(connection, sealed)
            cipher.decrypt_into(nonce(number), sealed, _CONTEXT, out)


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
def _sending(port: int, traffic: Traffic, certificate: tuple[str, ...]) -> Iterator[None]:
    """Other processes that send, and end with the block."""
    command = [sys.executable, "-m", "ostraka_lab.bench.bare_loop", "send", str(port)]
    processes = [
        subprocess.Popen(  # noqa: S603 (this interpreter, and arguments of our own)
            [*command, *share.words, *certificate],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for share in traffic.shares
    ]
    try:
        yield
        for process in processes:
            process.wait(_PATIENCE_S)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def send(port: int, traffic: Traffic, *, certificate: str | None = None) -> None:
    """Send the tiles of some senders, once for every run: a thread for each of them."""
    with ThreadPoolExecutor(traffic.senders) as pool:
        list(pool.map(partial(_send, port, traffic, certificate), range(traffic.senders)))


def _send(port: int, traffic: Traffic, certificate: str | None, number: int) -> None:
    tiles, each = traffic.tiles, traffic.size - TAG_BYTES
    # Every one has values of its own, as clients have: they do not fit into a cache together.
    values = memoryview(bytes([number % 256]) * (tiles * each))
    cipher, sealed = AESGCM(_KEY), bytearray(traffic.size)
    for _ in range(traffic.repeat):
        with _dial(port, certificate) as connection:
            connection.recv(len(_GO))
            for tile in range(tiles):
                part = values[tile * each : (tile + 1) * each]
                cipher.encrypt_into(nonce(tile), part, _CONTEXT, sealed)
                connection.sendall(sealed)
            # Until the other side closes: a socket that is closed with something unread, such as
            # TLS's session tickets, throws away what it has not sent.
            connection.recv(1)


def _dial(port: int, certificate: str | None) -> socket.socket:
    connection = socket.create_connection((_LOCALHOST, port))
    hold_back(connection)
    if certificate is None:
        return connection
    context = ssl.create_default_context(cafile=certificate)
    return context.wrap_socket(connection, server_hostname=_LOCALHOST)


def main(*arguments: str) -> int:
    if arguments[0] == "send":
        port, *counts = map(int, arguments[1:6])
        send(port, Traffic(*counts), certificate=next(iter(arguments[6:]), None))
        return 0
    threads, *counts = map(int, arguments[:5])
    return report(partial(measure, Traffic(*counts), threads, tls=arguments[5:]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
