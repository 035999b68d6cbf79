"""The one enclave that a worker serves, known by its receipt key, which signs its offers.

The operator gives the key, or the worker remembers that of the first enclave that signs an offer,
in a file beside its own key. From then on it serves no other: an impostor gets no work done, and
the operator is told.
"""

import re
from pathlib import Path

from ostraka import files
from ostraka.errors import ConfigError, MalformedMessage, RemoteProtocolError

_KEY_BYTES = 32
_LABEL = "ostraka-enclave-key-v1"
_LINE = re.compile(rf"{_LABEL} ([0-9a-f]{{{2 * _KEY_BYTES}}})")
_PUBLIC = 0o644


class EnclavePin:
    """key: the receipt key, or None until one is remembered. file: where to remember it."""

    def __init__(self, key: bytes | None, file: Path | None = None) -> None:
        if key is not None and len(key) != _KEY_BYTES:
            raise ConfigError(f"a receipt key has {_KEY_BYTES} bytes; got {len(key)}")
        self._key = key
        self._file = file

    @classmethod
    def given(cls, key: str) -> "EnclavePin":
        """Pins a key, which is in hex as the enclave's service prints it. Raises ConfigError."""
        try:
            return cls(bytes.fromhex(key))
        except ValueError:
            raise ConfigError(f"a receipt key is {2 * _KEY_BYTES} hex digits") from None

    @classmethod
    def beside(cls, worker_key: Path) -> "EnclavePin":
        """Pins the key remembered beside the worker's own, if there is one. Raises ConfigError."""
        file = worker_key.with_name(f"{worker_key.name}.enclave")
        return cls(_read(file) if file.exists() else None, file)

    @property
    def first_use(self) -> bool:
        return self._key is None

    def check(self, shown: bytes) -> bytes:
        """Returns the key to check offers by. Raises RemoteProtocolError for another enclave's."""
        if len(shown) != _KEY_BYTES:
            raise MalformedMessage(f"a receipt key has {_KEY_BYTES} bytes; got {len(shown)}")
        if self._key is not None and shown != self._key:
            raise RemoteProtocolError(
                f"another enclave answers: its receipt key is {shown.hex()}, but this worker "
                f"serves only {self._key.hex()}. {self._advice()}"
            )
        return shown

    def remember(self, key: bytes) -> None:
        """Pins this key from now on. Raises OSError if it cannot be written to the file."""
        self._key = key
        if self._file is not None:
            text = f"# The enclave that this worker serves.\n{_LABEL} {key.hex()}\n"
            files.write(self._file, [text.encode()], mode=_PUBLIC)

    def _advice(self) -> str:
        if self._file is None:
            return "If the federation has a new enclave, start the worker with its --receipt-key"
        return f"If the federation has a new enclave, delete {self._file} and start the worker anew"


def _read(file: Path) -> bytes:
    try:
        text = file.read_bytes().decode("ascii", errors="replace")
    except OSError as unreadable:
        raise ConfigError(f"{file}: {unreadable.strerror}") from None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    match = _LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    if match is None:
        raise ConfigError(
            f"{file} does not hold the key of an enclave: delete it to trust the next one, "
            "or pass --receipt-key"
        )
    return bytes.fromhex(match[1])
