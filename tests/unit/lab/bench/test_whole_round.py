"""A measured round is a real one, and every party's time is its own."""

import time

import numpy as np
import pytest

from ostraka.config import Manifest, Terms, default_tile
from ostraka.core import gram
from ostraka.core.rules import krum
from ostraka.crypto.channel import Channel
from ostraka.crypto.updates import TileOpener
from ostraka.errors import LocalProtocolError
from ostraka.events import TooFewWorkers
from ostraka.protocol.round import run_round
from ostraka.protocol.worker import Computing
from ostraka_lab.bench import whole_round
from ostraka_lab.bench.whole_round import play, repeated

CLIENTS, DIMENSION = 8, 5000
UPDATES = np.random.default_rng(1).standard_normal((CLIENTS, DIMENSION), dtype=np.float32)


PAPER = {"rule": "multi-krum", "pre": ()}


def terms(**options):
    return Terms(Manifest.flat(DIMENSION), f=1, tile=default_tile(DIMENSION), **options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sketch": 4096},
        {"masking": "gaussian"},
        {"masking": "none", "sketch": 4096},
        {"workers": 3},
    ],
    ids=str,
)
def test_it_selects_and_averages_as_the_specification_does(options):
    played = play(terms(**options, **PAPER), UPDATES, clients=CLIENTS, parts=True)
    expected = krum.multi_krum(gram.naive(UPDATES.astype(np.float64)), 1, CLIENTS - 1)
    if "sketch" not in options:
        assert played.selected == expected
    mean = UPDATES[list(played.selected)].mean(axis=0)
    np.testing.assert_allclose(played.aggregate, mean, atol=1e-6)
    assert played.enclave_cpu_s > 0
    assert played.wall_s > 0
    assert 0 < played.inputs_rss <= played.peak_rss
    inside = options.get("masking") == "none"
    assert (played.worker_cpu_s > 0) != inside
    parts = {"clients", "collect", "arrive", "open", "encode", "aggregate", "confirm", "release"}
    assert parts <= set(played.cpu_s)
    assert ({"encrypt", "decode"} <= set(played.cpu_s)) != inside
    assert (played.prepare_cpu_s > 0) == (not inside and options.get("workers", 2) % 2 == 0)


def test_the_default_is_what_run_round_makes_of_it():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(CLIENTS, 4)) @ rng.normal(size=(4, DIMENSION))).astype(np.float32)
    played, expected = play(terms(), rows, clients=CLIENTS), run_round(rows, f=1, masking="none")
    assert played.selected == expected.selected
    np.testing.assert_allclose(played.aggregate, expected.aggregate, atol=1e-3)


def test_the_enclave_is_what_neither_clients_nor_workers_took():
    played = play(terms(), UPDATES, clients=CLIENTS, parts=True)
    first_pass = {"arrive", "open", "prepare", "encode", "encrypt", "decode"}
    parts = first_pass | {"collect", "aggregate", "confirm", "release"}
    assert played.first_pass_cpu_s == pytest.approx(sum(played.cpu_s[part] for part in first_pass))
    assert played.enclave_cpu_s == pytest.approx(sum(played.cpu_s[part] for part in parts))
    arrival = {"collect", "arrive", "open"}
    assert played.arrival_cpu_s == pytest.approx(sum(played.cpu_s[part] for part in arrival))
    workers = [played.cpu_s["worker-1"], played.cpu_s["worker-2"]]
    assert played.worker_cpu_s == pytest.approx(sum(workers))
    assert played.slowest_worker_s == max(workers)
    assert set(played.cpu_s) == parts | {"clients", "worker-1", "worker-2"}


def test_a_worker_is_charged_for_its_kernel_and_nobody_else_is(monkeypatch):
    class Clock:
        now = 0.0

    add, answer = Computing.add, Computing.answer

    def slow_add(self, tile):
        Clock.now += 1
        add(self, tile)

    def slow_answer(self):
        Clock.now += 10
        return answer(self)

    monkeypatch.setattr(time, "process_time", lambda: Clock.now)
    monkeypatch.setattr(Computing, "add", slow_add)
    monkeypatch.setattr(Computing, "answer", slow_answer)
    played = play(terms(), UPDATES, clients=CLIENTS)
    assert (played.cpu_s["worker-1"], played.cpu_s["worker-2"]) == (11, 11)
    assert played.enclave_cpu_s == 0


def test_bytes_are_those_that_are_sent():
    traffic = play(terms(), UPDATES, clients=CLIENTS).traffic
    assert traffic.uploads == CLIENTS * (4 * DIMENSION + 16)
    # One group of rows a tile, and two workers.
    assert traffic.shares == 2 * (CLIENTS * 4 * DIMENSION + 16)
    assert traffic.answers == 2 * (4 * CLIENTS * (CLIENTS + 1) // 2 + 16)


def test_what_was_watched_is_as_before():
    before = TileOpener.open_into, Channel.seal_share
    play(terms(), UPDATES, clients=CLIENTS, parts=True)
    assert (TileOpener.open_into, Channel.seal_share) == before


def test_a_round_that_falls_back_to_the_enclave_is_no_measurement(monkeypatch):
    def lie(self):
        raise LocalProtocolError("no answer")

    monkeypatch.setattr(Computing, "answer", lie)
    with pytest.raises(LocalProtocolError):
        play(terms(), UPDATES, clients=CLIENTS)
    with pytest.raises(LocalProtocolError, match="workers of a benchmark"):
        whole_round.refuse_surprises(TooFewWorkers(1, 2))


def test_repeated_updates_are_as_many_as_clients():
    rows = list(repeated(11, 100))
    assert len(rows) == 11
    assert np.array_equal(rows[0], rows[8])
    assert not np.array_equal(rows[0], rows[1])
