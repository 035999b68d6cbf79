import numpy as np
import pytest

from ostraka.config import DEFAULT_TILE, Manifest, Terms
from ostraka.errors import LocalProtocolError, OpenError
from ostraka.protocol.enclave.rows import spans

SKETCH = 4096


def terms_of(d: int, tile: int, sketch: int | None = SKETCH) -> Terms:
    return Terms(Manifest.flat(d), f=1, rule="multi-krum", pre=(), tile=tile, sketch=sketch)


def stored(terms: Terms, rows: int = 3) -> list[list[bytes]]:
    """Each tile is its number and its row, and a tag of its own."""
    return [
        [bytes([tile, row]) + bytes([100 + tile]) * 16 for row in range(rows)]
        for tile in range(terms.tiling.count)
    ]


@pytest.mark.parametrize("d", [5_000, DEFAULT_TILE, DEFAULT_TILE + 1, 200_000])
@pytest.mark.parametrize("tile", [4096, 5000, 16_384, DEFAULT_TILE, 2 * DEFAULT_TILE])
@pytest.mark.parametrize("sketch", [None, SKETCH])
def test_a_pass_reads_every_tile_once_and_in_order(d, tile, sketch):
    terms = terms_of(d, tile, sketch)
    tiles = stored(terms)
    read = list(spans(tiles, terms, 3))
    assert [tile for span in read for tile in span.tiles] == tiles
    assert [span.index for span in read] == list(range(terms.spans.count))
    numbers = [span.first + place for span in read for place in range(len(span.tiles))]
    assert numbers == list(range(terms.tiling.count))


def test_small_tiles_are_read_together_only_where_rows_are_folded():
    assert terms_of(200_000, 4096).spans.tile == DEFAULT_TILE
    assert terms_of(200_000, 5000).spans.tile == 65_000
    assert terms_of(200_000, 4096, sketch=None).spans.tile == 4096
    assert terms_of(400_000, 2 * DEFAULT_TILE).spans.tile == 2 * DEFAULT_TILE


def test_what_a_row_opens_lies_side_by_side():
    terms = terms_of(3 * 4096 + 10, 4096)
    (span,) = spans(stored(terms), terms, 3)
    asked = []

    def open_into(index, ciphertext, out):
        asked.append((index, ciphertext[:2], len(out)))
        out[:] = index

    out = np.empty(4 * terms.dimension, np.uint8)
    tags = span.open_row(2, open_into, out)
    sizes = [4 * terms.tiling.size(index) for index in range(4)]
    assert asked == [(index, bytes([index, 2]), size) for index, size in enumerate(sizes)]
    assert (out == np.repeat(np.arange(4), sizes)).all()
    assert tags == b"".join(bytes([100 + index]) * 16 for index in range(4))


def test_the_first_tile_that_does_not_open_ends_the_row():
    terms = terms_of(3 * 4096, 4096)
    (span,) = spans(stored(terms), terms, 3)

    def open_into(index, ciphertext, out):
        assert index < 2
        if index == 1:
            raise OpenError("tile")

    with pytest.raises(OpenError):
        span.open_row(0, open_into, np.empty(4 * terms.dimension, np.uint8))


@pytest.mark.parametrize("tile", [4096, DEFAULT_TILE])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tiles: [], "0 of"),
        (lambda tiles: tiles[:-1], "tiles were given"),
        (lambda tiles: [*tiles, tiles[-1]], "more than"),
        (lambda tiles: [*tiles[:-1], tiles[-1][1:]], "3 rows"),
        (lambda tiles: [[*tiles[0], b""], *tiles[1:]], "3 rows"),
    ],
)
def test_too_few_or_too_many_tiles_or_rows_are_refused(tile, change, told):
    terms = terms_of(2 * DEFAULT_TILE + 5000, tile)
    with pytest.raises(LocalProtocolError, match=told):
        list(spans(change(stored(terms)), terms, 3))


def test_half_a_span_is_not_begun():
    """What is missing would be taken for a client's lie."""
    terms = terms_of(DEFAULT_TILE + 5000, 4096)
    pass_ = spans(stored(terms)[:-1], terms, 3)
    assert next(pass_).index == 0
    with pytest.raises(LocalProtocolError):
        next(pass_)
