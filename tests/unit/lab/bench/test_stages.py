"""Every stage does what its row of the table says, on data that can be checked."""

import numpy as np
import pytest

from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.protocol.worker import Computing
from ostraka_lab.bench import kernels
from ostraka_lab.bench.clock import Stopwatch
from ostraka_lab.bench.kernels import STAGES
from ostraka_lab.bench.parties import cast, update
from ostraka_lab.bench.workload import Workload

CLIENTS, DIM = 6, 70_000


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    directory = tmp_path_factory.mktemp("spool")
    parties = cast(CLIENTS, DIM, masking="gaussian")
    (directory / "noise").write_bytes(b"".join(parties.offline().make()))
    return Workload(CLIENTS, DIM, directory)


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_takes_time(load, name):
    clock = Stopwatch()
    STAGES[name].run(load, clock)
    assert clock.seconds > 0


def test_tiles_open_to_the_updates(load):
    assert load.tiling.count > 1
    block = np.empty((CLIENTS, load.terms.tile), np.float32)
    for index in range(load.tiling.count):
        opened = load.open_tile(index, block)
        np.testing.assert_array_equal(opened, load.updates[:, load.tiling.part(index)])


@pytest.mark.parametrize(
    ("stage", "add", "tolerance"),
    [
        (kernels.inside_naive, "add_naive", 1e-4),
        (kernels.inside_blas32, "add_gram32", 1e-3),
        (kernels.inside_blas64, "add_gram", 1e-9),
    ],
)
def test_the_distances_inside_are_those_of_the_updates(load, monkeypatch, stage, add, tolerance):
    totals = []
    kernel = getattr(gram, add)

    def watched(total, block):
        totals.append(total)
        kernel(total, block)

    monkeypatch.setattr(gram, add, watched)
    stage(load, Stopwatch())
    assert len(totals) == load.tiling.count
    measured = totals[-1] if stage is kernels.inside_naive else gram.from_gram(totals[-1])
    expected = gram.naive(load.updates.astype(np.float64))
    np.testing.assert_allclose(measured, expected, rtol=tolerance)


@pytest.mark.parametrize("masking", ["exact", "gaussian"])
def test_the_first_pass_is_a_real_one_and_can_be_repeated(load, masking):
    exact = gram.naive(load.updates.astype(np.float64))
    expected = krum.multi_krum(exact, load.terms.f, CLIENTS - load.terms.f)
    for _ in range(2):
        attempt = load.attempt(masking)
        host = attempt.host(Stopwatch())
        published = host.finish(attempt.cohort, host.measure(attempt.cohort))
        assert published.selected == tuple(f"client-{row}" for row in expected)
        mean = load.updates[list(expected)].mean(axis=0)
        np.testing.assert_allclose(published.aggregate, mean, atol=1e-6)


@pytest.mark.parametrize("stage", [kernels.gaussian_online, kernels.exact_online])
def test_workers_are_not_on_the_clock(load, monkeypatch, stage):
    clock = Stopwatch()
    running = []
    monkeypatch.setattr(Stopwatch, "__enter__", lambda self: running.append(True))
    monkeypatch.setattr(Stopwatch, "__exit__", lambda self, *_: running.pop())
    add = Computing.add
    added = []

    def watched(self, share):
        added.append(bool(running))
        add(self, share)

    monkeypatch.setattr(Computing, "add", watched)
    stage(load, clock)
    assert added == [False] * (2 * load.tiling.count)


def test_gram_schmidt_is_extrapolated_where_it_would_take_too_long(load, monkeypatch):
    monkeypatch.setattr(kernels, "_MGS_WORK", 5_000 * CLIENTS**2)
    clock = Stopwatch()
    kernels.noise_mgs(load, clock)
    assert "5000 of 70000" in str(clock.note)


def test_updates_differ_between_clients():
    assert not np.array_equal(update(0, 100), update(1, 100))
