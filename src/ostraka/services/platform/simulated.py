"""Evidence without a TEE: a simulated platform, which anybody with its file can be.

The enclave never comes here by itself. Its evidence has a kind of its own, and a client refuses it
unless its policy and its caller both allow it.
"""

import json
import re
from pathlib import Path

from ostraka import files
from ostraka.attestation.simulation import UnsafeSimulatedPlatform
from ostraka.errors import ConfigError
from ostraka.messages import SIMULATION, Evidence
from ostraka.services.platform.report_data import require_report_data

PLATFORM_FILE = "simulation-platform.json"

_VERSION = "ostraka/simulated-platform/v1"
_WARNING = "this is no TEE: whoever reads the seed can attest to any code"
_SEED_BYTES = 32
_HEX_SEED = re.compile(rf"[0-9a-f]{{{2 * _SEED_BYTES}}}")


class UnsafeSimulatedProvider:
    """Attests to `mrenclave`, whatever code really runs."""

    kind = SIMULATION

    def __init__(self, platform: UnsafeSimulatedPlatform, mrenclave: bytes) -> None:
        self._platform = platform
        self._mrenclave = mrenclave

    def evidence(self, report_data: bytes) -> Evidence:
        require_report_data(report_data)
        quote = self._platform.quote(report_data, mrenclave=self._mrenclave)
        return Evidence(self.kind, quote, (self._platform.root_der,))


def save_platform(path: Path, platform: UnsafeSimulatedPlatform) -> None:
    """Into a new file, for its owner alone. Raises ConfigError if there is one."""
    fields = {
        "SIMULATION": _WARNING,
        "version": _VERSION,
        "seed": platform.seed.hex(),
        "issued": platform.issued,
        "lifetime": platform.lifetime,
    }
    files.create_private(path, json.dumps(fields, indent=2) + "\n")


def load_platform(path: Path) -> UnsafeSimulatedPlatform:
    """Raises ConfigError. What was read stays out of the error: it may hold the seed."""
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
