import os
import stat

import pytest

from ostraka import files
from ostraka.errors import ConfigError, PlatformError


def test_what_is_created_is_read(tmp_path):
    path = tmp_path / "secret"
    files.create_private(path, "text\n")
    assert files.read_private(path) == "text\n"


def test_nobody_else_can_ever_read_it(tmp_path):
    path = tmp_path / "secret"
    before = os.umask(0)
    try:
        files.create_private(path, "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nothing_is_written_over(tmp_path):
    path = tmp_path / "secret"
    files.create_private(path, "first")
    with pytest.raises(ConfigError, match="never overwritten"):
        files.create_private(path, "second")
    assert path.read_text() == "first"


def test_a_link_is_not_followed_to_a_new_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError):
        files.create_private(tmp_path / "link", "text")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("mode", [0o640, 0o620, 0o604, 0o602, 0o610, 0o601, 0o666])
def test_a_file_that_others_may_use_is_refused(tmp_path, mode):
    path = tmp_path / "secret"
    files.create_private(path, "text")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        files.read_private(path)


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    files.create_private(path, "text")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        files.read_private(path)


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="ENOENT"):
        files.read_private(tmp_path / "absent")
    with pytest.raises(ConfigError):
        files.read_private(tmp_path)
    path = tmp_path / "bytes"
    files.create_private(path, "")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not text"):
        files.read_private(path)


def test_bytes_are_read_under_the_same_conditions(tmp_path):
    path = tmp_path / "key.pem"
    files.create_private(path, "")
    path.write_bytes(b"\xff\xfe")
    assert files.read_private_bytes(path) == b"\xff\xfe"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        files.read_private_bytes(path)


def test_a_fault_of_the_machine_is_no_mistake_of_its_user(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlatformError, match="ENOSPC"):
        files.create_private(tmp_path / "secret", "text")
