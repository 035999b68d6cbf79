"""Partitions: every example has exactly one owner, and every client has an example."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostraka.errors import ConfigError
from ostraka_lab.data.partition import KINDS, Partition, holdings, parse, split

TEXTS = [
    "iid",
    "dirichlet:0.1",
    "dirichlet:100",
    "shards:1",
    "shards:3",
    "quantity:0",
    "quantity:3",
]
LABELS = np.repeat(np.arange(10), 120)


@given(
    st.sampled_from(TEXTS),
    st.integers(1, 20),
    st.lists(st.integers(0, 4), min_size=60, max_size=90),
    st.integers(0, 2**40),
)
def test_everything_is_used_once_and_nobody_has_nothing(text, clients, labels, seed):
    parts = split(np.array(labels), clients, parse(text), seed)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all(part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize("text", TEXTS)
def test_the_seed_decides(text):
    def once(seed):
        return [part.tolist() for part in split(LABELS, 12, parse(text), seed)]

    assert once(7) == once(7)
    assert once(7) != once(8)


@pytest.mark.parametrize("text", ["iid", "dirichlet:0.01", "quantity:9"])
def test_as_many_clients_as_examples_have_one_each(text):
    parts = split(np.arange(10) % 3, 10, parse(text), 1)
    assert [len(part) for part in parts] == [1] * 10


def test_iid_parts_are_of_one_size():
    sizes = [len(part) for part in split(LABELS, 7, parse("iid"), 3)]
    assert max(sizes) - min(sizes) <= 1


def test_a_smaller_alpha_leaves_clients_fewer_classes():
    def classes(alpha):
        parts = split(LABELS, 10, Partition("dirichlet", alpha), 5)
        return np.count_nonzero(holdings(LABELS, parts, 10), axis=1).mean()

    assert classes(0.05) < 4
    assert classes(10) > 8


def test_a_large_alpha_gives_everybody_the_same_of_each_class():
    parts = split(LABELS, 10, Partition("dirichlet", 1e7), 5)
    assert np.ptp(holdings(LABELS, parts, 10)) <= 2


@pytest.mark.parametrize("alpha", [1e-300, 1e-8, 1e12])
def test_an_extreme_alpha_still_splits(alpha):
    parts = split(LABELS, 20, Partition("dirichlet", alpha), 0)
    assert sum(map(len, parts)) == len(LABELS)


@pytest.mark.parametrize("each", [1, 2, 3])
def test_shards_are_of_few_classes(each):
    counts = holdings(LABELS, split(LABELS, 20, Partition("shards", each), 1), 10)
    # A shard is no longer than a class has examples, so it meets at most two.
    assert np.count_nonzero(counts, axis=1).max() <= 2 * each
    assert np.ptp(counts.sum(axis=1)) <= each


def test_two_shards_that_divide_the_classes_are_of_two_classes():
    counts = holdings(LABELS, split(LABELS, 10, parse("shards:2"), 1), 10)
    assert np.count_nonzero(counts, axis=1).max() <= 2


@pytest.mark.parametrize("skew", [0, 0.5, 1, 2])
def test_sizes_fall_as_a_power_of_their_rank(skew):
    sizes = sorted(len(part) for part in split(LABELS, 5, Partition("quantity", skew), 2))[::-1]
    expected = np.arange(1, 6.0) ** -skew
    np.testing.assert_allclose(sizes, expected / expected.sum() * len(LABELS), atol=1.01)


def test_it_is_drawn_which_client_has_the_largest_part():
    largest = {
        int(np.argmax([len(part) for part in split(LABELS, 5, parse("quantity:2"), seed)]))
        for seed in range(40)
    }
    assert largest == set(range(5))


def test_holdings_count_classes_per_client():
    labels = np.array([0, 1, 1, 2])
    counts = holdings(labels, [np.array([0, 1]), np.array([2, 3])], 4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]
    assert counts.dtype == np.int64


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_is_read(kind):
    assert parse(str(Partition(kind))) == Partition(kind)


def test_defaults():
    assert [str(Partition(kind)) for kind in KINDS] == [
        "iid",
        "dirichlet:0.5",
        "shards:2",
        "quantity:1",
    ]


MISTAKES = {
    "dirichet:0.5": "did you mean dirichlet",
    "iid:3": "takes no number",
    "dirichlet:0": "above zero",
    "dirichlet:-1": "above zero",
    "dirichlet:nan": "above zero",
    "dirichlet:inf": "above zero",
    "dirichlet:": "a number must follow",
    "dirichlet:few": "a number must follow",
    "shards:0": "shards per client",
    "shards:1.5": "shards per client",
    "quantity:-0.1": "zero or more",
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.items(), ids=MISTAKES.keys())
def test_mistakes_are_explained(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


IMPOSSIBLE = {
    "more clients than examples": (13, "iid", 0, "12 examples cannot be split among 13"),
    "no clients": (0, "iid", 0, "among 0 clients"),
    "more shards than examples": (5, "shards:3", 0, "5 x 3 shards"),
    "a negative seed": (2, "iid", -1, "at least 0"),
}


@pytest.mark.parametrize(
    ("clients", "text", "seed", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys()
)
def test_what_cannot_be_split_is_refused(clients, text, seed, message):
    with pytest.raises(ConfigError, match=message):
        split(np.arange(12) % 3, clients, parse(text), seed)
