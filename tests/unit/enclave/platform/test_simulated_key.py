import pytest

from ostraka.enclave.platform.simulated import UnsafeDevelopmentKey
from ostraka.errors import ConfigError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "UNSAFE-development.key"


def test_a_key_stays_the_same(path):
    key = UnsafeDevelopmentKey.create(path).key()
    assert len(key) == 32
    assert UnsafeDevelopmentKey(path).key() == key


def test_two_files_are_two_keys(path, tmp_path):
    other = UnsafeDevelopmentKey.create(tmp_path / "other")
    assert UnsafeDevelopmentKey.create(path).key() != other.key()


def test_the_file_says_what_it_is(path):
    UnsafeDevelopmentKey.create(path)
    first, second = path.read_text().splitlines()
    assert first.startswith("UNSAFE")
    assert "development" in first
    assert len(bytes.fromhex(second)) == 32
    assert "UNSAFE" in UnsafeDevelopmentKey.name


def test_a_key_is_never_written_over(path):
    key = UnsafeDevelopmentKey.create(path).key()
    with pytest.raises(ConfigError, match="EEXIST"):
        UnsafeDevelopmentKey.create(path)
    assert UnsafeDevelopmentKey(path).key() == key


def test_none_is_made_by_itself(path):
    with pytest.raises(ConfigError, match="ENOENT"):
        UnsafeDevelopmentKey(path).key()
    assert not path.exists()


def test_a_file_that_others_can_read_is_refused(path):
    key = UnsafeDevelopmentKey.create(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        key.key()


CHANGES = {
    "no warning": lambda first, second: second,
    "another warning": lambda first, second: f"{first}!\n{second}",
    "a safe-looking warning": lambda first, second: f"{first.replace('UNSAFE', 'SAFE')}\n{second}",
    "nothing": lambda first, second: "",
    "a warning only": lambda first, second: first,
    "a short key": lambda first, second: f"{first}\n{second[2:]}",
    "a long key": lambda first, second: f"{first}\n{second}00",
    "a key with spaces": lambda first, second: f"{first}\n{second[:2]} {second[2:]}",
    "another line": lambda first, second: f"{first}\n{second}\n{second}",
}


@pytest.mark.parametrize("what", CHANGES)
def test_any_other_file_is_refused_and_not_shown(path, what):
    key = UnsafeDevelopmentKey.create(path)
    first, second = path.read_text().splitlines()
    path.write_text(CHANGES[what](first, second))
    with pytest.raises(ConfigError, match="no key file for development") as caught:
        key.key()
    assert second[2:] not in str(caught.value)


def test_the_key_does_not_print(path):
    key = UnsafeDevelopmentKey.create(path)
    assert repr(key) == f"UnsafeDevelopmentKey({str(path)!r}, <secret>)"
