"""Parts are found in folders and archives, and archives cannot do any harm."""

import io
import lzma
import shutil
import subprocess
import tarfile

import pytest

from ostraka.errors import ConfigError
from ostraka_lab.data import sources
from ostraka_lab.data.sources import gather

PARTS = {"a.bin": 100, "b.bin": 100}


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space").mkdir()
    return tmp_path / "space"


def contents(found):
    return {name: path.read_bytes() for name, path in found.items()}


def test_parts_are_found_in_a_folder_and_in_those_below(tmp_path, space):
    below = tmp_path / "given" / "cifar-10-batches-bin" / "raw"
    below.mkdir(parents=True)
    (tmp_path / "given" / "a.bin").write_bytes(b"top")
    (below / "a.bin").write_bytes(b"below")
    (below / "b.bin").write_bytes(b"b")
    (below / "c.bin").write_bytes(b"c")
    assert contents(gather(tmp_path / "given", PARTS, space)) == {"a.bin": b"top", "b.bin": b"b"}


def test_folders_far_below_are_not_searched(tmp_path, space):
    far = tmp_path / "given" / "1" / "2" / "3" / "4"
    far.mkdir(parents=True)
    (far / "a.bin").write_bytes(b"a")
    with pytest.raises(ConfigError, match=r"has none of these: a\.bin, b\.bin"):
        gather(tmp_path / "given", PARTS, space)


def test_a_part_by_itself_is_taken(tmp_path, space):
    (tmp_path / "a.bin").write_bytes(b"a")
    assert contents(gather(tmp_path / "a.bin", PARTS, space)) == {"a.bin": b"a"}


def test_a_file_that_is_too_large_is_no_part(tmp_path, space):
    (tmp_path / "a.bin").write_bytes(bytes(101))
    for given in (tmp_path, tmp_path / "a.bin"):
        with pytest.raises(ConfigError, match="has none"):
            gather(given, PARTS, space)


def test_what_is_not_there_is_said(tmp_path, space):
    with pytest.raises(ConfigError, match="does not exist"):
        gather(tmp_path / "nothing", PARTS, space)


@pytest.mark.parametrize("kind", ["gz", "xz", "tar"])
def test_parts_are_taken_out_of_an_archive(tmp_path, space, packed, kind):
    import gzip

    zipped = packed([("package/data/a.bin", b"a"), ("b.bin", b"b"), ("package/c.bin", b"c")])
    plain = gzip.decompress(zipped)
    archive = tmp_path / f"archive.{kind}"
    archive.write_bytes({"gz": zipped, "xz": lzma.compress(plain), "tar": plain}[kind])
    assert contents(gather(archive, PARTS, space)) == {"a.bin": b"a", "b.bin": b"b"}
    assert sorted(path.name for path in space.iterdir()) == ["a.bin", "b.bin"]


def special(name, kind, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


HARM = {
    "paths that lead out": [("../../outside", b"x"), ("/outside", b"x"), ("../a.bin", b"good")],
    "a link with a part's name": [
        (special("a.bin", tarfile.SYMTYPE, "../outside"), b""),
        ("x/a.bin", b"good"),
    ],
    "a hard link with a part's name": [
        (special("a.bin", tarfile.LNKTYPE, "/etc/passwd"), b""),
        ("a.bin", b"good"),
    ],
    "a device with a part's name": [
        (special("a.bin", tarfile.CHRTYPE), b""),
        ("a.bin", b"good"),
    ],
    "a folder with a part's name": [(special("a.bin", tarfile.DIRTYPE), b""), ("a.bin", b"good")],
    "a part that is too large": [("a.bin", bytes(101)), ("a.bin", b"good")],
    "the same part twice": [("a.bin", b"good"), ("a.bin", b"bad")],
}


@pytest.mark.parametrize("members", HARM.values(), ids=HARM.keys())
def test_only_regular_files_of_the_right_name_come_out(tmp_path, space, packed, members):
    archive = tmp_path / "archive.tgz"
    archive.write_bytes(packed(members))
    assert contents(gather(archive, PARTS, space)) == {"a.bin": b"good"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive.tgz", "space"]
    assert [path.name for path in space.iterdir()] == ["a.bin"]


def test_an_archive_that_unpacks_to_far_too_much_is_refused(tmp_path, space, packed, monkeypatch):
    monkeypatch.setattr(sources, "_MOST_UNPACKED", 1_000_000)
    archive = tmp_path / "bomb.tgz"
    archive.write_bytes(packed([("filler", bytes(5_000_000)), ("a.bin", b"a")]))
    assert archive.stat().st_size < 10_000
    with pytest.raises(ConfigError, match="far too large"):
        gather(archive, PARTS, space)


@pytest.mark.parametrize("damage", ["cut", "flipped", "none", "text"])
def test_a_damaged_archive_is_refused(tmp_path, space, packed, damage):
    whole = packed([("filler", bytes(range(256)) * 300), ("b.bin", b"b")])
    middle = len(whole) // 2
    archive = tmp_path / "archive.tgz"
    archive.write_bytes(
        {
            "cut": whole[:middle],
            "flipped": whole[:middle] + b"\xff\xff" + whole[middle + 2 :],
            "none": b"",
            "text": b"<html>Not found</html>" * 100,
        }[damage]
    )
    with pytest.raises(ConfigError, match=r"cannot be unpacked|has none"):
        gather(archive, PARTS, space)


def test_a_debian_package_is_unpacked_by_debians_tool(tmp_path, space):
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not installed")
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: small\n"
    )
    (tree / "usr" / "share").mkdir(parents=True)
    (tree / "usr" / "share" / "a.bin").write_bytes(b"a")
    package = tmp_path / "small_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", tree, package], check=True, capture_output=True)
    assert contents(gather(package, PARTS, space)) == {"a.bin": b"a"}
    package.write_bytes(package.read_bytes()[:150])
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        gather(package, PARTS, space)


def test_without_debians_tool_that_is_said(tmp_path, space, no_clients):
    (tmp_path / "small.deb").write_bytes(b"")
    with pytest.raises(ConfigError, match="dpkg-deb"):
        gather(tmp_path / "small.deb", PARTS, space)


def test_a_tar_file_with_a_header_that_claims_terabytes(tmp_path, space):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("a.bin")
        member.size = 1 << 42
        tar.addfile(member)
    (tmp_path / "archive.tar").write_bytes(packed.getvalue())
    with pytest.raises(ConfigError):
        gather(tmp_path / "archive.tar", PARTS, space)
