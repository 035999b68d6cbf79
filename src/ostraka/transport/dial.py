"""How clients and workers reach the enclave's service, and when they try again."""

import re
from pathlib import Path
from secrets import SystemRandom

import grpc

from ostraka.errors import ConfigError

_KEEPALIVE_MS = 30_000
_MEBIBYTE = 2**20
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_PORTS = range(1, 2**16)


def dial(address: str, *, tls_ca: Path | None = None, largest: int = _MEBIBYTE) -> grpc.Channel:
    """A channel to HOST:PORT. What matters is sealed end to end; TLS on top is an option.

    tls_ca: the certificates (PEM) that vouch for the server; None for no TLS. largest: of a message
    from the other side, in bytes. Raises ConfigError for what can never be reached.
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
        # A connection of its own: clients of one process would wait for each other's calls.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if tls_ca is None:
        return grpc.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(_certificates(tls_ca))
    return grpc.secure_channel(address, credentials, options=options)


def _require_address(address: str) -> None:
    """gRPC itself would dial some other port instead of one that does not exist."""
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


_FIRST_S = 0.25
_CAP_S = 30.0


class Backoff:
    """Doubles from try to try up to a cap, and varies, so that many do not come back at once."""

    def __init__(self, first: float = _FIRST_S, cap: float = _CAP_S) -> None:
        self._cap = cap
        self._first = first
        self._next = first
        self._draw = SystemRandom()

    def next(self) -> float:
        """Seconds: between half of the present step and all of it."""
        step = self._next
        self._next = min(2 * step, self._cap)
        return self._draw.uniform(step / 2, step)

    def reset(self) -> None:
        """The last try went well."""
        self._next = self._first
