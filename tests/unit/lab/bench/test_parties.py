"""Where sealed tiles lie in a spool file."""

import pytest

from ostraka.config import Manifest, Terms
from ostraka.errors import LocalProtocolError
from ostraka_lab.bench.parties import Layout


@pytest.fixture
def layout():
    """Three rows in tiles of 4, 4 and 2 values."""
    terms = Terms(Manifest.flat(10), f=0, masking="none", tile=4)
    return Layout(terms, 3)


def write(layout, path):
    """Every row's part of a tile is filled with a byte of its own, the rows written in turn."""
    with path.open("wb") as file:
        for row in range(3):
            for index in range(3):
                file.seek(layout.offset(index, row))
                file.write(bytes([10 * index + row]) * layout.size(index))


def test_what_is_written_at_an_offset_is_read_in_its_place(layout, tmp_path):
    path = tmp_path / "spool"
    write(layout, path)
    assert path.stat().st_size == 3 * (10 * 4 + 3 * 16)
    for index, rows in enumerate(layout.read_rows(path)):
        assert [bytes(part) for part in rows] == [
            bytes([10 * index + row]) * layout.size(index) for row in range(3)
        ]
    assert index == 2


def test_a_file_that_ends_early_is_noticed(layout, tmp_path):
    path = tmp_path / "spool"
    write(layout, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LocalProtocolError, match="within tile 2"):
        list(layout.read_rows(path))
