"""A sealing key in a file: for development, where there is no TEE to ask."""

import re
import secrets
from pathlib import Path

from ostraka import files
from ostraka.crypto.aead import KEY_BYTES
from ostraka.errors import ConfigError
from ostraka.services.platform.derive import sealing_key

_KEY_LABEL = b"ostraka/sealing-key/unsafe-development/v1"
_WARNING = (
    "UNSAFE ostraka key for development: whoever reads this file can read the enclave's state"
)
_HEX_KEY = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


class UnsafeDevelopmentKey:
    """Protects nothing from the host, which has the file. Never made or chosen by itself."""

    name = "UNSAFE development key file"

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, path: Path) -> "UnsafeDevelopmentKey":
        """A new key in a new file. Raises ConfigError if the file exists."""
        files.create_private(path, f"{_WARNING}\n{secrets.token_hex(KEY_BYTES)}\n")
        return cls(path)

    def __repr__(self) -> str:
        return f"UnsafeDevelopmentKey({str(self._path)!r}, <secret>)"

    def key(self) -> bytes:
        match files.read_private(self._path).splitlines():
            case [warning, line] if warning == _WARNING and _HEX_KEY.fullmatch(line):
                return sealing_key(bytes.fromhex(line), _KEY_LABEL)
        raise ConfigError(
            f"{self._path} is no key file for development: its first line must read "
            f"{_WARNING!r}, and its second must be {KEY_BYTES} bytes in lower-case hex"
        )
