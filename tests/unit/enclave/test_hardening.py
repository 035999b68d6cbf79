"""A hardened process, in processes of their own: what is given up does not come back."""

import errno
import json
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ostraka.core import loops
from ostraka.enclave import hardening
from ostraka.enclave.hardening import ROOT_CAN_READ, harden, restrict_files
from ostraka.errors import ConfigError

PROBE = """
import json, os, resource, sys
from pathlib import Path
from ostraka.enclave.hardening import harden

read, write, closed = (Path(each) for each in sys.argv[2:])
lines = harden(read=[read], write=[write]) if sys.argv[1] == "restrict" else harden()

def allowed(act):
    try:
        act()
    except PermissionError:
        return False
    return True

status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
import ctypes
print(json.dumps({
    "lines": lines,
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "no_new_privs": status["NoNewPrivs"].strip(),
    "dumpable": ctypes.CDLL(None).prctl(3, 0, 0, 0, 0),
    "read": allowed(lambda: (read / "file").read_bytes()),
    "list": allowed(lambda: list(read.iterdir())),
    "write to read": allowed(lambda: (read / "new").write_bytes(b"")),
    "append to read": allowed(lambda: (read / "file").open("ab")),
    "truncate read": allowed(lambda: os.truncate(read / "file", 0)),
    "remove from read": allowed(lambda: (read / "gone").unlink()),
    "write": allowed(lambda: (write / "new").write_bytes(b"x")),
    "rename": allowed(lambda: (write / "new").rename(write / "newer")),
    "make a folder": allowed(lambda: (write / "folder").mkdir()),
    "remove": allowed(lambda: (write / "newer").unlink()),
    "read what is closed": allowed(lambda: (closed / "file").read_bytes()),
    "list what is closed": allowed(lambda: list(closed.iterdir())),
    "write to what is closed": allowed(lambda: (closed / "new").write_bytes(b"")),
    "children": os.system(f"cat {closed / 'file'} >/dev/null 2>&1"),
    "null": allowed(lambda: open("/dev/null", "w").write("x")),
    "import": bool(__import__("xml.dom.minidom")),
    "loops": __import__("ostraka.core.loops", fromlist=["loops"]).kind(),
}))
"""


@pytest.fixture
def probe(tmp_path):
    folders = [tmp_path / name for name in ("read", "write", "closed")]
    for folder in folders:
        folder.mkdir()
        (folder / "file").write_bytes(b"content")
        (folder / "gone").write_bytes(b"content")

    # Python looks for modules beside the program, and that place shall not be open for it.
    program = tmp_path / "closed" / "program.py"
    program.write_text(PROBE)

    def run(*, restrict):
        how = "restrict" if restrict else "-"
        done = subprocess.run(
            [sys.executable, str(program), how, *map(str, folders)],
            cwd=tmp_path / "closed",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def landlock():
    try:
        return hardening._syscall(444, None, 0, 1)
    except OSError as absent:
        return -(absent.errno or 0)


needs_landlock = pytest.mark.skipif(landlock() < 3, reason="this kernel has no Landlock (v3)")


def test_no_dumps_no_tracers_no_privileges(probe):
    found = probe(restrict=False)
    assert found["core"] == [0, 0]
    assert found["dumpable"] == 0
    assert found["no_new_privs"] == "1"
    assert found["read what is closed"]  # Nobody asked for more.
    assert not any("NOT AVAILABLE" in line for line in found["lines"])


def test_the_last_word_is_that_root_can_read_it(probe):
    assert probe(restrict=False)["lines"][-1] == ROOT_CAN_READ
    assert "root can still read" in ROOT_CAN_READ
    assert "no enclave" in " ".join((hardening.__doc__ or "").split())
    assert "Root" in (hardening.__doc__ or "")


@needs_landlock
def test_only_the_folders_that_were_named_are_open(probe, tmp_path):
    found = probe(restrict=True)
    assert found["read"]
    assert found["list"]
    assert found["write"]
    assert found["rename"]
    assert found["make a folder"]
    assert found["remove"]
    assert found["null"]
    assert found["import"]
    assert found["loops"] == loops.kind()  # The library in C is loaded from inside, too.
    for denied in (
        "write to read",
        "append to read",
        "truncate read",
        "remove from read",
        "read what is closed",
        "list what is closed",
        "write to what is closed",
    ):
        assert not found[denied], denied
    assert found["children"] != 0
    assert (tmp_path / "closed" / "file").read_bytes() == b"content"


class Kernel:
    """Writes down what it is asked for, and has this version of Landlock."""

    def __init__(self, version, refuse=None):
        self.version, self.refuse = version, refuse or {}
        self.handled, self.terms, self.restricted = 0, {}, False

    def __call__(self, number, *arguments):
        if number in self.refuse:
            raise OSError(self.refuse[number], "refused")
        match number, arguments:
            case 444, (None, 0, 1):
                return self.version
            case 444, (bytes() as handled, 8, 0):
                (self.handled,) = struct.unpack("=Q", handled)
                return os.open("/dev/null", os.O_RDONLY)
            case 445, (_, 1, rule, 0):
                rights, place = struct.unpack("=Qi", rule)
                folder = stat.S_ISDIR(os.fstat(place).st_mode)
                self.terms[str(Path(f"/proc/self/fd/{place}").readlink())] = (rights, folder)
                return 0
            case 446, (_, 0):
                self.restricted = True
                return 0
        raise AssertionError((number, arguments))


@pytest.mark.parametrize(("version", "rights"), [(1, 13), (2, 14), (3, 15), (4, 15), (7, 15)])
def test_every_right_that_the_kernel_knows_is_taken_away(tmp_path, version, rights):
    kernel = Kernel(version)
    restrict_files(read=[], write=[tmp_path], syscall=kernel)
    assert kernel.restricted
    assert kernel.handled == (1 << rights) - 1
    assert kernel.terms[str(tmp_path)] == ((1 << rights) - 1, True)


def test_what_is_for_reading_is_for_reading(tmp_path):
    kernel = Kernel(3)
    file = tmp_path / "federation.toml"
    file.touch()
    restrict_files(read=[tmp_path, file], write=[], syscall=kernel)
    assert kernel.terms[str(tmp_path)] == (0b1101, True)
    assert kernel.terms[str(file)] == (0b0101, False)  # A file has no list of files.
    assert kernel.terms["/usr"] == (0b1101, True)
    assert str(Path.cwd()) not in kernel.terms


@pytest.mark.parametrize("place", ["", str(Path.cwd())])
def test_the_folder_it_started_in_is_not_for_reading_wherever_it_stands(monkeypatch, place):
    kernel = Kernel(3)
    monkeypatch.setattr(sys, "path", ["/first", "/usr/lib", place, *sys.path])
    restrict_files(read=[], write=[], syscall=kernel)
    assert "/usr/lib" in kernel.terms
    assert str(Path.cwd()) not in kernel.terms


def test_nothing_is_restricted_in_part(tmp_path):
    kernel = Kernel(3)
    with pytest.raises(ConfigError, match="absent"):
        restrict_files(read=[], write=[tmp_path / "absent"], syscall=kernel)
    assert not kernel.restricted


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_kernel_without_landlock_is_said(tmp_path, monkeypatch, number):
    monkeypatch.setattr(hardening, "_syscall", Kernel(0, {444: number}))
    monkeypatch.setattr(hardening, "_prctl", lambda *_: None)
    monkeypatch.setattr(hardening, "_no_core_dumps", lambda: None)
    *_, files, root = harden(write=[tmp_path])
    assert files.startswith(f"NOT AVAILABLE HERE ({errno.errorcode[number]}): no files but")
    assert root == ROOT_CAN_READ


def test_a_system_without_prctl_is_said(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "no such option")

    monkeypatch.setattr(hardening, "_prctl", refuse)
    monkeypatch.setattr(hardening, "_no_core_dumps", lambda: None)
    lines = harden()
    assert [line.startswith("NOT AVAILABLE HERE (EINVAL)") for line in lines] == [
        False,
        True,
        True,
        False,
    ]
