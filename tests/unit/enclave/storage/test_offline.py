"""Masks made ahead: spent once, kept on disk, gone when they are spent or the pool stops."""

import errno
import gc
import logging
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from ostraka import events
from ostraka.config import Manifest, Terms
from ostraka.crypto.offline import OfflineMask, OfflineNoise
from ostraka.enclave.storage import offline
from ostraka.enclave.storage.offline import OfflinePool, SealedBlocks
from ostraka.enclave.storage.spool import clean
from ostraka.errors import LocalProtocolError, StorageFull
from ostraka.protocol.round import enrol

N, D, TILE = 7, 100, 16
WAIT = 60  # seconds, after which a test that hangs fails
ROWS = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def parties(masking="gaussian", **changes):
    terms = Terms(Manifest.flat(D), f=2, masking=masking, tile=TILE)
    return enrol(replace(terms, **changes), clients=N)


@pytest.fixture
def pool(tmp_path):
    """A pool that has not been started."""
    pools = []

    def make(enclave, **options):
        pools.append(OfflinePool(enclave, tmp_path, **options))
        return pools[-1]

    yield make
    for each in pools:
        each.stop()


def until_ready(pool, count):
    with pool._changed:
        assert pool._changed.wait_for(lambda: pool.ready == count and not pool._making, WAIT)


def measured(parties, prepare, workers=None, tell=lambda event: None):
    """A round whose masks come from `prepare`."""
    local = parties.federation
    offer = local.open()
    for client, update in zip(parties.clients, ROWS, strict=True):
        local.take(parties.seal(client, offer, update))
    cohort = local.close()
    host = replace(local.host(cohort), workers=workers or local.workers, prepare=prepare, tell=tell)
    return local.follow(host.finish(cohort, host.measure(cohort)))


@pytest.mark.parametrize("masking", ["gaussian", "exact"])
@pytest.mark.parametrize("started", [False, True])
def test_a_round_is_the_same_whoever_made_its_masks(pool, tmp_path, masking, started):
    cast = parties(masking)
    one = pool(cast.federation.enclave)
    if started:
        one.start()
    for _ in range(3):
        published = measured(cast, one.take)
        expected = ROWS[[int(name.split("-")[1]) for name in published.selected]].mean(axis=0)
        np.testing.assert_allclose(published.aggregate, expected, rtol=1e-5, atol=1e-7)
        assert published.receipt.distances == "workers"
    one.stop()
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_as_many_are_made_ahead_as_were_asked_for(pool, tmp_path):
    one = pool(parties().federation.enclave, depth=3)
    assert one.ready == 0
    one.start()
    one.start()
    until_ready(one, 3)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("masking", ["gaussian", "exact"])
def test_nothing_is_made_ahead_while_a_round_closes_and_then_it_is(pool, masking):
    one = pool(parties(masking).federation.enclave, depth=2)
    one.start()
    until_ready(one, 2)
    with one.resting():
        one.take()
        gc.collect()
        with one._changed:
            assert not one._changed.wait_for(lambda: one._making, 0.1)
        assert one.ready == 1
    until_ready(one, 2)


class HalfMade:
    """Masks of which the pool makes the second tile only when it is told to go on."""

    def __init__(self, prepared, begun, go_on):
        self.prepared, self.begun, self.go_on = prepared, begun, go_on

    def make(self):
        for block in self.prepared.make():
            self.tiles = getattr(self, "tiles", 0) + 1
            self.begun.set()
            assert self.go_on.wait(WAIT)
            yield block


@pytest.fixture(params=["gaussian", "exact"])
def half_made(pool, monkeypatch, request):
    """A pool whose first masks are half made, those masks, and what lets them go on."""
    cast = parties(request.param)
    begun, go_on, made = threading.Event(), threading.Event(), []
    prepare = cast.federation.enclave.prepare

    def slow():
        made.append(HalfMade(prepare(), begun, go_on))
        return made[-1]

    monkeypatch.setattr(cast.federation.enclave, "prepare", slow)
    one = pool(cast.federation.enclave, depth=1)
    one.start()
    assert begun.wait(WAIT)
    yield one, made[0], go_on
    go_on.set()


def test_what_is_half_made_rests_while_a_round_closes(half_made):
    one, masks, go_on = half_made
    with one.resting():
        go_on.set()
        with one._changed:
            assert not one._changed.wait_for(lambda: one.ready, 0.1)
        assert masks.tiles == 1
    until_ready(one, 1)
    assert masks.tiles == parties().federation.terms.tiling.count


def test_what_is_half_made_is_finished_for_a_round_that_needs_it(half_made):
    one, masks, go_on = half_made
    with one.resting():
        go_on.set()
        assert one.take().offline is masks


def test_what_is_half_made_is_dropped_where_the_pool_stops(half_made, tmp_path):
    one, masks, go_on = half_made
    with one.resting():
        go_on.set()
        one.stop()
    one._thread.join(WAIT)
    assert not one._thread.is_alive()
    assert masks.tiles == 1
    assert list(tmp_path.iterdir()) == []


def test_a_depth_of_nothing_makes_nothing_ahead(pool, tmp_path):
    one = pool(parties().federation.enclave, depth=0)
    one.start()
    assert one._thread is None
    assert one.take().sealed
    assert one.ready == 0


def test_the_ciphertext_is_on_disk_and_in_no_memory(pool, tmp_path):
    cast = parties()
    taken = pool(cast.federation.enclave).take()
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert b"".join(map(bytes, taken.sealed)) == file.read_bytes()
    assert len(taken.sealed) == cast.federation.terms.columns.count
    first, again = taken.sealed[0], taken.sealed[0]
    assert first == again
    assert first is not again


def test_blocks_are_read_as_often_as_they_are_asked_for(pool):
    """A dispute reads them a second time."""
    sealed = pool(parties().federation.enclave).take().sealed
    assert list(sealed) == list(sealed)
    assert sealed[-1] == list(sealed)[-1]
    assert sealed[1:3] == list(sealed)[1:3]
    with pytest.raises(IndexError):
        sealed[len(sealed)]


class Liar:
    """Takes its shares as they should be taken, and answers a little off."""

    def __init__(self, honest):
        self.honest = honest

    def accept(self, offer):
        self.computing, accept = self.honest.accept(offer)
        return self, accept

    def add(self, tile):
        self.computing.add(tile)

    def answer(self):
        total = self.computing._sum.total()
        total[0, 1] = total[1, 0] = total[0, 1] + 0.1 * total[0, 0]
        self.computing._sum.total = lambda: total
        return self.computing.answer()


def test_a_dispute_is_settled_with_masks_from_disk(pool):
    cast = parties("gaussian")
    told: list[object] = []
    workers = cast.federation.workers | {"worker-2": Liar(cast.federation.workers["worker-2"])}
    measured(cast, pool(cast.federation.enclave).take, workers, told.append)
    assert events.WorkerLied("worker-2") in told


@pytest.mark.parametrize("workers", [2, 3])
def test_exact_masks_need_no_disk(pool, tmp_path, workers):
    cast = parties("exact", workers=workers)
    taken = pool(cast.federation.enclave).take()
    assert isinstance(taken.offline, OfflineMask)
    assert not taken.sealed
    assert list(tmp_path.iterdir()) == []
    taken.offline.spend()


def test_masks_are_for_one_attempt(pool):
    one = pool(parties().federation.enclave)
    one.start()
    until_ready(one, 2)
    taken = [one.take() for _ in range(4)]
    assert len({id(each.offline) for each in taken}) == 4
    for each in taken:
        assert isinstance(each.offline, OfflineNoise)
        each.offline.spend()
        with pytest.raises(LocalProtocolError, match="spent"):
            each.offline.spend()


def test_a_file_goes_when_its_attempt_is_over(pool, tmp_path):
    one = pool(parties().federation.enclave)
    first, second = one.take(), one.take()
    assert len(list(tmp_path.iterdir())) == 2
    first.close()
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(LocalProtocolError, match="deleted"):
        first.sealed[0]
    sealed = second.sealed
    del second
    gc.collect()
    assert sealed[0]  # Whoever still reads the blocks keeps them.
    del sealed
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_stopping_deletes_everything_and_ends_the_thread(pool, tmp_path):
    one = pool(parties().federation.enclave)
    one.start()
    until_ready(one, 2)
    taken = one.take()
    one.stop()
    one.stop()
    assert list(tmp_path.iterdir()) == []
    assert not one._thread.is_alive()
    with pytest.raises(LocalProtocolError, match="deleted"):
        taken.sealed[0]
    with pytest.raises(LocalProtocolError, match="stopped"):
        one.take()


def test_masks_that_are_half_made_are_waited_for(pool, monkeypatch):
    cast = parties()
    begun, go_on, makers = threading.Event(), threading.Event(), []
    prepare = cast.federation.enclave.prepare

    def slow():
        makers.append(threading.current_thread().name)
        begun.set()
        go_on.wait(WAIT)
        return prepare()

    monkeypatch.setattr(cast.federation.enclave, "prepare", slow)
    one = pool(cast.federation.enclave, depth=1)
    one.start()
    begun.wait(WAIT)
    taken = []
    taker = threading.Thread(target=lambda: taken.append(one.take()))
    taker.start()
    assert not taken
    go_on.set()
    taker.join(WAIT)
    assert len(taken) == 1
    assert makers[0] == "offline"
    assert len(makers) == 1


def test_nothing_is_written_behind_a_stop(pool, monkeypatch):
    cast = parties()
    one, prepare = pool(cast.federation.enclave), cast.federation.enclave.prepare

    def late():
        one.stop()
        return prepare()

    monkeypatch.setattr(cast.federation.enclave, "prepare", late)
    monkeypatch.setattr(SealedBlocks, "append", lambda *_: pytest.fail("written"))
    with pytest.raises(LocalProtocolError, match="stopped"):
        one.take()


def test_stopping_in_the_middle_leaves_nothing(pool, tmp_path, monkeypatch):
    cast = parties()
    one = pool(cast.federation.enclave)
    real = SealedBlocks.append
    reached = threading.Event()

    def append(self, block):
        real(self, block)
        reached.set()
        with one._changed:
            one._changed.wait_for(lambda: one._stopped, WAIT)

    monkeypatch.setattr(SealedBlocks, "append", append)
    one.start()
    reached.wait(WAIT)
    assert len(list(tmp_path.iterdir())) == 1
    one.stop()
    one._thread.join(WAIT)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_is_kept_and_the_next_attempt_hears_of_it(pool, tmp_path, caplog):
    cast = parties()
    probe = pool(cast.federation.enclave).take()
    size = probe.sealed.bytes
    probe.close()
    one = pool(cast.federation.enclave, limit=size + size // 2)
    with caplog.at_level(logging.WARNING, "ostraka.offline"):
        one.start()
        until_ready(one, 1)
        with one._changed:
            one._changed.wait_for(lambda: bool(caplog.records), WAIT)
    assert "OfflineFailed" in caplog.text
    taken = one.take()
    with pytest.raises(StorageFull, match="spool_mib"):
        one.take()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) == size
    taken.close()
    assert one.take().sealed.bytes == size


def test_a_full_disk_leaves_no_files_and_passes(pool, tmp_path, monkeypatch):
    one = pool(parties().federation.enclave)

    def full(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        with pytest.raises(StorageFull):
            one.take()
    assert list(tmp_path.iterdir()) == []
    assert one.take().sealed


def test_a_crash_leaves_files_that_the_next_start_deletes(pool, tmp_path):
    taken = pool(parties().federation.enclave).take()
    assert clean(tmp_path) == 1
    assert list(tmp_path.iterdir()) == []
    taken.close()


def test_no_secret_is_shown(pool, caplog):
    with caplog.at_level(logging.DEBUG, "ostraka.offline"):
        one = pool(parties().federation.enclave)
        one.start()
        until_ready(one, 2)
    shown = repr(one.take()) + caplog.text
    assert "<secret>" in shown
    assert offline.OfflineReady.__name__ in caplog.text
