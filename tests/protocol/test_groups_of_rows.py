"""Rows are masked in groups. A cohort may end within one, and the last worker may hold a seed."""

from dataclasses import replace

import numpy as np
import pytest

from ostraka.core import exact, field
from ostraka.errors import MalformedMessage, OpenError, Rejection, UpdateRejected, WorkerLied

# A tile this wide makes groups of two rows, however short the update is.
WIDE = 1 << 16
N = 9


def simulation(simulate, **options):
    rows = simulate.updates(N, 60, seed=275)  # Any part of them is clearly apart.
    return simulate(rows=rows, f=1, tile=WIDE, **options)


@pytest.mark.parametrize("gone", [[], [8], [0], [7, 8], [0, 3], [1, 4, 6], [0, 2, 5, 8]])
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 7])
def test_whoever_is_there_is_measured(simulate, workers, gone):
    round_ = simulation(simulate, masking="exact", workers=workers, threads=2).open()
    assert round_.terms.tiling.group == 2
    round_.send_all(but=gone)
    round_.assert_result(round_.finish(), {}, absent=gone)


@pytest.mark.parametrize("workers", [3, 5, 7])
def test_groups_may_fill_all_the_memory_that_is_theirs(simulate, monkeypatch, workers):
    monkeypatch.setattr(exact, "_GROUP_VALUES", 2 * 64)
    rows = simulate.updates(N, 128, seed=275)
    round_ = simulate(rows=rows, f=1, tile=64, masking="exact", workers=workers).open()
    assert round_.terms.tiling.group == 2
    round_.send_all()
    round_.assert_result(round_.finish(), {})


@pytest.mark.parametrize("gone", [[], [8], [1, 4, 6]])
@pytest.mark.parametrize("threads", [1, 3])
def test_noise_serves_a_cohort_that_ends_within_a_group(simulate, gone, threads):
    round_ = simulation(simulate, masking="gaussian", threads=threads).open()
    round_.send_all(but=gone)
    round_.assert_result(round_.finish(), {}, absent=gone)


def offloaded(round_):
    attempt = round_.offload()
    attempt.connect(attempt.accepts())
    return attempt


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("workers", "liar"), [(2, 0), (2, 1), (3, 0), (3, 2), (5, 3), (5, 4)])
def test_a_liar_is_named_where_rows_were_zeroed_on_the_way(simulate, workers, liar, threads):
    """The shares that the audit derives again are those that were sent: zeros for who is out."""
    rows = np.random.default_rng(3).normal(size=(N, 60)).astype(np.float32)
    round_ = simulate(
        rows=rows, f=2, tile=16, masking="exact", workers=workers, threads=threads, budget=0
    ).open()
    norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    for row, place, value in ((2, 20, 50), (5, 40, np.nan)):
        bad = rows[row].copy()
        bad[place] = value
        round_.send(round_.forge(row, bad, norm=float(norms[row])))
    round_.send_all(but=[2, 5])
    round_.close()
    round_.spool[round_.upload(7), 1] = b""
    with pytest.raises(UpdateRejected, match="client-7"):
        offloaded(round_).encode()
    attempt = offloaded(round_)
    attempt.encode()
    answers = attempt.answers()
    told = attempt.told(liar)
    told[3] ^= 1
    answers[liar] = attempt.lie(liar, told)
    with pytest.raises(WorkerLied) as caught:
        attempt.decode(answers)
    assert caught.value.workers == (f"worker-{liar + 1}",)
    round_.measure()
    assert round_.average().rejected == {
        "client-2": Rejection.FALSE_NORM,
        "client-5": Rejection.NOT_FINITE,
        "client-7": Rejection.CHANGED,
    }


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 7])
def test_every_mask_and_the_dither_are_streams_of_their_own(simulate, workers):
    """A worker that holds a seed must not know the dither by it, nor any other mask."""
    round_ = simulation(simulate, masking="exact", workers=workers, threads=2).open()
    round_.send_all()
    round_.close()
    attempts = []
    for _ in range(2):
        attempt = offloaded(round_)
        attempt.encode()
        first, second = attempt.masking._encoder._scratch
        keystreams = []
        for stream in (*first._masks, first._dither, *second._masks, second._dither):
            stream.seek(7)
            keystreams.append(stream.bytes(32))
        half = workers // 2 + 1
        assert keystreams[:half] == keystreams[half:], (
            "what a thread draws depends on its rows only"
        )
        attempts += keystreams[:half]
    assert len(set(attempts)) == len(attempts)


def test_no_mask_and_no_dither_serves_two_tiles_or_two_rows(simulate):
    """All rows and tiles are the same, so whatever differs in the shares is mask and dither."""
    tile = 1 << 14  # in groups of eight rows
    round_ = simulate(rows=np.ones((12, 3 * tile), np.float32), tile=tile, masking="exact").open()
    round_.send_all()
    round_.close()
    attempt = offloaded(round_)
    masks, dithers = set(), set()
    for shares in attempt.shares():
        for computing, share in zip(attempt.computing, shares, strict=True):
            computing.add(share)
        plus, minus = (computing._block.astype(np.int64) for computing in attempt.computing)
        half = (field.P + 1) // 2
        masks |= {row.tobytes() for row in (plus - minus) * half % field.P}
        dithers |= {row.tobytes() for row in (plus + minus) * half % field.P}
    assert len(masks) == len(dithers) == 3 * 12


@pytest.fixture
def seeded(simulate):
    round_ = simulation(simulate, masking="exact", workers=3).open()
    round_.send_all(but=[4])
    round_.close()
    return offloaded(round_)


BAD_SEEDS = {
    "for another attempt": lambda seed: replace(seed, attempt_id=bytes(32)),
    "altered": lambda seed: replace(seed, ciphertext=bytes(16) + seed.ciphertext[16:]),
    "truncated": lambda seed: replace(seed, ciphertext=seed.ciphertext[:-1]),
    "empty": lambda seed: replace(seed, ciphertext=b""),
}


@pytest.mark.parametrize("what", BAD_SEEDS)
def test_a_bad_seed_is_refused_and_leaves_no_trace(seeded, what):
    with pytest.raises(OpenError):
        seeded.computing[-1].add_seed(BAD_SEEDS[what](seeded.seed))
    seeded.encode()
    round_ = seeded.round
    round_.measured = seeded.decode(seeded.answers())
    round_.assert_result(round_.average(), {}, absent=[4])


def test_a_seed_serves_once_and_only_the_worker_that_it_is_for(seeded):
    first, *_, last = seeded.computing
    with pytest.raises(OpenError):
        first.add_seed(seeded.seed)
    last.add_seed(seeded.seed)
    with pytest.raises(OpenError):
        last.add_seed(seeded.seed)
    for shares in seeded.shares():
        assert len(shares) == 2, "the last worker gets no share"
        with pytest.raises((OpenError, MalformedMessage)):
            last.add(shares[0])


def test_an_even_number_of_workers_gets_no_seed(simulate):
    round_ = simulation(simulate, masking="exact", workers=4).open()
    round_.send_all()
    round_.close()
    assert offloaded(round_).seed is None
