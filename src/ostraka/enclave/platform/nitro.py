"""AWS Nitro Enclaves: an attestation document from the security module, /dev/nsm.

A request and its answer are CBOR. The ioctl takes both buffers, and sets the length of the second.
"""

import ctypes
import errno
from pathlib import Path
from typing import Any

import cbor2

from ostraka.enclave.platform.interface import require_about, require_report_data
from ostraka.enclave.platform.linux import Files, Ioctl, call, request_number, system_ioctl
from ostraka.errors import PlatformError
from ostraka.files import explained
from ostraka.messages import Evidence

PLACE = Path("/dev/nsm")

_GROUP = 0x0A
_RESPONSE_BYTES = 0x3000  # what the kernel's driver sends at most

_ADVICE = {
    errno.ENOENT: "there is no security module: run this inside a Nitro Enclave",
    errno.EACCES: "this user may not open the security module",
    errno.ETIMEDOUT: "the security module did not answer in two minutes: restart the enclave",
}


class _Buffer(ctypes.Structure):
    _fields_ = (("address", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Message(ctypes.Structure):
    _fields_ = (("request", _Buffer), ("response", _Buffer))


NSM_REQUEST = request_number(_GROUP, 0, _Message)


def find(place: Path, files: Files) -> "NitroProvider | None":
    """Returns the provider if the security module is there."""
    return NitroProvider(place) if files.exists(place) else None


class NitroProvider:
    """Gets attestation documents. The kernel queues requests, so any number of threads may ask."""

    kind = "nitro"

    def __init__(self, device: Path = PLACE, ioctl: Ioctl = system_ioctl) -> None:
        self._device = device
        self._ioctl = ioctl

    def evidence(self, report_data: bytes) -> Evidence:
        """Gets a document whose user data is the report data, which already holds a nonce."""
        require_report_data(report_data)
        wish = {"user_data": report_data, "nonce": None, "public_key": None}
        with explained("asking the Nitro security module", _ADVICE):
            answer = self._ask(cbor2.dumps({"Attestation": wish}))
        document = _document(answer)
        require_about(report_data, document)
        return Evidence(self.kind, document, ())

    def _ask(self, request: bytes) -> bytes:
        asked = ctypes.create_string_buffer(request, len(request))
        answer = ctypes.create_string_buffer(_RESPONSE_BYTES)
        message = _Message(_buffer(asked), _buffer(answer))
        call(self._device, self._ioctl, NSM_REQUEST, message)
        return answer.raw[: message.response.length]


def _buffer(memory: Any) -> _Buffer:
    return _Buffer(ctypes.addressof(memory), ctypes.sizeof(memory))


def _document(answer: bytes) -> bytes:
    try:
        match cbor2.loads(answer):
            case {"Attestation": {"document": bytes(document)}}:
                return document
            case {"Error": str(code)}:
                raise PlatformError(f"the Nitro security module refuses: {code[:64]}")
    except (cbor2.CBORDecodeError, ValueError):
        pass
    raise PlatformError("the Nitro security module's answer cannot be read")
