"""A download goes on where it ended, and ends in the official file or in an error."""

import hashlib
import random

import pytest

from ostraka.errors import ServiceError, StorageFull
from ostraka_lab.data import sources as downloads
from ostraka_lab.data.catalogue import Remote
from ostraka_lab.data.sources import Silent, download

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
