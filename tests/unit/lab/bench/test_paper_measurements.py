"""The paper's measurements at tiny sizes: everything is there, and is what it says."""

import time

import numpy as np
import pytest

from ostraka.core import field
from ostraka.errors import ConfigError
from ostraka.worker import backends
from ostraka_lab.bench import paper_measurements as measurements
from ostraka_lab.bench.paper_measurements import MASKINGS, NETWORKS, SCHEMES
from ostraka_lab.bench.whole_round import Played, Traffic


def quietly(*_):
    pass


def test_distances_inside_and_of_workers(monkeypatch):
    monkeypatch.setattr(measurements, "_has_cuda", lambda: False)
    figures = measurements.distances(6, 20_000, 2, quietly)
    stages = {"open", "naive", "blas32", "blas64", "worker-gaussian-cpu", "worker-exact-cpu"}
    assert set(figures["seconds"]) == set(figures["spread"]) == stages
    assert all(seconds > 0 for seconds in figures["seconds"].values())
    assert figures["columns"] == figures["dimension"] == 20_000


def test_what_does_not_fit_is_measured_in_part_and_scaled(monkeypatch):
    monkeypatch.setattr(measurements, "_has_cuda", lambda: False)
    monkeypatch.setattr(measurements, "available_bytes", lambda: 10 * 6 * 20_000 / 0.7)
    figures = measurements.distances(6, 2_000_000_000, 1, quietly)
    assert 19_990 <= figures["columns"] <= 20_000
    # A hundred thousand times what was measured.
    assert figures["seconds"]["naive"] > 10


def test_a_kernel_sees_every_column_of_every_client(monkeypatch):
    seen = []

    class Watching:
        def begin(self, rows, values):
            self.values = values
            return self

        def add(self, block):
            assert self.values == "float64" or block.max() < field.P
            seen.append(block.shape)

        def total(self):
            seen.append(self.values)

    monkeypatch.setattr(measurements, "_has_cuda", lambda: False)
    monkeypatch.setattr(backends, "choose", lambda device: Watching())
    measurements.distances(6, 70_000, 1, quietly)
    blocks = [(6, 65_536), (6, 4464)]
    assert seen == [*blocks, "float64", *blocks, "residues"]


def test_an_accelerator_is_on_the_wall_clock(monkeypatch):
    """Its host only waits, which takes next to no CPU time."""
    nap = 0.05

    class Napping:
        def begin(self, rows, values):
            return self

        def add(self, block):
            time.sleep(nap)

        def total(self):
            pass

    monkeypatch.setattr(measurements, "_has_cuda", lambda: True)
    monkeypatch.setattr(backends, "choose", lambda device: Napping())
    seconds = measurements.distances(6, 5 * 65_536, 1, quietly)["seconds"]
    assert seconds["worker-exact-cuda"] >= 5 * nap
    assert measurements._timer("worker-exact-cpu") is time.process_time
    assert measurements._timer("naive") is time.process_time


def test_without_cuda_there_is_none(monkeypatch):
    def refuse(device):
        raise ConfigError("no such device")

    monkeypatch.setattr(backends, "choose", refuse)
    assert not measurements._has_cuda()


@pytest.mark.parametrize("masking", MASKINGS)
def test_an_epoch_is_cut_into_the_papers_parts(masking):
    figures = measurements.epoch(8, 6000, masking, 2, quietly)
    first_pass = {"arrive", "open", "encode", "encrypt", "distances", "decode"}
    besides = {"prepare", "collect", "aggregate", "confirm", "release"}
    assert set(figures["parts"]) == first_pass | besides
    # A third worker makes the Gram matrix of an exact mask.
    idle = set() if masking == "gaussian" else {"prepare"}
    assert {part for part, seconds in figures["parts"].items() if seconds == 0} == idle
    assert figures["uploaded_bytes"] == 8 * (4 * 6000 + 16)
    columns = figures["sketch"] or 6000
    width = 8 if masking == "gaussian" else 4
    assert figures["shared_bytes"] > 2 * 8 * columns * width
    assert (figures["sketch"] is not None) == (masking == "sketch")


def test_the_headline_compares_whole_rounds():
    figures = measurements.headline(8, 6000, 1, quietly)
    assert set(figures["inside"]) == {"naive", "blas64", "blas32"}
    assert [row["name"] for row in figures["rows"]] == list(SCHEMES)
    for row in figures["rows"]:
        for base, inside in figures["inside"].items():
            ratio = inside["enclave_cpu_s"] / row["enclave_cpu_s"]
            assert row[f"over_{base}"] == pytest.approx(ratio)
            assert (row[f"round_over_{base}"] < ratio) == (row["name"] != "sketch-inside")


def test_what_both_ways_share_is_counted_in_both(monkeypatch):
    besides = {"collect": 0.125, "aggregate": 0.5, "confirm": 0.25, "release": 0.125}
    cpu = {"encode": 1.0, **besides, "worker-1": 3.0, "worker-2": 2.0}
    played = Played(cpu, 1.0, 0, 0, Traffic(), (), np.empty(0, np.float32))
    monkeypatch.setattr(measurements, "_seconds", lambda stage: 7.0)
    monkeypatch.setattr(measurements, "play", lambda *_, **__: played)
    figures = measurements.headline(8, 6000, 1, quietly)
    assert figures["inside"]["naive"]["enclave_cpu_s"] == 7 + 1
    assert figures["rows"][0]["over_naive"] == 8 / 2
    assert figures["rows"][0]["round_over_naive"] == 8 / (2 + 3)
    assert figures["rows"][0]["detection_cpu_s"] == 1
    assert figures["rows"][0]["detection_over_naive"] == 7


def test_short_updates_have_no_sketch():
    figures = measurements.headline(8, 2000, 1, quietly)
    assert [row["name"] for row in figures["rows"]] == ["gaussian", "exact"]


def test_training_is_some_steps_of_an_epoch():
    figures = measurements.training("mlp", 64, 2, quietly)
    assert figures["step_s"] > 0
    assert figures["batches"] == 25  # 50,000 pictures for 64 clients, 32 at a time
    assert figures["steps_timed"] == 2


@pytest.mark.slow
def test_the_networks_are_as_large_as_published():
    counts = measurements.networks(quietly)
    assert list(counts) == list(NETWORKS)
    published = (4_231_976, 3_504_872, 5_288_548, 7_794_184)
    assert np.allclose(list(counts.values()), published, rtol=0.001)
