import pytest

from ostraka.config import Tiling
from ostraka.crypto.aead import TAG_BYTES, SealedGroups

# 2^17 values make a group: eight rows of this tile, and two tiles and a rest.
TILE, LENGTH = 1 << 14, (2 << 14) + 100


@pytest.mark.parametrize("value_bytes", [4, 8])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 20])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_parts_lie_end_to_end(rows, value_bytes, index):
    layout = SealedGroups(Tiling(LENGTH, TILE), rows, value_bytes)
    groups = list(layout.groups())
    assert [row for group in groups for row in group] == list(range(rows))
    width, at = (TILE, TILE, 100)[index], 0
    for group in groups:
        part = layout.part(index, group)
        assert len(group) <= 8
        assert part.start == at
        at = part.stop
        assert at - part.start == len(group) * width * value_bytes + TAG_BYTES
    assert at == layout.size(index)


@pytest.mark.parametrize("fewer", range(1, 20))
def test_the_groups_of_a_smaller_cohort_begin_where_those_of_a_larger_do(fewer):
    columns = Tiling(LENGTH, TILE)
    small, large = (SealedGroups(columns, rows, 4) for rows in (fewer, 20))
    for ours, theirs in zip(small.groups(), large.groups(), strict=False):
        assert ours.start == theirs.start
        assert small.part(1, ours).start == large.part(1, theirs).start
