"""SEV-SNP: a key that the processor derives for this virtual machine, through /dev/sev-guest."""

import ctypes
import errno
from pathlib import Path

from ostraka.enclave.platform.interface import sealing_key
from ostraka.enclave.platform.linux import Ioctl, call, request_number, system_ioctl
from ostraka.errors import PlatformError
from ostraka.files import explained

SEV_GUEST = Path("/dev/sev-guest")

_KEY_LABEL = b"ostraka/sealing-key/sev-guest/v1"

_GROUP = ord("S")
_MESSAGE_VERSION = 1
_VERSIONED_CHIP_KEY = 0  # the root: a secret of this chip, and not of a migration agent
_GUEST_POLICY = 1 << 0
_MEASUREMENT = 1 << 3

# What the key depends on: the measurement, so that other code gets another key; and the policy, so
# that the same code with debugging allowed, which its host could read, gets another key as well. It
# does not depend on the firmware's version: every update of the machine would lose the state, and a
# client's policy demands a minimum anyway. Image and family names and the guest's version come from
# a signer that we do not need.
GUEST_FIELDS = _GUEST_POLICY | _MEASUREMENT

_ADVICE = {
    errno.ENOENT: "load the module sev-guest, in a SEV-SNP virtual machine",
    errno.EACCES: "the device is for root: run as root",
    errno.ENOTTY: "the kernel has shut its channel to the firmware after an error: "
    "restart the machine",
    errno.EIO: "the firmware or the host refused: the kernel's log says why",
    errno.ETIMEDOUT: "the host kept the firmware busy: try again later",
}


class _Request(ctypes.Structure):
    _fields_ = (
        ("root_key_select", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("guest_field_select", ctypes.c_uint64),
        ("vmpl", ctypes.c_uint32),
        ("guest_svn", ctypes.c_uint32),
        ("tcb_version", ctypes.c_uint64),
    )


class _Response(ctypes.Structure):
    _fields_ = (
        ("status", ctypes.c_uint32),
        ("reserved", ctypes.c_uint8 * 28),
        ("key", ctypes.c_uint8 * 32),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("message_version", ctypes.c_uint8),
        ("request", ctypes.c_uint64),
        ("response", ctypes.c_uint64),
        ("firmware_error", ctypes.c_uint32),
        ("host_error", ctypes.c_uint32),
    )


SNP_GET_DERIVED_KEY = request_number(_GROUP, 1, _Call)


class SevGuestKeys:
    """Derives a key for this code, under this policy, on this chip, and on no other machine."""

    name = "sev-guest derived key"

    def __init__(self, device: Path = SEV_GUEST, ioctl: Ioctl = system_ioctl) -> None:
        self._device = device
        self._ioctl = ioctl

    def key(self) -> bytes:
        request = _Request(
            root_key_select=_VERSIONED_CHIP_KEY, guest_field_select=GUEST_FIELDS, vmpl=0
        )
        response = _Response()
        try:
            with explained("asking the SEV firmware for a key", _ADVICE):
                self._ask(request, response)
            return sealing_key(_key(response), _KEY_LABEL)
        finally:
            ctypes.memset(ctypes.addressof(response), 0, ctypes.sizeof(response))

    def _ask(self, request: _Request, response: _Response) -> None:
        message = _Call(
            _MESSAGE_VERSION, ctypes.addressof(request), ctypes.addressof(response), 0, 0
        )
        call(self._device, self._ioctl, SNP_GET_DERIVED_KEY, message)
        if message.firmware_error or message.host_error:
            raise PlatformError(
                f"no key from the SEV firmware: firmware error {message.firmware_error:#x}, "
                f"host error {message.host_error:#x}"
            )


def _key(response: _Response) -> bytes:
    if response.status:
        raise PlatformError(f"the SEV firmware gives no key: status {response.status:#x}")
    secret = bytes(response.key)
    if not any(secret):
        raise PlatformError("the SEV firmware gave an empty key")
    return secret
