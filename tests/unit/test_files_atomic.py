import os
import stat

import pytest

from ostraka import files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def names(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_a_file_holds_all_pieces_and_belongs_to_its_owner(path):
    files.write(path, [b"one ", memoryview(b"two "), bytearray(b"three")])
    assert path.read_bytes() == b"one two three"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert names(path) == ["file"]


def test_the_mode_can_be_chosen(path):
    files.write(path, [b""], mode=0o644)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_write_that_takes_only_a_part_is_continued(path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:3])))
    files.write(path, [b"0123456789"])
    assert path.read_bytes() == b"0123456789"


@pytest.mark.parametrize("step", ["open", "write", "fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(path, monkeypatch, step):
    files.write(path, [b"old"])

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(OSError, match="No space left"):
            files.write(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert names(path) == ["file"]
    files.write(path, [b"new"])
    assert path.read_bytes() == b"new"


def test_a_failing_source_leaves_the_old_file(path):
    files.write(path, [b"old"])

    def pieces():
        yield b"half"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        files.write(path, pieces())
    assert path.read_bytes() == b"old"


def test_leftovers_are_removed_and_counted(path):
    for name in ("a.partial", "b.partial", "c"):
        path.with_name(name).write_bytes(b"")
    assert files.remove_partial(path.parent) == 2
    assert names(path) == ["c"]
    assert files.remove_partial(path.parent / "absent") == 0


def test_a_leftover_is_not_written_through(path):
    """A link in its place would else send what is written elsewhere."""
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(b"mine")
    path.with_name("file.partial").symlink_to(elsewhere)
    files.write(path, [b"new"])
    assert elsewhere.read_bytes() == b"mine"
    assert path.read_bytes() == b"new"


def test_a_folder_is_made_with_its_parents(tmp_path):
    folder = tmp_path / "one" / "two"
    files.make_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files.make_folder(folder)
