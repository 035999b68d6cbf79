"""Where sealed tiles lie in a spool file, and which terms are measured."""

import pytest

from ostraka.config import Manifest, Terms
from ostraka.errors import ConfigError
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


def test_parts_of_tiles_lie_side_by_side_and_nothing_between_them():
    """Three rows in tiles of 4, 4 and 2 values, and a tag behind each."""
    layout = Layout(Terms(Manifest.flat(10), f=0, masking="none", tile=4), 3)
    parts = [(index, row) for index in range(3) for row in range(3)]
    assert [layout.size(index) for index in range(3)] == [32, 32, 24]
    ends = [layout.offset(*part) + layout.size(part[0]) for part in parts]
    assert [layout.offset(*part) for part in parts] == [0, *ends[:-1]]


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
