"""How clients and workers are connected."""

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from ostraka.errors import ConfigError
from ostraka.transport import LANE, TICKET_BYTES
from ostraka.transport import dial as dialling
from ostraka.transport.dial import Sockets, dial, dial_lane


def test_every_channel_has_a_connection_of_its_own():
    """Clients of one process must not wait for each other's calls."""
    together = threading.Barrier(3)

    def wait(request, context):
        together.wait(30)
        return request

    handlers: dict[str, Any] = {"Wait": grpc.unary_unary_rpc_method_handler(wait)}
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_concurrent_streams", 1)])
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with ExitStack() as stack:
            channels = [stack.enter_context(dial(f"127.0.0.1:{port}")) for _ in range(3)]
            methods: list[Any] = [channel.unary_unary("/test/Wait") for channel in channels]
            calls = [method.future(b"", 60) for method in methods]
            assert [call.result() for call in calls] == [b""] * 3
    finally:
        server.stop(None)


def test_an_answer_about_ten_thousand_clients_fits():
    """A status with 64 characters for each name in each of its lists has 3.7 MB."""
    server = grpc.server(ThreadPoolExecutor(1), options=[("grpc.max_send_message_length", -1)])
    handlers: Any = {"Ask": grpc.unary_unary_rpc_method_handler(lambda request, _: bytes(2**22))}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with dial(f"127.0.0.1:{port}") as channel:
            ask: Any = channel.unary_unary("/test/Ask")
            assert len(ask(b"", timeout=60)) == 2**22
    finally:
        server.stop(None)


LATE_S = 0.05  # each way
PIECE, PIECES = 2**16, 64


def pass_on_late(source: socket.socket, sink: socket.socket) -> None:
    """Pass on what comes from one side, after a time."""
    late: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def take() -> None:
        data = b"?"
        while data:
            try:
                data = source.recv(2**20)
            except OSError:
                data = b""
            late.put((time.monotonic() + LATE_S, data))

    taking = threading.Thread(target=take)
    taking.start()
    data = b"?"
    while data:
        when, data = late.get()
        time.sleep(max(0.0, when - time.monotonic()))
        with suppress(OSError):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
    taking.join()


@contextmanager
def a_long_way_to(port: int) -> Iterator[int]:
    """A port that passes one connection on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def relay() -> None:
            near, _ = listening.accept()
            with near, socket.create_connection(("127.0.0.1", port)) as far:
                back = threading.Thread(target=pass_on_late, args=(far, near))
                back.start()
                pass_on_late(near, far)
                back.join()

        passing = threading.Thread(target=relay)
        passing.start()
        yield listening.getsockname()[1]
        passing.join()


@pytest.mark.parametrize("transfers", [False, True])
def test_a_call_over_a_long_way_is_not_held_up_by_a_short_window(transfers):
    """With gRPC's window of 64 KiB, and without probes, each of its pieces has a way of its own."""
    server = grpc.server(ThreadPoolExecutor(1))
    pieces: Any = grpc.unary_stream_rpc_method_handler(lambda *_: iter([bytes(PIECE)] * PIECES))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("test", {"Pieces": pieces})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            a_long_way_to(port) as there,
            dial(f"127.0.0.1:{there}", transfers=transfers) as channel,
        ):
            begun = time.monotonic()
            call: Any = channel.unary_stream("/test/Pieces")
            assert sum(map(len, call(b"", timeout=60))) == PIECE * PIECES
            assert time.monotonic() - begun < PIECES * LATE_S
    finally:
        server.stop(None)


# Lanes.

TICKET = bytes(range(TICKET_BYTES))
PATIENCE_S = 60.0


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port that answers one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            near, _ = listening.accept()
            with near:
                near.settimeout(PATIENCE_S)
                answer(near)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def until(near: socket.socket, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end) and (more := near.recv(1)):
        said += more
    return said


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_a_lane_begins_with_its_ticket():
    heard: list[bytes] = []
    with (
        answering(lambda near: heard.append(until(near, b"?"))) as port,
        dial_lane(f"127.0.0.1:{port}", TICKET, seconds=PATIENCE_S) as lane,
    ):
        assert lane.gettimeout() is None
        lane.sendall(b"frames?")
    assert heard == [LANE + TICKET + b"frames?"]


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system lacks it")
def test_a_lane_takes_little_ahead_of_the_network():
    with (
        answering(lambda near: None) as port,
        dial_lane(f"127.0.0.1:{port}", TICKET, seconds=PATIENCE_S) as lane,
    ):
        assert lane.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 2**16


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:0", "http://a:1", "[::1"])
def test_an_address_that_is_none_is_not_dialled(address):
    with pytest.raises(ConfigError, match="HOST:PORT"):
        dial_lane(address, TICKET, seconds=PATIENCE_S)


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
@pytest.mark.parametrize("target", ["enclave.example:7443", "[2001:db8::1]:7443"])
def test_a_lane_goes_by_the_proxy_that_grpc_goes_by(monkeypatch, variable, target):
    """The answer and what follows it may come at once."""
    heard: list[bytes] = []

    def proxy(near: socket.socket) -> None:
        heard.append(until(near, b"\r\n\r\n"))
        near.sendall(b"HTTP/1.1 200 Connection established\r\nVia: a proxy\r\n\r\nbehind it")
        heard.append(until(near, b"?"))

    with answering(proxy) as port:
        monkeypatch.setenv(variable, f"http://me:a%20word@127.0.0.1:{port}")
        with dial_lane(target, TICKET, seconds=PATIENCE_S) as lane:
            assert lane.recv(9) == b"behind it"
            lane.sendall(b"?")
    lines = heard[0].split(b"\r\n")
    assert lines[0] == f"CONNECT {target} HTTP/1.1".encode()
    assert b"Proxy-Authorization: Basic bWU6YSB3b3Jk" in lines
    assert heard[1] == LANE + TICKET + b"?"


REFUSALS = {
    "no": b"HTTP/1.1 403 Forbidden\r\n\r\n",
    "nothing": b"",
    "something else": b"220 mail.example ESMTP\r\n\r\n",
    "no end": b"x" * 20_000,
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_proxy_that_refuses_is_told(monkeypatch, what):
    def proxy(near: socket.socket) -> None:
        until(near, b"\r\n\r\n")
        with suppress(ConnectionError):
            near.sendall(REFUSALS[what])
            near.shutdown(socket.SHUT_WR)
            near.recv(1)

    with answering(proxy) as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        with pytest.raises(ConnectionError, match="the proxy at 127"):
            dial_lane("enclave.example:7443", TICKET, seconds=PATIENCE_S)


@pytest.mark.parametrize("proxy", ["https://127.0.0.1:1", "socks5://127.0.0.1:1", "http://a:b:c"])
def test_what_is_no_http_proxy_is_no_proxy_to_grpc_either(monkeypatch, proxy):
    heard: list[bytes] = []
    monkeypatch.setenv("http_proxy", proxy)
    with (
        answering(lambda near: heard.append(until(near, b"?"))) as port,
        dial_lane(f"127.0.0.1:{port}", TICKET, seconds=PATIENCE_S) as lane,
    ):
        lane.sendall(b"?")
    assert heard == [LANE + TICKET + b"?"]


@pytest.mark.parametrize("spared", ["127.0.0.1", "example.org, 0.0.1", "10.1.1.1,127.0.0.1"])
def test_hosts_that_need_no_proxy_are_dialled_themselves(monkeypatch, spared):
    heard: list[bytes] = []
    with answering(lambda near: heard.append(until(near, b"?"))) as port:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", spared)
        with dial_lane(f"127.0.0.1:{port}", TICKET, seconds=PATIENCE_S) as lane:
            lane.sendall(b"?")
    assert heard == [LANE + TICKET + b"?"]


@contextmanager
def full() -> Iterator[str]:
    """An address that answers nobody: as many wait there as may."""
    with ExitStack() as waiting:
        listening = waiting.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(8):
            near = waiting.enter_context(socket.socket())
            near.setblocking(False)
            near.connect_ex(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    """An address that takes who comes, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


STEPS = {"connecting": full, "the handshake of TLS": silent, "asking a proxy": silent}


@pytest.mark.parametrize("step", STEPS)
def test_who_dials_can_be_ended_at_any_step(step, tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_bytes(b"")
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(dialling, "_tls", lambda certificates: trusting)
    ca = tmp_path / "ca.pem" if "TLS" in step else None
    sockets, failed = Sockets(), []
    with STEPS[step]() as address:
        if "proxy" in step:
            monkeypatch.setenv("http_proxy", f"http://{address}")

        def run() -> None:
            try:
                dial_lane(address, TICKET, tls_ca=ca, seconds=600, among=sockets)
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while not sockets._held:
            time.sleep(0.01)
        time.sleep(0.1)  # It is under way by now, or it is ended before.
        sockets.end()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert failed
    assert not sockets._held


def test_nothing_is_dialled_among_sockets_that_have_ended():
    sockets = Sockets()
    sockets.end()
    with silent() as address, pytest.raises(ConnectionAbortedError):
        dial_lane(address, TICKET, seconds=PATIENCE_S, among=sockets)


REACHES = {
    "127.0.0.1:1": 0,
    "localhost:1": 0,
    "[::1]:1": 0,
    "0.0.0.0:1": 0,
    "[::ffff:127.0.0.1]:1": 0,
    "169.254.169.254:1": 1,
    "[fe80::1]:1": 1,
    "10.0.0.1:1": 2,
    "192.168.1.1:1": 2,
    "100.64.0.1:1": 2,
    "[fd00::1]:1": 2,
    "[::ffff:10.0.0.1]:1": 2,
    "1.1.1.1:1": 3,
    "[2606:4700::1]:1": 3,
}


@pytest.mark.parametrize("address", REACHES)
def test_how_far_an_address_reaches(address):
    assert dialling.reach(address) == REACHES[address]


@pytest.mark.parametrize("address", REACHES)
@pytest.mark.parametrize("least", [0, 1, 2, 3])
def test_what_is_nearer_than_the_service_is_not_required(address, least):
    with pytest.raises(PermissionError) if REACHES[address] < least else nullcontext():
        dialling._require_reach(dialling._host_and_port(address)[0], least)


@pytest.mark.parametrize("by_proxy", [False, True])
def test_nobody_is_told_a_ticket_who_is_nearer_than_the_service(by_proxy, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        if by_proxy:
            monkeypatch.setenv("http_proxy", f"http://{address}")
        with pytest.raises(PermissionError, match="nearer"):
            dial_lane(address, TICKET, seconds=PATIENCE_S, least=2)
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_of_several_addresses_the_farther_ones_are_dialled(monkeypatch):
    """A name has a shard's address, and one on this machine."""
    heard: list[bytes] = []
    real = socket.getaddrinfo

    def both(host, port, **options):
        return [*real("127.0.0.1", 1, **options), *real("127.0.0.1", port, **options)]

    reaches = iter([0, 3])
    with answering(lambda near: heard.append(until(near, b"?"))) as port:
        monkeypatch.setattr(socket, "getaddrinfo", both)
        monkeypatch.setattr(dialling, "_reach", lambda where: next(reaches))
        with dial_lane(f"shard.example:{port}", TICKET, seconds=PATIENCE_S, least=2) as lane:
            lane.sendall(b"?")
    assert heard == [LANE + TICKET + b"?"]
