"""Workers that lie are caught and named, those that fail are replaced, and the round goes on."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from ostraka import events
from ostraka.config import Manifest, Terms
from ostraka.core import field
from ostraka.core.gram import NumpyKernel, Sum, Values
from ostraka.errors import WorkerGone
from ostraka.protocol.enclave import Threads
from ostraka.protocol.round import Parties, enrol, play

pytestmark = pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")


class Liar:
    """A kernel that adds `lie` to one entry of its first matrix."""

    def __init__(self, row: int, column: int, lie: float) -> None:
        self.place = (min(row, column), max(row, column))
        self.lie = lie

    def begin(self, rows: int, values: Values) -> Sum:
        lie, self.lie = self.lie, 0
        return LyingSum(NumpyKernel().begin(rows, values), values, self.place, lie)


class LyingSum(NamedTuple):
    running: Sum
    values: Values
    place: tuple[int, int]
    lie: float

    def add(self, block: np.ndarray) -> None:
        self.running.add(block)

    def total(self) -> np.ndarray:
        total = self.running.total()
        if self.values == "residues":
            total[self.place] = (int(total[self.place]) + int(self.lie)) % field.P
        else:
            total[self.place] += self.lie
            total[self.place[::-1]] = total[self.place]
        return total


class Idle:
    """A worker that is gone."""

    def __init__(self, name: str) -> None:
        self.name = name

    def accept(self, offer: Any) -> Any:
        raise WorkerGone(self.name, "does not answer")


def federation(
    *, n: int = 8, d: int = 40, spares: int = 0, seed: int = 0, **terms: Any
) -> tuple[Parties, np.ndarray]:
    rows = np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)
    agreed = Terms(Manifest.flat(d), f=1, tile=16, **terms)
    return enrol(agreed, clients=n, spares=spares), rows


def staff(parties: Parties) -> dict[str, Any]:
    """The workers, as a test may change them."""
    return parties.federation.workers


def kinds(result: Any) -> list[type]:
    return [type(event) for event in result.events]


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 7])
def test_every_worker_is_caught_at_the_smallest_lie(workers):
    for number in range(1, workers + 1):
        parties, rows = federation(workers=workers)
        honest = play(parties, rows, Threads()).selected
        liar = f"worker-{number}"
        staff(parties)[liar]._kernel = Liar(2, 5, 1)
        result = play(parties, rows, Threads())
        assert events.WorkerLied(liar) in result.events
        assert kinds(result).count(events.WorkerLied) == 1
        assert result.receipt.distances == "inside"
        assert result.selected == honest


@pytest.mark.slow
def test_smallest_lies_are_never_missed(scale):
    """A random entry, the diagonal included, of a random worker, up or down by one."""
    rng = np.random.default_rng(0)
    parties = {workers: federation(n=5, d=16, workers=workers) for workers in (2, 3, 4)}
    for _ in range(scale(150, 10_000)):
        cast, rows = parties[int(rng.choice([2, 3, 4]))]
        liar = str(rng.choice(list(staff(cast))))
        row, column = rng.integers(5, size=2)
        staff(cast)[liar]._kernel = Liar(row, column, rng.choice([-1, 1]))
        named = [
            e.worker for e in play(cast, rows, Threads()).events if type(e) is events.WorkerLied
        ]
        assert named == [liar]


@pytest.mark.parametrize("terms", [{}, {"sketch": 4096, "rule": "multi-krum", "pre": ()}])
@pytest.mark.parametrize("masking", ["exact", "gaussian"])
def test_a_spare_takes_the_place_of_a_liar(masking, terms):
    parties, rows = federation(d=5_000, spares=1, masking=masking, **terms)
    staff(parties)["worker-1"]._kernel = Liar(0, 1, 1e6)
    result = play(parties, rows, Threads(2))
    assert events.WorkerLied("worker-1") in result.events
    assert events.AttemptStarted(8, ("worker-2", "worker-3")) in result.events
    assert result.receipt.distances == "workers"


def test_two_liars_are_both_named():
    parties, rows = federation(workers=4)
    staff(parties)["worker-1"]._kernel = Liar(0, 1, 1)
    staff(parties)["worker-4"]._kernel = Liar(3, 3, 7)
    result = play(parties, rows, Threads())
    assert {event.worker for event in result.events if type(event) is events.WorkerLied} == {
        "worker-1",
        "worker-4",
    }


def test_lies_that_cancel_in_the_decoded_matrix_do_no_harm():
    """Two workers that add and take away the same change nothing, so there is nothing to catch."""
    parties, rows = federation()
    honest = play(parties, rows, Threads()).selected
    staff(parties)["worker-1"]._kernel = Liar(0, 1, 5)
    staff(parties)["worker-2"]._kernel = Liar(0, 1, -5)
    result = play(parties, rows, Threads())
    assert result.selected == honest
    assert result.receipt.distances == "workers"


def test_without_verification_a_lie_passes():
    """So that it is verification that catches it."""
    parties, rows = federation(verify=False)
    staff(parties)["worker-1"]._kernel = Liar(0, 1, 1)
    assert events.WorkerLied not in kinds(play(parties, rows, Threads()))


def test_gaussian_masking_lets_lies_of_rounding_size_pass():
    parties, rows = federation(masking="gaussian")
    staff(parties)["worker-1"]._kernel = Liar(0, 1, 1e-9)
    assert events.WorkerLied not in kinds(play(parties, rows, Threads()))


def test_who_only_rounds_is_not_named_beside_a_liar():
    parties, rows = federation(d=5_000, masking="gaussian", spares=1)
    staff(parties)["worker-1"]._kernel = Liar(0, 1, 1e6)
    staff(parties)["worker-2"]._kernel = Liar(0, 1, 1e-9)
    said = play(parties, rows, Threads()).events
    assert [event.worker for event in said if type(event) is events.WorkerLied] == ["worker-1"]


def test_a_worker_that_is_gone_is_no_liar():
    parties, rows = federation(spares=1)
    staff(parties)["worker-2"] = Idle("worker-2")
    result = play(parties, rows, Threads())
    assert events.WorkerLied not in kinds(result)
    assert events.WorkerFailed("worker-2", "worker 'worker-2' does not answer") in result.events
    assert events.AttemptStarted(8, ("worker-1", "worker-3")) in result.events


def test_every_attempt_has_fresh_masks():
    parties, rows = federation(spares=1)
    shares: list[bytes] = []
    worker = staff(parties)["worker-1"]
    accept = worker.accept

    def recording(offer: Any) -> Any:
        computing, accepted = accept(offer)
        add = computing.add

        def record(tile: Any) -> None:
            add(tile)
            shares.append(computing._block.tobytes())

        computing.add = record
        return computing, accepted

    worker.accept = recording
    staff(parties)["worker-2"]._kernel = Liar(0, 1, 1)
    play(parties, rows, Threads())
    half = len(shares) // 2
    assert half == parties.federation.terms.tiling.count
    assert not set(shares[:half]) & set(shares[half:])
