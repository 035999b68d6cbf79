"""Connects clients and workers to the enclave's service, and decides when they try again."""

import re
from pathlib import Path
from secrets import SystemRandom

import grpc

from ostraka.errors import ConfigError

_KEEPALIVE_MS = 30_000
_MEBIBYTE = 2**20
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_PORTS = range(1, 2**16)
_FIRST_S = 0.25
_CAP_S = 30.0


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
