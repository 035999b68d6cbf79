"""A platform without a TEE, for development: it proves nothing and keeps no secret."""

import json
import re
import secrets
from pathlib import Path

from ostraka import files
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.crypto.aead import KEY_BYTES
from ostraka.enclave.platform.interface import require_report_data, sealing_key
from ostraka.errors import ConfigError
from ostraka.messages import SIMULATION, Evidence

# Where a federation's folder has its simulated platform, and the sealing key of its enclave.
PLATFORM_FILE = "simulation/platform.json"
KEY_FILE = "simulation/UNSAFE-development.key"

_VERSION = "ostraka/simulated-platform/v1"
_WARNING = "this is no TEE: anybody who reads the seed can attest to any code"
_SEED_BYTES = 32
_HEX_SEED = re.compile(rf"[0-9a-f]{{{2 * _SEED_BYTES}}}")

_KEY_LABEL = b"ostraka/sealing-key/unsafe-development/v1"
_KEY_WARNING = (
    "UNSAFE ostraka key for development: anybody who reads this file can read the enclave's state"
)
_HEX_KEY = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


class UnsafeSimulatedProvider:
    """Attests to `mrenclave`, even if other code runs."""

    kind = SIMULATION

    def __init__(self, platform: UnsafeSimulatedPlatform, mrenclave: bytes) -> None:
        self._platform = platform
        self._mrenclave = mrenclave

    def evidence(self, report_data: bytes) -> Evidence:
        require_report_data(report_data)
        quote = self._platform.quote(report_data, mrenclave=self._mrenclave)
        return Evidence(self.kind, quote, (self._platform.root_der,))


def save_platform(path: Path, platform: UnsafeSimulatedPlatform) -> None:
    """Write a platform into a new private file. Raises ConfigError if the file exists."""
    fields = {
        "SIMULATION": _WARNING,
        "version": _VERSION,
        "seed": platform.seed.hex(),
        "issued": platform.issued,
        "lifetime": platform.lifetime,
    }
    files.create_private(path, json.dumps(fields, indent=2) + "\n")


def load_platform(path: Path) -> UnsafeSimulatedPlatform:
    """Read a platform. Raises ConfigError, which does not show the content: it may be a seed."""
    text = files.read_private(path)
    try:
        match json.loads(text):
            case {
                "SIMULATION": str(),
                "version": str(version),
                "seed": str(seed),
                "issued": int(issued),
                "lifetime": int(lifetime),
            } if version == _VERSION and _HEX_SEED.fullmatch(seed):
                return UnsafeSimulatedPlatform(
                    bytes.fromhex(seed), issued=issued, lifetime=lifetime
                )
    except (ValueError, RecursionError):
        pass
    raise ConfigError(
        f"{path} holds no simulated platform: it must be JSON with SIMULATION, version "
        f'("{_VERSION}"), seed ({_SEED_BYTES} bytes in hex), issued and lifetime (seconds)'
    )


class UnsafeDevelopmentKey:
    """A key in a file, which its host can read. It is used only where simulation is asked for."""

    name = "UNSAFE development key file"

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, path: Path) -> "UnsafeDevelopmentKey":
        """Write a new key into a new file. Raises ConfigError if the file exists."""
        files.create_private(path, f"{_KEY_WARNING}\n{secrets.token_hex(KEY_BYTES)}\n")
        return cls(path)

    def __repr__(self) -> str:
        return f"UnsafeDevelopmentKey({str(self._path)!r}, <secret>)"

    def key(self) -> bytes:
        match files.read_private(self._path).splitlines():
            case [warning, line] if warning == _KEY_WARNING and _HEX_KEY.fullmatch(line):
                return sealing_key(bytes.fromhex(line), _KEY_LABEL)
        raise ConfigError(
            f"{self._path} is no key file for development: its first line must read "
            f"{_KEY_WARNING!r}, and its second must be {KEY_BYTES} bytes in lower-case hex"
        )
