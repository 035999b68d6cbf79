"""What evidence says of an enclave, whichever platform says it."""

import hashlib
from dataclasses import dataclass

from ostraka.encoding import pack

_IDENTITY = b"ostraka/enclave-identity/v1"

# Measurements of where code runs, not of what runs: Nitro's role and its parent instance. State
# that is sealed to the code must open on the next instance, too.
_PLACES = {"nitro": ("pcr3", "pcr4")}


@dataclass(frozen=True)
class Claims:
    """Read out of evidence. They count for nothing until the evidence has been verified.

    measurements: what the platform measured of the code, by the policy's name for it, such as
    mrenclave, mrtd, pcr0. facts: everything else that a person may want to read.
    """

    kind: str
    measurements: tuple[tuple[str, bytes], ...]
    report_data: bytes
    debug: bool
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> bytes:
        """One name for all that was measured of the code: what state is sealed to and handed on to.

        Where the code runs does not count.
        """
        places = _PLACES.get(self.kind, ())
        code = ((name, value) for name, value in self.measurements if name not in places)
        parts = (part for name, value in code for part in (name.encode(), value))
        return hashlib.sha256(pack(_IDENTITY, self.kind.encode(), *parts)).digest()

    def measurement(self, name: str) -> bytes:
        return dict(self.measurements)[name]
