import pytest

from ostraka.enclave.storage.sealed_file import SealedFile
from ostraka.errors import StateError


@pytest.fixture
def file(life, tmp_path):
    return SealedFile(tmp_path / "identity.sealed", life.sealer())


def test_reading_undoes_writing(file):
    assert not file.exists()
    file.write(b"secret")
    file.write(b"another")
    assert file.exists()
    assert file.read() == b"another"
    assert b"another" not in file.path.read_bytes()


def test_a_removed_file_is_missing(file):
    file.write(b"secret")
    file.discard()
    file.discard()
    with pytest.raises(StateError, match=r"identity\.sealed: is missing: bring back"):
        file.read()


def test_a_file_that_cannot_be_deleted_is_in_nobody_s_way(file, monkeypatch):
    file.write(b"secret")

    def denied(*_, **__):
        raise PermissionError

    monkeypatch.setattr("os.unlink", denied)
    file.discard()
    assert file.read() == b"secret"


def test_a_file_under_another_name_does_not_open(file):
    file.write(b"secret")
    other = SealedFile(file.path.rename(file.path.with_name("migration.sealed")), file.sealer)
    with pytest.raises(StateError, match=r"migration\.sealed: does not open"):
        other.read()


def test_a_file_of_another_enclave_does_not_open(file, life):
    file.write(b"secret")
    with pytest.raises(StateError, match="does not open"):
        SealedFile(file.path, life.sealer("another")).read()


def test_nothing_secret_prints(file, life):
    assert "kkkk" not in repr(file)
    assert "<secret>" in repr(file)
