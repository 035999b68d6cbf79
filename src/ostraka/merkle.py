"""A binary tree of hashes: its root names a list, and a path proves what is in it.

    leaf = SHA-256(0 ‖ content),  node = SHA-256(1 ‖ left ‖ right)

Leaves and nodes are marked, so that neither passes for the other. A node without a neighbour moves
up as it is: no list has the root of a longer one.
"""

import hashlib
from collections.abc import Sequence
from functools import lru_cache

HASH_BYTES = 32

_LEAF, _NODE = b"\0", b"\1"
_LEFT, _RIGHT = b"\0", b"\1"
_LONGEST_PATH = 64


def leaf(content: bytes | memoryview) -> bytes:
    """Returns the hash of one item. content: its bytes, which are not copied."""
    hashed = hashlib.sha256(_LEAF)
    hashed.update(content)
    return hashed.digest()


def root(leaves: Sequence[bytes]) -> bytes:
    """Returns the root over these leaves, in order; zeros if there are none."""
    level = tuple(leaves) or (bytes(HASH_BYTES),)
    while len(level) > 1:
        level = _above(level)
    return level[0]


def path_to(leaves: Sequence[bytes], wanted: bytes) -> tuple[bytes, ...] | None:
    """Returns what proves that a leaf is under the root: its neighbours, each behind its side."""
    levels, places = _tree(tuple(leaves))
    if wanted not in places:
        return None
    place, path = places[wanted], []
    for level in levels[:-1]:
        beside = place ^ 1
        if beside < len(level):
            path.append((_LEFT if beside < place else _RIGHT) + level[beside])
        place //= 2
    return tuple(path)


def is_under(root: bytes, leaf: bytes, path: Sequence[bytes]) -> bool:
    """Tells whether this path leads from the leaf to the root."""
    if len(path) > _LONGEST_PATH or any(len(each) != 1 + HASH_BYTES for each in path):
        return False
    for each in path:
        side, beside = each[:1], each[1:]
        leaf = _join(beside, leaf) if side == _LEFT else _join(leaf, beside)
    return leaf == root


@lru_cache(maxsize=2)  # Every client asks for a path in the same tree.
def _tree(leaves: tuple[bytes, ...]) -> tuple[list[tuple[bytes, ...]], dict[bytes, int]]:
    """Returns all levels of the tree, from the leaves to the root, and where each leaf is first."""
    levels = [leaves]
    while len(levels[-1]) > 1:
        levels.append(_above(levels[-1]))
    last = len(leaves) - 1
    return levels, {leaf: last - at for at, leaf in enumerate(reversed(leaves))}


def _above(level: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Returns one level up."""
    pairs = [_join(*level[at : at + 2]) for at in range(0, len(level) - 1, 2)]
    return (*pairs, *level[len(pairs) * 2 :])


def _join(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
