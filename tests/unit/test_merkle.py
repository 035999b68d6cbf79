import hashlib

from hypothesis import given
from hypothesis import strategies as st

from ostraka import merkle
from ostraka.merkle import is_under, path_to

LEAVES = st.lists(st.integers(0, 99), min_size=1, max_size=70, unique=True).map(
    lambda seeds: [hashlib.sha256(bytes([seed])).digest() for seed in seeds]
)


def found(leaves: list[bytes], wanted: bytes) -> tuple[bytes, ...]:
    """The path to a leaf that is in the tree."""
    path = path_to(leaves, wanted)
    assert path is not None
    return path


@given(LEAVES)
def test_every_leaf_has_a_path_and_nothing_else_has(leaves):
    root = merkle.root(leaves)
    for each in leaves:
        path = found(leaves, each)
        assert is_under(root, each, path)
        assert len(path) <= (len(leaves) - 1).bit_length()
    for place, each in enumerate(leaves):
        other = leaves[place - 1]
        assert is_under(root, other, found(leaves, each)) == (other == each)
    absent = hashlib.sha256(root).digest()
    assert path_to(leaves, absent) is None
    assert not any(is_under(root, absent, found(leaves, each)) for each in leaves)


@given(LEAVES, st.data())
def test_a_forged_path_leads_elsewhere(leaves, data):
    root = merkle.root(leaves)
    each = data.draw(st.sampled_from(leaves))
    path = found(leaves, each)
    if path:
        at = data.draw(st.integers(0, len(path) - 1))
        byte, bit = data.draw(st.integers(1, 32)), data.draw(st.integers(0, 7))
        changed = bytearray(path[at])
        changed[byte] ^= 1 << bit
        side = bytes([path[at][0] ^ 1]) + path[at][1:]
        for forged in (bytes(changed), side):
            assert not is_under(root, each, (*path[:at], forged, *path[at + 1 :]))
        assert not is_under(root, each, (*path[:at], *path[at + 1 :]))
        assert not is_under(root, each, path[::-1]) or path == path[::-1]
    assert not is_under(root, each, (*path, b"\1" + bytes(32)))
    assert not is_under(merkle.root(leaves[1:]), each, path) or len(leaves) == 1
    assert not is_under(bytes(32), each, path)


@given(LEAVES, st.data())
def test_the_root_binds_every_leaf_its_place_and_their_number(leaves, data):
    root = merkle.root(leaves)
    fresh = hashlib.sha256(b"".join(leaves)).digest()
    at = data.draw(st.integers(0, len(leaves) - 1))
    others = [
        [*leaves[:at], fresh, *leaves[at + 1 :]],
        [*leaves, fresh],
        [*leaves, leaves[-1]],  # where odd levels are filled up, this has the same root
        leaves[:-1],
    ]
    if len(leaves) > 1:
        others.append(leaves[::-1])
    for other in others:
        assert merkle.root(other) != root


def test_paths_of_odd_lengths_are_refused_and_do_not_raise():
    leaves = [bytes([i]) * 32 for i in range(5)]
    root, path = merkle.root(leaves), found(leaves, leaves[0])
    for forged in ((b"",), (path[0][:-1], *path[1:]), (path[0] + b"\0", *path[1:]), (b"x",) * 9):
        assert not is_under(root, leaves[0], forged)
    assert not is_under(root, leaves[0], path * 100), "nobody makes a client hash without end"


def test_nobody_is_under_the_root_of_nobody():
    assert path_to([], bytes(32)) is None
    assert not is_under(merkle.root([]), merkle.leaf(b"anybody"), ())


def test_a_leaf_is_no_node():
    """Each has a mark of its own, so that no item can pass for two leaves, nor two for one."""
    one, two = b"1" * 32, b"2" * 32
    assert merkle.leaf(b"content") == hashlib.sha256(b"\0" + b"content").digest()
    assert merkle.leaf(memoryview(b"content")) == merkle.leaf(b"content")
    assert merkle.root([one, two]) == hashlib.sha256(b"\1" + one + two).digest()
    assert merkle.root([one]) == one
