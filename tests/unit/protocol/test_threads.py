"""Work on lent threads: every piece is done once, and no thread does two at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from ostraka import run_round
from ostraka.crypto.stream import SecretStream
from ostraka.protocol.enclave import Threads


@pytest.fixture(params=[1, 2, 3, 8])
def threads(request):
    with ThreadPoolExecutor(request.param) as pool:
        yield Threads(request.param, pool.map)


@pytest.mark.parametrize(("rows", "size"), [(0, 3), (1, 3), (3, 3), (10, 3), (24, 3), (25, 1)])
def test_groups_cover_all_rows_once(threads, rows, size):
    done, lock = [], threading.Lock()

    def work(thread, group):
        with lock:
            done.append((thread, group))

    threads.groups(rows, size, work)
    assert sorted(row for _, group in done for row in group) == list(range(rows))
    for thread, group in done:
        assert 0 <= thread < threads.count
        assert group.start % size == 0
        assert len(group) == min(size, rows - group.start)


@pytest.mark.parametrize("items", [0, 1, 2, 7, 16])
def test_batches_take_all_items_in_order(threads, items):
    done, lock = [], threading.Lock()

    def work(thread, index, item):
        with lock:
            done.append((index, item, thread))

    threads.batches((f"item {place}" for place in range(items)), work)
    assert sorted(done) == [
        (place, f"item {place}", place % threads.count) for place in range(items)
    ]


@pytest.mark.parametrize("items", [range(0), range(1), range(3, 90, 7)])
def test_a_map_keeps_the_order(threads, items):
    assert threads.map(lambda item: item * item, items) == [item * item for item in items]


def test_no_thread_does_two_things_at_a_time(threads):
    busy = [threading.Lock() for _ in range(threads.count)]

    def work(thread, *_):
        assert busy[thread].acquire(blocking=False)
        threading.Event().wait(0.001)
        busy[thread].release()

    threads.groups(40, 2, work)
    threads.batches(range(20), work)


def test_threads_work_side_by_side():
    """The test above can fail: two threads that wait for each other both arrive."""
    meeting = threading.Barrier(2, timeout=60)
    with ThreadPoolExecutor(2) as pool:

        def meet(thread, group):
            meeting.wait()

        Threads(2, pool.map).groups(2, 1, meet)


def test_an_error_in_a_thread_reaches_the_driver(threads):
    def fail(thread, index, item):
        if item == 4:
            raise KeyError(item)

    with pytest.raises(KeyError, match="4"):
        threads.batches(range(9), fail)


def settled(receipt):
    """All but what ML-KEM's own randomness changes: the headers, and so the cohort's root."""
    return replace(receipt, cohort=bytes(32), signature=bytes(64))


@pytest.mark.parametrize("sketch", [None, 20_000])
@pytest.mark.parametrize("masking", ["none", "gaussian", "exact"])
@pytest.mark.filterwarnings("ignore::ostraka.errors.LeakyMasking")
def test_threads_change_nothing_over_many_tiles_and_groups(masking, sketch):
    """Three tiles, the last of them short, and three groups of eight rows, likewise."""
    rows = np.random.default_rng(0).normal(size=(19, 40_000)).astype(np.float32)
    one, *others = (
        run_round(
            rows,
            f=2,
            masking=masking,
            sketch=sketch,
            threads=threads,
            entropy=SecretStream(bytes(32)).bytes,
        )
        for threads in (1, 2, 4)
    )
    for other in others:
        assert settled(one.receipt) == settled(other.receipt)
        assert one.aggregate.tobytes() == other.aggregate.tobytes()
        assert one.selected == other.selected
