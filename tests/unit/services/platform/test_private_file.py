import os
import stat

import pytest

from ostraka.errors import PlatformError
from ostraka.services.platform import private_file


def test_what_is_created_is_read(tmp_path):
    path = tmp_path / "secret"
    private_file.create(path, "text\n")
    assert private_file.read(path) == "text\n"


def test_nobody_else_can_ever_read_it(tmp_path):
    path = tmp_path / "secret"
    before = os.umask(0)
    try:
        private_file.create(path, "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_written_over(tmp_path):
    path = tmp_path / "secret"
    private_file.create(path, "first")
    with pytest.raises(PlatformError, match="never written over"):
        private_file.create(path, "second")
    assert path.read_text() == "first"


def test_a_link_is_not_followed_to_a_new_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(PlatformError):
        private_file.create(tmp_path / "link", "text")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o610, 0o601, 0o666])
def test_a_file_that_others_may_use_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    private_file.create(path, "text")
    path.chmod(mode)
    with pytest.raises(PlatformError, match="chmod 600"):
        private_file.read(path)


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    private_file.create(path, "text")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(PlatformError, match="belongs to another user"):
        private_file.read(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(PlatformError, match="ENOENT"):
        private_file.read(tmp_path / "absent")
    with pytest.raises(PlatformError):
        private_file.read(tmp_path)
    path = tmp_path / "bytes"
    private_file.create(path, "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PlatformError, match="not text"):
        private_file.read(path)
