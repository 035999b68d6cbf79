"""Where sealed tiles lie in a spool file, and which terms are measured."""

import pytest

from ostraka.config import Manifest, Terms
from ostraka.errors import ConfigError, LocalProtocolError
from ostraka_lab.bench.parties import (
    DEFAULT,
    EXACT,
    PAPER,
    SKETCH,
    Layout,
    byzantine,
    sketch_size,
    terms_of,
)


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


def test_the_default_rule_is_measured_unless_another_is_named():
    assert str(terms_of(EXACT, 10, 50).composition) == "arc+nnm+geometric-median"
    assert str(terms_of(EXACT, 10, 50, composition=PAPER).composition) == "multi-krum"


@pytest.mark.parametrize(
    ("clients", "dimension", "default", "paper"),
    [
        (64, 10**6, 16_384, 16_384),
        (64, 10_000, None, 10_000),
        (64, 4095, None, None),
        (1024, 10**6, 16_384, 4096),
        (1025, 10**6, None, 4096),  # 16 Mi values are all that sketches may have
        (4097, 10**6, None, None),
    ],
)
def test_a_sketch_has_as_many_columns_as_the_rule_needs(clients, dimension, default, paper):
    assert sketch_size(clients, dimension) == default
    assert sketch_size(clients, dimension, PAPER) == paper
    for composition, columns in ((DEFAULT, default), (PAPER, paper)):
        if columns is not None:
            assert terms_of(SKETCH, clients, dimension, composition=composition).sketch == columns
            continue
        with pytest.raises(ConfigError, match="too short for a sketch, or too many"):
            terms_of(SKETCH, clients, dimension, composition=composition)


@pytest.mark.parametrize(("clients", "f"), [(2, 0), (4, 0), (5, 1), (64, 12)])
def test_a_fifth_is_byzantine_as_far_as_the_rule_allows(clients, f):
    assert byzantine(clients) == f
    assert byzantine(max(clients, 3), PAPER) == f
