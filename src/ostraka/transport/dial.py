"""Connects clients and workers to the enclave's service, and decides when they try again."""

import ipaddress
import os
import re
import socket
import ssl
from base64 import b64encode
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from secrets import SystemRandom
from threading import Lock
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import grpc

from ostraka.errors import ConfigError
from ostraka.transport import LANE

# A charter, a certified receipt or a status of 10,000 members, with names of 64 characters, has up
# to 4 MB. What an impostor can have a caller hold is no more than this.
LARGEST_REPLY = 2**24
# Bytes of a call that may be on their way before they are asked for. gRPC's own 64 KiB let a call
# over 50 ms have 1.2 MB/s, since without probes it does not learn that there may be more.
LOOKAHEAD = 2**20
IDLE_S = 20.0  # after which a channel without a call closes its connection

_KEEPALIVE_MS = 30_000
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_PORTS = range(1, 2**16)
_LONGEST_ADDRESS = 262  # a name of 253 characters, brackets, and a port
_FIRST_S = 0.25
_CAP_S = 30.0
_HTTP = 80
_ANYWHERE = 3  # the farthest reach
_LONGEST_ANSWER = 2**14
_UNSENT = 2**16  # bytes that a lane takes ahead of the network
# In gRPC's order.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_NO_PROXIES = ("no_grpc_proxy", "no_proxy")


def dial(
    address: str,
    *,
    tls_ca: Path | None = None,
    largest: int = LARGEST_REPLY,
    transfers: bool = False,
) -> grpc.Channel:
    """Returns a channel to HOST:PORT. Secrets are sealed end to end, so TLS is optional.

    tls_ca: the certificates (PEM) that vouch for the server; None for no TLS. largest, transfers:
    see `channel_options`. Raises ConfigError for an impossible address.
    """
    require_address(address)
    options = channel_options(largest, transfers=transfers)
    if tls_ca is None:
        return grpc.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(_certificates(tls_ca))
    return grpc.secure_channel(address, credentials, options=options)


def channel_options(largest: int, *, transfers: bool = False) -> list[tuple[str, int]]:
    """Returns gRPC's settings. largest: the bytes of the largest message from the other side.

    transfers: much comes over it, so that it pays to find out how much can be on its way. With
    short calls that costs more than they do.
    """
    return [
        ("grpc.max_receive_message_length", largest),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.bdp_probe", int(transfers)),
        ("grpc.http2.lookahead_bytes", LOOKAHEAD),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.client_idle_timeout_ms", int(1000 * IDLE_S)),
        ("grpc.enable_retries", 0),
        # Without a connection of its own, a client would wait for the calls of others in a process.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def require_address(address: str) -> None:
    """Raises ConfigError. gRPC itself would dial another port in place of an impossible one."""
    if not _is_address(address):
        raise ConfigError(
            f"an address is HOST:PORT, with a port from 1 to {_PORTS[-1]}; got {address!r}"
        )


def _is_address(address: str) -> bool:
    match = _ADDRESS.fullmatch(address)
    return match is not None and int(match[1]) in _PORTS


def is_told_address(address: str) -> bool:
    """Returns whether this may be dialled, which another side has told and nobody has checked."""
    plain = address.isascii() and address.isprintable() and len(address) <= _LONGEST_ADDRESS
    return plain and _is_address(address)


def _certificates(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{path}: {unreadable.strerror}") from None


class Sockets:
    """Sockets that any thread can end at once, while another connects them or sends."""

    def __init__(self) -> None:
        self._lock = Lock()  # A number that is ended must not be another socket's by then.
        self._held: list[socket.socket] = []
        self._ended = False

    def hold(self, near: socket.socket) -> None:
        """Raises ConnectionAbortedError, and closes it, if they have ended."""
        with self._lock:
            if not self._ended:
                self._held.append(near)
                return
        near.close()
        raise ConnectionAbortedError("it has ended on this side")

    def end(self) -> None:
        """Make every wait for them fail, now and from now on."""
        with self._lock:
            self._ended = True
            for near in self._held:
                with suppress(OSError):
                    # TLS must not notice: another thread may be sending.
                    socket.socket.shutdown(near, socket.SHUT_RDWR)

    def drop(self, near: socket.socket) -> None:
        """Close one that came to nothing."""
        with self._lock:
            near.close()
            self._held.remove(near)

    def close(self) -> None:
        """End and close all of them."""
        self.end()
        with self._lock:
            for near in self._held:
                near.close()
            self._held.clear()


def dial_lane(
    address: str,
    ticket: bytes,
    *,
    tls_ca: Path | None = None,
    seconds: float,
    turn_s: float | None = None,
    among: Sockets | None = None,
    least: int = 0,
    first: bytes = b"",
) -> socket.socket:
    """Opens the lane that this ticket is for, on the way that gRPC takes to HOST:PORT.

    seconds: for each step on the way. turn_s: for its turn to come, if the other side shakes hands
    only then. among: the sockets that it belongs to, which can be ended
    from the first step on. least: the reach that its address has to have, if another side has told
    it. first: what is said over it first. Raises OSError, and ConfigError as `dial` does.
    """
    require_address(address)
    host, port = _host_and_port(address)
    among = among or Sockets()
    near = _connect(host, port, seconds, among, least)
    try:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hold_back(near)
        _notice_absence(near)
        if tls_ca is None:
            near.sendall(LANE + ticket + first)  # At once: what comes in two is read in two.
        else:
            near.sendall(LANE + ticket)
            near.settimeout(max(seconds, turn_s or 0.0))
            near = _secured(near, host, _tls(_certificates(tls_ca)), among)
            near.sendall(first)
        near.settimeout(None)
    except BaseException:
        among.drop(near)
        raise
    return near


def _secured(
    near: socket.socket, host: str, context: ssl.SSLContext, among: Sockets
) -> socket.socket:
    """Returns the same connection with TLS, whose handshake can be ended, too."""
    secured = context.wrap_socket(near, server_hostname=host, do_handshake_on_connect=False)
    among.hold(secured)
    try:
        secured.do_handshake()
    except BaseException:
        among.drop(secured)
        raise
    among.drop(near)  # What is left of it has no connection.
    return secured


def hold_back(near: socket.socket) -> None:
    """Has the system take no more than the network does, and a little.

    Otherwise it takes megabytes ahead. They leave the processor's cache before they are sent, and
    if the two sides share a machine, it is the reader's time that they are sent in.
    """
    with suppress(OSError, AttributeError):  # Not every system knows this.
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


def _notice_absence(near: socket.socket) -> None:
    """Has the system ask a silent peer whether it is still there, as gRPC does."""
    with suppress(OSError, AttributeError):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_MS // 1000)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_MS // 3000)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


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


def _connect(host: str, port: int, seconds: float, among: Sockets, least: int) -> socket.socket:
    proxy = _proxy(host)
    if proxy is None:
        return _open(host, port, seconds, among, least)
    _require_reach(host, least)
    near = _open(str(proxy.hostname), proxy.port or _HTTP, seconds, among)
    try:
        _ask_proxy(near, proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except BaseException:
        among.drop(near)
        raise
    return near


def _open(host: str, port: int, seconds: float, among: Sockets, least: int = 0) -> socket.socket:
    """Connects to the first address of this host that takes the connection."""
    failed: OSError | None = None
    for family, kind, protocol, _, where in _resolved(host, port):
        if _reach(where[0]) < least:  # Asked once: a name may have another address each time.
            failed = _nearer(host)
            continue
        near = socket.socket(family, kind, protocol)
        among.hold(near)
        try:
            near.settimeout(seconds)
            near.connect(where)
        except OSError as error:
            among.drop(near)
            failed = error
        except BaseException:
            among.drop(near)
            raise
        else:
            return near
    raise failed or OSError(f"{host} has no address")


def reach(address: str) -> int:
    """Returns how far away HOST:PORT is: 0 on this machine, 1 on its link, 2 in a private network
    and 3 anywhere. If it has several addresses, that of the farthest. Raises OSError.
    """
    return max(_reaches(_host_and_port(address)[0]), default=_ANYWHERE)


def _require_reach(host: str, least: int) -> None:
    """Raises OSError if a host is nearer than that, of which another side has told.

    Whoever tells an address could otherwise have a party connect to what trusts its own network.
    """
    if least and min(_reaches(host), default=_ANYWHERE) < least:
        raise _nearer(host)


def _nearer(host: str) -> OSError:
    return PermissionError(f"{host} is nearer to this machine than the service that names it")


def _reaches(host: str) -> list[int]:
    """Returns the reach of each address of a host; of none, if a proxy is to find them."""
    if _proxy(host) is not None:
        with suppress(ValueError):
            return [_reach(host)]
        return []
    return [_reach(where[0]) for *_, where in _resolved(host, None)]


def _reach(where: str) -> int:
    ip: Any = ipaddress.ip_address(where)
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback or ip.is_unspecified:
        return 0
    if ip.is_link_local:
        return 1
    return _ANYWHERE if ip.is_global else 2


def _resolved(host: str, port: int | None) -> list[Any]:
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


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
