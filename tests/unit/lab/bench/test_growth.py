"""How the work of figure 2a and of our rounds grows with N: operations are counted, not timed."""

import warnings
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from ostraka.core import exact, field, gaussian, gram, loops
from ostraka.crypto.channel import Channel
from ostraka.crypto.updates import TileOpener
from ostraka.errors import LeakyMasking
from ostraka.protocol.enclave import encoders, measure
from ostraka.protocol.enclave.arrival import Arrival
from ostraka_lab.bench.machine import Stopwatch
from ostraka_lab.bench.paper_measurements import BASELINES
from ostraka_lab.bench.parties import (
    EXACT,
    GAUSSIAN,
    PAPER,
    SKETCH,
    SKETCH_INSIDE,
    Workload,
    terms_of,
)
from ostraka_lab.bench.whole_round import play, repeated

CLIENTS = (8, 16, 32)
D = 6000
M = 4096  # columns of the sketch below


class Counted(np.ndarray):
    """An array whose arithmetic is counted: one for each element that a loop over it visits."""

    tally: ClassVar[Counter[str]] = Counter()

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        plain = [np.asarray(each) for each in inputs]
        into = {"out": tuple(np.asarray(each) for each in out)} if out else {}
        result = getattr(ufunc, method)(*plain, **into, **options)
        inner = plain[0].shape[-1] if ufunc is np.matmul else 1
        Counted.tally["arithmetic"] += np.size(result) * inner
        return result


def counting(monkeypatch, owner, name, what, amount):
    """Count a function's calls, by an amount that its arguments say."""
    original = getattr(owner, name)

    def counted(*arguments, **options):
        Counted.tally[what] += amount(*arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)


def pairs(total, block):
    """The products that a Gram matrix of this block takes."""
    return len(block) ** 2 * block.shape[1]


@pytest.fixture
def tally(monkeypatch):
    """Counts what the enclave and the workers do, by kind."""
    Counted.tally.clear()
    counting(monkeypatch, TileOpener, "open_bytes", "opened", lambda _, i, sealed, out: len(sealed))
    counting(monkeypatch, Arrival, "_absorb", "read", lambda _, index, opened: len(opened) // 4)
    # (rows, scales, dither, masks, shares): the last has all shares of all these rows.
    counting(monkeypatch, loops, "share", "masked", lambda *given: given[4].size)
    counting(monkeypatch, gaussian, "encode", "masked", lambda scaled, noise: 2 * scaled.size)
    counting(
        monkeypatch, Channel, "seal_share", "sealed", lambda _, i, first, share, out: share.size
    )
    counting(monkeypatch, loops, "add_rows", "averaged", lambda rows, *_: sum(map(len, rows)))
    for owner, name in (
        (encoders, "add_gram"),
        (field, "add_gram"),
        (gaussian, "add_gram"),
        (measure, "add_gram"),
        (measure, "add_gram32"),
    ):
        counting(monkeypatch, owner, name, "pairs inside", pairs)
    counting(monkeypatch, gram._NumpySum, "add", "pairs of workers", pairs)
    counting(monkeypatch, exact, "decode", "decoded", lambda shared, leading: leading.size)
    return Counted.tally


@pytest.mark.parametrize("way", BASELINES)
def test_figure_2a_is_quadratic_and_its_opening_is_not(tally, monkeypatch, way):
    """The loop takes a difference and a product for every value of every pair."""
    for name in ("add_naive", "add_gram", "add_gram32"):
        add = getattr(gram, name)
        monkeypatch.setattr(
            gram, name, lambda total, block, add=add: add(total, block.view(Counted))
        )
    for n in CLIENTS:
        load = Workload(n, D)
        tally.clear()
        BASELINES[way](load, Stopwatch())
        each = {"naive": n * (n - 1) // 2 * 2 * D, "blas64": n * n * D, "blas32": n * n * D}
        assert tally["arithmetic"] == each[way]
        assert tally["opened"] == n * (4 * D + 16)


def counted(tally, name, n, dimension=D):
    """What a whole round takes."""
    warnings.simplefilter("ignore", LeakyMasking)
    terms = terms_of(name, n, dimension, composition=PAPER)
    terms = replace(terms, sketch=M if terms.sketch else None)
    tally.clear()
    play(terms, repeated(n, dimension), clients=n)
    return Counter(tally)


@pytest.mark.parametrize("name", [EXACT, SKETCH])
def test_the_enclave_s_work_with_workers_is_linear_but_for_one_matrix(tally, name):
    """Workers do the pairs. What is left to the enclave of them does not depend on d."""
    columns = D if name == EXACT else M
    for n in CLIENTS:
        found = counted(tally, name, n)
        assert found.pop("opened") == n * (4 * D + 16)
        assert found.pop("read") == found.pop("averaged") == n * D
        assert found.pop("masked") == found.pop("sealed") == 2 * n * columns
        assert found.pop("decoded") == n * n
        # Two have shares, and the third has the mask.
        assert found.pop("pairs of workers") == 3 * n * n * columns
        assert not found


def test_a_sketch_makes_pairs_cheap_with_workers_or_without(tally):
    for d in (D, 4 * D):
        found = counted(tally, SKETCH_INSIDE, 16, d)
        assert found["pairs inside"] == 16 * 16 * M
        assert found["pairs of workers"] == 0
        assert found["opened"] >= 16 * 4 * d


def test_the_paper_s_noise_is_quadratic_in_the_enclave(tally, monkeypatch):
    """Orthogonal noise takes a Gram matrix of normals and a product with its factor."""
    counting(monkeypatch, gaussian, "apply", "pairs inside", pairs)
    for n in CLIENTS:
        found = counted(tally, GAUSSIAN, n)
        assert found["pairs inside"] == 2 * n * n * D
        assert found["masked"] == 2 * n * D
