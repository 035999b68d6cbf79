"""SGX under Gramine: a quote and a sealing key from the pseudo-files in /dev/attestation.

Under gramine-direct there is no enclave, and Gramine leaves these files out.
"""

import errno
import threading
from pathlib import Path

from ostraka.enclave.platform.interface import require_about, require_report_data, sealing_key
from ostraka.enclave.platform.linux import OS_FILES, Files
from ostraka.errors import PlatformError
from ostraka.files import explained
from ostraka.messages import Evidence

GRAMINE = Path("/dev/attestation")
PLACE = GRAMINE / "attestation_type"

_KEY_LABEL = b"ostraka/sealing-key/gramine-mrenclave/v1"
_SGX_KEY_BYTES = 16

# The files belong to the process, so a write by one thread changes the quotes of all others.
_ONE_AT_A_TIME = threading.Lock()

_ADVICE = {
    errno.ENOENT: "run under gramine-sgx; gramine-direct has no enclave to speak of",
    # Gramine gives this one error for everything that goes wrong outside, in the quoting service.
    errno.EACCES: "Gramine got no answer from the host's quoting service: check that aesmd runs, "
    "that DCAP is set up, and that this process may use both",
}
_TYPE_ADVICE = 'set sgx.remote_attestation = "dcap" in the manifest'


def find(place: Path, files: Files) -> "GramineProvider | None":
    """Returns the provider if Gramine's files are there. place: the file of its type."""
    return GramineProvider(place.parent, files) if files.exists(place) else None


class GramineProvider:
    """Gets quotes by DCAP. EPID is refused: Intel has ended it, and no client verifies it."""

    kind = "sgx"

    def __init__(self, root: Path = GRAMINE, files: Files = OS_FILES) -> None:
        self._root = root
        self._files = files

    def evidence(self, report_data: bytes) -> Evidence:
        require_report_data(report_data)
        with explained("asking Gramine for a quote", _ADVICE):
            self._require_dcap()
            quote = self._quote(report_data)
        require_about(report_data, quote)
        return Evidence(self.kind, quote, ())

    def _require_dcap(self) -> None:
        found = self._files.read(self._root / PLACE.name).strip()
        if found != b"dcap":
            raise PlatformError(f"Gramine's attestation type is {_printed(found)}: {_TYPE_ADVICE}")

    def _quote(self, report_data: bytes) -> bytes:
        with _ONE_AT_A_TIME:
            self._files.write(self._root / "user_report_data", report_data)
            return self._files.read(self._root / "quote")


class GramineKeys:
    """The key that the processor derives for this code, by MRENCLAVE, on this machine.

    The key by MRSIGNER is not used, because the signer could write another enclave that reads all
    state. The processor's security version is part of the key, so a microcode update changes it:
    hand the state on before (`ostraka enclave migrate`).
    """

    name = "gramine mrenclave key"

    def __init__(self, root: Path = GRAMINE, files: Files = OS_FILES) -> None:
        self._path = root / "keys" / "_sgx_mrenclave"
        self._files = files

    def key(self) -> bytes:
        with explained("reading Gramine's sealing key", _ADVICE):
            secret = self._files.read(self._path)
        if len(secret) != _SGX_KEY_BYTES:
            raise PlatformError(
                f"Gramine's sealing key at {self._path} has {len(secret)} bytes "
                f"instead of {_SGX_KEY_BYTES}: update Gramine"
            )
        return sealing_key(secret, _KEY_LABEL)


def _printed(text: bytes) -> str:
    return repr(text[:32].decode(errors="replace"))
