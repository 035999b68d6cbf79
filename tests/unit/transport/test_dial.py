"""How clients and workers are connected."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc
import pytest

from ostraka.errors import ConfigError
from ostraka.transport import LANE, TICKET_BYTES
from ostraka.transport.dial import dial, dial_lane


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
    handlers: dict[str, Any] = {
        "Ask": grpc.unary_unary_rpc_method_handler(lambda request, _: bytes(2**22))
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with dial(f"127.0.0.1:{port}") as channel:
            ask: Any = channel.unary_unary("/test/Ask")
            assert len(ask(b"", timeout=60)) == 2**22
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
        assert lane.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 2**17


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
