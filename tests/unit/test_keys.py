"""Key files: for their owner alone, never written over, and silent about what is in them."""

import os
import stat

import pytest

from ostraka.errors import ConfigError, OstrakaError
from ostraka.files import read_identity, write_identity


def test_an_identity_comes_back_as_it_was(tmp_path):
    written = write_identity(tmp_path / "a.key", "client-1")
    assert read_identity(tmp_path / "a.key").public == written.public


def test_every_identity_is_another(tmp_path):
    a, b = (write_identity(tmp_path / name, name).public for name in ("a", "b"))
    assert a != b


def test_the_file_is_for_its_owner_and_says_what_it_is(tmp_path):
    path = tmp_path / "client-1.key"
    identity = write_identity(path, "client-1")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second, _ = path.read_text().splitlines()
    assert first.startswith("# Ostraka: the private key of client-1.")
    assert second == f"# Its public key, which is not secret: {identity.public.hex()}"


def test_a_key_is_never_written_over(tmp_path):
    path = tmp_path / "a.key"
    before = write_identity(path, "a").public
    with pytest.raises(ConfigError, match="never overwritten"):
        write_identity(path, "a")
    assert read_identity(path).public == before


def test_a_key_that_is_missing_is_told_with_how_to_make_one(tmp_path):
    path = tmp_path / "a.key"
    with pytest.raises(ConfigError) as missing:
        read_identity(path)
    made = f"`ostraka client enrol --name NAME --out {path}` makes one"
    assert str(missing.value).startswith(f"there is no key file {path}: {made}")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused_with_what_to_do(tmp_path, mode):
    path = tmp_path / "a.key"
    write_identity(path, "a")
    path.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_identity(path)
    path.chmod(0o600)
    read_identity(path)


SECRET = "5ec2e75ec2e75ec2" * 4
NO_KEYS = {
    "nothing": b"",
    "only comments": b"# hello\n",
    "a bare seed": SECRET.encode(),
    "another label": b"ostraka-ed25519-key-v2 " + SECRET.encode(),
    "a short seed": b"ostraka-ed25519-key-v1 " + SECRET[:-2].encode(),
    "two seeds": b"\n".join([b"ostraka-ed25519-key-v1 " + SECRET.encode()] * 2),
    "no hex": b"ostraka-ed25519-key-v1 " + SECRET[:-2].encode() + b"xy",
    "no text": b"\xff\xfe" + SECRET.encode(),
}


@pytest.mark.parametrize("content", NO_KEYS.values(), ids=NO_KEYS.keys())
def test_what_is_no_key_file_is_refused_without_being_shown(tmp_path, content):
    path = tmp_path / "a.key"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(content)
    with pytest.raises(OstrakaError) as refused:
        read_identity(path)
    assert isinstance(refused.value, ConfigError)
    assert "5ec2e7" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_the_seed_is_drawn_from_the_entropy_that_is_given(tmp_path):
    drawn = write_identity(tmp_path / "a", "a", entropy=lambda size: bytes([7]) * size)
    assert drawn.public == write_identity(tmp_path / "b", "b", lambda size: b"\7" * size).public
    assert "07" * 32 not in repr(drawn)
