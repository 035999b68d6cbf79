"""The process of clients: an attacker sends what it wants, and a crash is one client's own."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from ostraka.client.results import Model
from ostraka_lab import client
from ostraka_lab.experiment import Experiment, Participant, Task
from ostraka_lab.folder import Board, RunFolder


@pytest.mark.slow
def test_the_library_would_keep_a_nan_to_itself_and_an_attacker_does_not():
    code = """
import numpy as np
from ostraka.config import Manifest
from ostraka_lab import client
from ostraka.errors import ConfigError
bad, manifest = np.full(3, np.nan), Manifest.flat(3)
try:
    client.api.flatten(bad, manifest)
except ConfigError:
    client._drop_own_checks()
    assert np.isnan(client.api.flatten(bad, manifest)).all()
    assert client.api.flatten(np.ones(3), manifest).dtype == np.float32
    print("sent")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "sent\n"


@pytest.mark.slow
def test_it_loads_no_compiler_and_nothing_to_draw_with():
    """A dozen of these start at one time."""
    code = "import sys, ostraka_lab.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded
    assert not {"matplotlib", "sklearn", "tensorboardX", "rich", "torch._dynamo"} & loaded


@pytest.fixture
def fellows(tmp_path):
    task = Task.load(Experiment(clients=5, byzantine=1, steps=1))
    folder = RunFolder(tmp_path)
    return client.Fellows(folder, "nowhere", task, threading.Lock(), Board(folder.board))


def test_a_crash_is_one_clients_own_and_nobody_waits_for_it(fellows, caplog, monkeypatch):
    def crash(*_):
        raise MemoryError("no memory for this model")

    monkeypatch.setattr(client, "take_part", crash)
    participant = Participant(fellows.task, 3, fellows.task.model())
    client._run(fellows, participant)
    assert len(fellows.board.read([3], 1)) == 0
    (record,) = caplog.records
    assert record.ostraka_fields == {"client": "client-3", "why": "no memory for this model"}
    assert json.dumps(record.ostraka_fields)


def test_clients_of_one_process_train_one_at_a_time(fellows, monkeypatch):
    inside, most = 0, 0

    def train(self, start, number):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        trained = genuine(self, start, number)
        inside -= 1
        return trained

    genuine = Participant.train
    monkeypatch.setattr(Participant, "train", train)
    (manifest, start), shared = fellows.task.first(), fellows.task.model()
    fetched = Model(1, start, manifest, bytes(32), simulated=True)
    updates = {}

    def work(number):
        participant = Participant(fellows.task, number, shared)
        updates[number] = client._update(fellows, participant, fetched)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    alone = Participant(fellows.task, 2, fellows.task.model())
    own = alone.train(start, 1).update
    np.testing.assert_array_equal(updates[2], alone.sends(own, 1))
