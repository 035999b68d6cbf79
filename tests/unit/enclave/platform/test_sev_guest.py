"""The kernel's device is played at the byte level."""

import ctypes
import errno
import struct
from pathlib import Path

import pytest

from ostraka.enclave.platform.interface import sealing_key
from ostraka.enclave.platform.sev_guest import SevGuestKeys
from ostraka.errors import PlatformError

DEVICE = Path("/dev/null")
SECRET = bytes(range(100, 132))


class Guest:
    """Derives `secret`, whatever is asked, and remembers what was."""

    def __init__(self, secret=SECRET, *, status=0, errors=(0, 0), fails=None):
        self.secret = secret
        self.status = status
        self.errors = errors
        self.fails = fails
        self.requests: list[tuple[int, ...]] = []
        self.versions: list[int] = []
        self.answers: list[int] = []

    def __call__(self, device, number, structure):
        assert number == 0xC0205301
        view = memoryview(structure).cast("B")
        version, request, response, *_ = struct.unpack("<B7xQQII", view)
        self.versions.append(version)
        self.requests.append(struct.unpack("<IIQIIQ", ctypes.string_at(request, 32)))
        self.answers.append(response)
        view[24:32] = struct.pack("<II", *self.errors)
        if self.fails:
            raise OSError(self.fails, "no")
        answer = struct.pack("<I28x32s", self.status, self.secret)
        ctypes.memmove(response, answer, 64)


def test_a_key_for_this_code_under_this_policy():
    guest = Guest()
    key = SevGuestKeys(DEVICE, guest).key()
    assert len(key) == 32
    assert key == SevGuestKeys(DEVICE, Guest()).key()
    assert key != SevGuestKeys(DEVICE, Guest(bytes(31) + b"1")).key()
    assert guest.versions == [1]


def test_the_measurement_and_the_guest_policy_are_mixed_in_and_nothing_else():
    guest = Guest()
    SevGuestKeys(DEVICE, guest).key()
    root, reserved, fields, vmpl, svn, tcb = guest.requests[0]
    assert fields == 0b001001
    assert (root, reserved, vmpl, svn, tcb) == (0, 0, 0, 0, 0)


def test_the_key_is_derived_under_a_label():
    expected = sealing_key(SECRET, b"ostraka/sealing-key/sev-guest/v1")
    assert SevGuestKeys(DEVICE, Guest()).key() == expected


FAILURES = {
    "a status": (Guest(status=0x16), "status 0x16"),
    "another status": (Guest(status=0x27), "status 0x27"),
    "an error of the firmware": (Guest(errors=(0x1D, 0)), "firmware error 0x1d"),
    "an error of the host": (Guest(errors=(0, 2)), "host error 0x2"),
    "an empty key": (Guest(bytes(32)), "empty key"),
    "a channel that is shut": (Guest(fails=errno.ENOTTY), "ENOTTY.*restart the machine"),
    "a host that refuses": (Guest(fails=errno.EIO), "EIO.*kernel's log"),
}


@pytest.mark.parametrize("what", FAILURES)
def test_a_failure_gives_no_key(what):
    guest, message = FAILURES[what]
    with pytest.raises(PlatformError, match=message) as caught:
        SevGuestKeys(DEVICE, guest).key()
    assert guest.secret.hex() not in str(caught.value)


def test_without_the_device(tmp_path):
    with pytest.raises(PlatformError, match="load the module sev-guest"):
        SevGuestKeys(tmp_path / "sev-guest").key()


def test_another_device_does_not_know_the_request():
    with pytest.raises(PlatformError, match="ENOTTY"):
        SevGuestKeys(DEVICE).key()
