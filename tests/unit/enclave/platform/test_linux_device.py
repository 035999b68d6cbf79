import ctypes
import errno
import fcntl
import os
import termios
from pathlib import Path

import pytest

from ostraka.enclave.platform.linux import call, request_number, system_ioctl


class Count(ctypes.Structure):
    _fields_ = (("value", ctypes.c_int),)


def test_the_number_is_that_of_linux():
    """The terminal's own, as the C library spells it: TIOCGPTN is _IOR('T', 0x30, unsigned int)."""
    read_only = request_number(ord("T"), 0x30, Count) & ~(1 << 30)
    assert read_only == 0x80045430


def test_the_real_ioctl_changes_the_structure():
    reader, writer = os.pipe()
    try:
        os.write(writer, b"four")
        count = Count(0)
        system_ioctl(reader, termios.FIONREAD, count)
        assert count.value == 4
    finally:
        os.close(reader)
        os.close(writer)


def test_a_device_is_closed_also_after_an_error():
    opened = []

    def refuse(device, number, structure):
        opened.append(device)
        raise OSError(errno.EIO, "refused")

    with pytest.raises(OSError, match="refused"):
        call(Path("/dev/null"), refuse, 0, Count())
    with pytest.raises(OSError, match="Bad file descriptor"):
        fcntl.fcntl(opened[0], fcntl.F_GETFD)
