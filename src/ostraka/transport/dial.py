"""Connects clients and workers to the enclave's service, and decides when they try again."""

import os
import re
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from secrets import SystemRandom
from urllib.parse import SplitResult, unquote, urlsplit

import grpc

from ostraka.errors import ConfigError
from ostraka.transport import LANE

IDLE_S = 20.0  # after which a channel without a call closes its connection

_KEEPALIVE_MS = 30_000
_MEBIBYTE = 2**20
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_PORTS = range(1, 2**16)
_FIRST_S = 0.25
_CAP_S = 30.0
_HTTP = 80
_LONGEST_ANSWER = 2**14
_UNSENT = 2**16  # bytes that a lane takes ahead of the network
# In gRPC's order.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXIES = ("no_grpc_proxy", "no_proxy")


def dial(address: str, *, tls_ca: Path | None = None, largest: int = _MEBIBYTE) -> grpc.Channel:
    """Returns a channel to HOST:PORT. Secrets are sealed end to end, so TLS is optional.

    tls_ca: the certificates (PEM) that vouch for the server; None for no TLS. largest: the bytes of
    the largest message from the other side. Raises ConfigError for an impossible address.
    """
    _require_address(address)
    options = [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.client_idle_timeout_ms", int(1000 * IDLE_S)),
        ("grpc.enable_retries", 0),
        # Without a connection of its own, a client would wait for the calls of others in a process.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if tls_ca is None:
        return grpc.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(_certificates(tls_ca))
    return grpc.secure_channel(address, credentials, options=options)


def _require_address(address: str) -> None:
    """Raises ConfigError. gRPC itself would dial another port in place of an impossible one."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[1]) not in _PORTS:
        raise ConfigError(
            f"an address is HOST:PORT, with a port from 1 to {_PORTS[-1]}; got {address!r}"
        )


def _certificates(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None


def dial_lane(
    address: str, ticket: bytes, *, tls_ca: Path | None = None, seconds: float
) -> socket.socket:
    """Opens the lane that this ticket is for, on the way that gRPC takes to HOST:PORT.

    seconds: for each step on the way. Raises OSError, and ConfigError as `dial` does.
    """
    _require_address(address)
    host, port = _host_and_port(address)
    near = _connect(host, port, seconds)
    try:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _hold_back(near)
        near.sendall(LANE + ticket)
        if tls_ca is not None:
            near = _tls(_certificates(tls_ca)).wrap_socket(near, server_hostname=host)
        near.settimeout(None)  # From here on, the lane's call says when it has ended.
    except BaseException:
        near.close()
        raise
    return near


def _hold_back(near: socket.socket) -> None:
    """Has the system take no more than the network does, and a little.

    Otherwise it takes megabytes ahead. They leave the processor's cache before they are sent, and
    if the two sides share a machine, it is the reader's time that they are sent in.
    """
    with suppress(OSError, AttributeError):  # Not every system knows this.
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@lru_cache(maxsize=4)  # Every lane goes to the same service.
def _tls(certificates: bytes) -> ssl.SSLContext:
    """Returns what trusts these certificates, and takes any of them for a root, as gRPC does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=certificates.decode("ascii", "ignore"))
    return context


def _connect(host: str, port: int, seconds: float) -> socket.socket:
    proxy = _proxy(host)
    if proxy is None:
        return socket.create_connection((host, port), seconds)
    near = socket.create_connection((proxy.hostname, proxy.port or _HTTP), seconds)
    try:
        _ask_proxy(near, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException:
        near.close()
        raise
    return near


def _proxy(host: str) -> SplitResult | None:
    """Returns the proxy that gRPC goes by for this host, if any: it reads these variables."""
    given = next(filter(None, map(os.environ.get, _PROXIES)), "")
    spared = next(filter(None, map(os.environ.get, _NO_PROXIES)), "").split(",")
    if any(host.endswith(each.strip()) for each in spared if each.strip()):
        return None
    try:
        proxy = urlsplit(given)
        return proxy if proxy.scheme == "http" and proxy.hostname and proxy.port != 0 else None
    except ValueError:  # such as a port that is no number
        return None


def _ask_proxy(near: socket.socket, proxy: SplitResult, target: str) -> None:
    """Has the proxy connect to HOST:PORT (HTTP's CONNECT). Raises OSError if it does not."""
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.username is not None:
        user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {b64encode(user.encode()).decode()}")
    near.sendall("\r\n".join([*lines, "", ""]).encode())
    answer = b""
    # What follows the answer is the other side's, so no byte more is read.
    while not answer.endswith(b"\r\n\r\n"):
        byte = near.recv(1)
        if not byte or len(answer) > _LONGEST_ANSWER:
            raise ConnectionError(f"the proxy at {proxy.hostname} does not answer as one")
        answer += byte
    status = answer.split(b" ", 2)[1:2]
    if status != [b"200"]:
        raise ConnectionError(f"the proxy at {proxy.hostname} does not connect to {target}")


class Backoff:
    """Pauses that double up to a cap, and vary, so that many peers do not return at once."""

    def __init__(self, first: float = _FIRST_S, cap: float = _CAP_S) -> None:
        self._cap = cap
        self._first = first
        self._next = first
        self._draw = SystemRandom()

    def next(self) -> float:
        """Returns the next pause in seconds: between half of the present step and all of it."""
        step = self._next
        self._next = min(2 * step, self._cap)
        return self._draw.uniform(step / 2, step)

    def reset(self) -> None:
        """Starts again with the first pause, after a success."""
        self._next = self._first
