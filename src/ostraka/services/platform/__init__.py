"""What the machine gives to the enclave: evidence about its code, and a key for its state.

`simulated` is not named here: who asks for it must import it, and nobody else loads it.
"""

from ostraka.services.platform.detect import detect
from ostraka.services.platform.development_key import UnsafeDevelopmentKey
from ostraka.services.platform.gramine import GramineKeys, GramineProvider
from ostraka.services.platform.interface import EvidenceProvider, SealingKeys
from ostraka.services.platform.key_release import KeyRelease
from ostraka.services.platform.nitro import NitroProvider
from ostraka.services.platform.sev_guest import SevGuestKeys
from ostraka.services.platform.tsm import TsmProvider

__all__ = [
    "EvidenceProvider",
    "GramineKeys",
    "GramineProvider",
    "KeyRelease",
    "NitroProvider",
    "SealingKeys",
    "SevGuestKeys",
    "TsmProvider",
    "UnsafeDevelopmentKey",
    "detect",
]
